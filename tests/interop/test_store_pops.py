"""Test of stores that change hands while popped messages are invisible."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kourou import Message, PoppedMessage, Producer, SimpleConsumer
from kourou.testing.process import Serving, run_command
from tests.interop.ledger import make_topics
from tests.interop.peer import start_java

TOPIC, GROUP = "Popped", "popping"
INVISIBLE_MS = 12_000
PATIENCE_S = 120


async def _take(
    consumer: SimpleConsumer, count: int, invisible_ms: int = INVISIBLE_MS
) -> list[PoppedMessage]:
    taken: list[PoppedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken += await consumer.receive(count - len(taken), invisible_ms=invisible_ms)
    return taken


async def pop_some(namesrv_addr: str) -> None:
    """Send ten messages, pop them, and acknowledge four, alone and together."""
    await make_topics(namesrv_addr, TOPIC, queues=1)
    async with Producer("sending", namesrv_addr) as producer:
        for number in range(10):
            await producer.send(Message(TOPIC, str(number).encode()), timeout_ms=15_000)
    async with SimpleConsumer(GROUP, namesrv_addr, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        taken = await _take(consumer, 10)
        by_body = {message.body: message for message in taken}
        assert sorted(by_body) == [b"%d" % number for number in range(10)]
        await consumer.ack(by_body[b"0"])
        await consumer.ack_all([by_body[b"1"], by_body[b"2"], by_body[b"7"]])


async def take_rest(namesrv_addr: str) -> None:
    """Pop the messages that were not acknowledged, and no others."""
    async with SimpleConsumer(GROUP, namesrv_addr, start="earliest") as consumer:
        consumer.subscribe(TOPIC)
        taken = await _take(consumer, 6, 60_000)
        assert sorted(message.body for message in taken) == [b"3", b"4", b"5", b"6", b"8", b"9"]
        assert {message.reconsume_times for message in taken} == {1}
        await consumer.ack_all(taken)
        assert await consumer.receive(wait_ms=3_000) == []


def test_java_revives_what_was_popped_here(jars: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Serving.start(store, "--no-console") as serving:
        asyncio.run(pop_some(serving.namesrv))
        outcome = serving.stop()
    assert outcome.code == 0, outcome.err

    java = start_java(jars, tmp_path / "java", store=store)
    try:
        asyncio.run(take_rest(java.namesrv_addr))
    finally:
        java.stop()


def test_what_java_popped_is_revived_here(jars: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    java = start_java(jars, tmp_path / "java", store=store)
    try:
        asyncio.run(pop_some(java.namesrv_addr))
    finally:
        java.stop()

    with Serving.start(store, "--no-console") as serving:
        asyncio.run(take_rest(serving.namesrv))
        outcome = serving.stop()
    assert outcome.code == 0, outcome.err
    checked = run_command("store", "check", str(store))
    assert checked.code == 0, checked.out + checked.err
