"""Tests that `mqadmin` 5.5.0 prints the same of a group that pops for Kourou and for Java's broker.

The same steps run against both at the same time: with messages in flight, after their revival, and
after the group has consumed all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kourou import (
    AdminClient,
    Message,
    PoppedMessage,
    Producer,
    SimpleConsumer,
    SimpleConsumerConfig,
    SubscriptionGroup,
)
from kourou.testing.process import Serving, run_command
from tests.interop.admin_steps import until_printed
from tests.interop.ledger import make_topics
from tests.interop.mqadmin import Mqadmin, Printed, mask
from tests.interop.peer import start_java

TOPIC, GROUP, COUNT = "Orders", "popping", 6
RETRY = f"%RETRY%{GROUP}_{TOPIC}"
SHORT_MS = 15_000
PATIENCE_S = 120
_COUNTED = r"popping +0 +\d+\.\d+ +\d+\.\d+ +6 +6\b"
_REVIVED = r"broker-a +0 +0 +3 "

# Nothing was sent.
NEW = (
    "setConsumeMode -b {broker} -t Orders -g popping -m POP -q 8",
    "setConsumeMode -c DefaultCluster -t Orders -g popping -m POP",
    "setConsumeMode -b {broker} -t Orders -g nobody -m POP",
    "setConsumeMode -b {broker} -t Nothing -g popping -m POP",
    "getConsumerConfig -g popping",
    "consumerProgress -g popping",
    "topicStatus -t {retry}",
)
# Four messages were popped, and one acknowledged.
IN_FLIGHT = (
    "consumerProgress -g popping ",
    "consumerProgress -g popping -t Orders",
    "consumerProgress -g popping -t Orders -s true",
    "consumerConnection -g popping",
    "consumerConnection -g popping -b {broker}",
    "consumerStatus -g popping",
    "consumerStatus -g popping -i {client}",
    "topicStatus -t Orders",
    "topicStatus  -t {retry}",
    "topicRoute -t {retry}",
    "brokerConsumeStats -b {broker}",
    "exportPopRecord -b {broker}",
    "exportPopRecord -b {broker} -d true",
    "exportPopRecord -c DefaultCluster",
    "printMsg -t Orders -d true",
)
# Three messages are visible again, in the retry topic.
REVIVED = (
    "consumerProgress -g  popping",
    "consumerProgress -g  popping -t Orders",
    "consumerProgress -g popping -t {retry}",
    "topicStatus   -t {retry}",
    "topicRoute  -t {retry}",
    "topicClusterList -t {retry}",
    "printMsg -t {retry} -d true",
    "brokerConsumeStats  -b {broker}",
)
# All messages are acknowledged.
CONSUMED = (
    "consumerProgress  -g  popping",
    "consumerProgress  -g popping -t Orders",
    "consumerProgress  -g popping -t {retry}",
    "statsAll -t Orders",
    "statsAll -a -t Orders",
    "statsAll -a -t {retry}",
    "resetOffsetByTime -g popping -t Orders -s 2020-01-01#00:00:00:000",
    "consumerProgress  -g popping  -t Orders",
    "skipAccumulatedMessage -g popping -t Orders",
    "consumerProgress   -g popping  -t Orders",
    "setConsumeMode -b {broker} -t Orders -g popping -m PULL",
)
# The member has left.
LEFT = (
    "consumerProgress   -g   popping ",
    "consumerConnection -g popping ",
    "consumerStatus -g popping ",
    "deleteSubGroup -g popping -b {broker} -r true",
    "consumerProgress    -g   popping",
)
STEPS = (*NEW, *IN_FLIGHT, *REVIVED, *CONSUMED, *LEFT)
assert len(set(STEPS)) == len(STEPS)

OWN = (
    (r"KOUROU_REVIVED_FROM=[^,}]*, ", ""),
    (r"(storeSize|commitLogOffset)=\d+", r"\1=SIZE"),
)
"""A revived message names its checkpoint in Kourou, and records of pops are larger."""


async def play(namesrv_addr: str, broker_addr: str, home: Path) -> dict[str, Printed]:
    """Run all steps against a new server; return step -> output."""
    await make_topics(namesrv_addr, TOPIC, queues=1)
    async with AdminClient(namesrv_addr) as admin:
        await admin.create_group(SubscriptionGroup(GROUP))
    known = {"broker": broker_addr, "retry": RETRY}
    printed: dict[str, Printed] = {}
    config = SimpleConsumerConfig(instance_name="steps")
    with Mqadmin(namesrv_addr, home) as mqadmin:

        async def take(steps: Sequence[str], **more: str) -> None:
            for step in steps:
                words = [word.format_map(known | more) for word in step.split()]
                printed[step] = await asyncio.to_thread(mqadmin.run, *words)

        await take(NEW)
        async with Producer("sending", namesrv_addr) as producer:
            for number in range(COUNT):
                await producer.send(Message(TOPIC, b"%d" % number), timeout_ms=15_000)
        consumer = SimpleConsumer(GROUP, namesrv_addr, start="earliest", config=config)
        async with consumer:
            consumer.subscribe(TOPIC)
            taken = await receive(consumer, 4, SHORT_MS)
            await consumer.ack(taken[0])
            await take(IN_FLIGHT, client=consumer.client_id)
            await until_printed(mqadmin, f"topicStatus -t {RETRY}", _REVIVED)
            await take(REVIVED)
            await consumer.ack_all(await receive(consumer, COUNT - 1, 60_000))
            await until_printed(mqadmin, "statsAll -a -t Orders", _COUNTED)
            await take(CONSUMED)
        await take(LEFT)
    return printed


async def receive(consumer: SimpleConsumer, count: int, invisible_ms: int) -> list[PoppedMessage]:
    taken: list[PoppedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken += await consumer.receive(count - len(taken), invisible_ms=invisible_ms)
    return taken


@pytest.fixture(scope="module")
def printed(jars: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Printed]]:
    """Return server -> step -> output, for one run against each server."""
    home = tmp_path_factory.mktemp("kourou")
    java_home = tmp_path_factory.mktemp("java")
    java = start_java(jars, java_home, options="enabledAppendPropCRC=true\n")
    try:
        with (
            Serving.start(home / "store", "--no-console") as kourou,
            ThreadPoolExecutor(2) as pool,
        ):
            at_java = pool.submit(_play, java.namesrv_addr, java.broker_addr, java_home)
            at_kourou = pool.submit(_play, kourou.namesrv, kourou.broker, home)
            both = {"java": at_java.result(), "kourou": at_kourou.result()}
            assert kourou.stop().code == 0
    finally:
        java.stop()
    assert run_command("store", "check", str(home / "store")).code == 0
    return both


def _play(namesrv_addr: str, broker_addr: str, home: Path) -> dict[str, Printed]:
    return asyncio.run(play(namesrv_addr, broker_addr, home))


@pytest.mark.parametrize("step", STEPS)
def test_command_prints_the_same_as_for_java(
    step: str, printed: Mapping[str, Mapping[str, Printed]]
) -> None:
    java, kourou = (mask(printed[server][step]) for server in ("java", "kourou"))
    for pattern, word in OWN:
        java, kourou = re.sub(pattern, word, java), re.sub(pattern, word, kourou)
    assert kourou.splitlines() == java.splitlines()
