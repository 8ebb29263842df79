"""Tests of pops with retry topics of the second form and the merge buffer, on both brokers.

The features of Java's client check themselves, see `features.py`. Kourou's consumers run the same
checks as without the options, and some of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kourou import AdminClient, PoppedMessage, SimpleConsumer
from kourou.client.calls_pop import MESSAGES_MAX
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2
from kourou.testing.process import Serving, run_command
from tests.interop import test_push_popping
from tests.interop.features import FEATURES, OPTIONS, Played, play, read_log
from tests.interop.ledger import make_topics
from tests.interop.members import name_of
from tests.interop.peer import start_java

POP_OPTIONS = "enableRetryTopicV2=true\nenablePopBufferMerge=true\n"
RELEASE = "5.5.0"
NAMES = ("PopPush", "PopRetry", "PopSwitch", "PopHandles", "PopHold", "PopInOrder")
PUSH_CHECKS = (
    test_push_popping.test_members_pop_each_message_once_when_the_broker_says_so,
    test_push_popping.test_failed_slow_and_dead_messages_of_a_popping_member,
    test_push_popping.test_ordered_listener_pops_a_queue_in_order,
    test_push_popping.test_member_that_closes_gives_back_what_it_has_not_begun,
)
SHORT_MS, LONG_MS, WAIT_MS, PATIENCE_S = 12_000, 60_000, 5_000, 90


@pytest.fixture(scope="module", params=["java", "kourou"])
def namesrv_addr(
    request: pytest.FixtureRequest, jars: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the name server of a broker of each kind with the options."""
    home: Path = tmp_path_factory.mktemp("pop-options")
    options = f"{OPTIONS}{POP_OPTIONS}"
    if request.param == "java":
        java = start_java(jars, home, options=options)
        yield java.namesrv_addr
        java.stop()
        return
    (home / "broker.conf").write_text(f"messageDelayLevel=1s 1s 1s 1s 1s 1s\n{options}")
    with Serving.start(home / "store", "--config", str(home / "broker.conf")) as serving:
        yield serving.namesrv
        assert serving.stop().code == 0
    assert run_command("store", "check", str(home / "store")).code == 0


@pytest.fixture(scope="module")
def played(namesrv_addr: str) -> dict[str, Played]:
    """Return the results of the features of Java's client, which run at the same time."""
    return play(namesrv_addr, RELEASE, [one for one in FEATURES if one.name in NAMES])


@pytest.mark.parametrize("name", NAMES)
def test_feature_of_the_official_client_works_with_the_options(
    name: str, played: dict[str, Played]
) -> None:
    assert name in played, f"no answer; the client printed: {read_log(RELEASE)}"
    assert played[name].is_right, played[name].failure


@pytest.mark.parametrize("check", PUSH_CHECKS, ids=lambda check: check.__name__)
def test_push_consumer_pops_with_the_options(
    namesrv_addr: str, check: Callable[[str], None]
) -> None:
    check(namesrv_addr)


async def receive(consumer: SimpleConsumer, count: int, invisible_ms: int) -> list[PoppedMessage]:
    taken: list[PoppedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            most = min(count - len(taken), MESSAGES_MAX)
            taken += await consumer.receive(most, invisible_ms=invisible_ms)
    return taken


def test_simple_consumer_settles_with_the_options(namesrv_addr: str) -> None:
    topic = name_of("PopOptions")
    group = f"{topic}-group"

    async def run() -> None:
        await make_topics(namesrv_addr, topic, queues=2)
        await test_push_popping.send(namesrv_addr, topic, *map(str, range(60)))
        async with SimpleConsumer(group, namesrv_addr, start="earliest") as consumer:
            consumer.subscribe(topic)
            taken = await receive(consumer, 50, SHORT_MS)
            await consumer.ack(taken[0])
            await consumer.ack_all(taken[1:30])
            await consumer.change_invisible(taken[30], LONG_MS)
            await consumer.ack(taken[30])
            await consumer.give_back(taken[31])
            late = taken[31:]
            rest = await receive(consumer, 10, LONG_MS)
            again = [one for one in rest if one.reconsume_times]
            rest = [one for one in rest if not one.reconsume_times]
            rest += await receive(consumer, 10 - len(rest), LONG_MS)
            while len(again) < len(late):
                again += await receive(consumer, len(late) - len(again), LONG_MS)
            assert {one.body for one in again} == {one.body for one in late}
            assert {(one.topic, one.reconsume_times) for one in again} == {(topic, 1)}
            await consumer.ack_all([*again, *rest])
            assert await consumer.receive(wait_ms=WAIT_MS) == []
        bodies = [one.body for one in (*taken[:31], *again, *rest)]
        assert sorted(bodies, key=int) == [b"%d" % number for number in range(60)]
        async with AdminClient(namesrv_addr) as admin:
            topics = set(await admin.topic_list())
        assert retry_topic_v2(group, topic) in topics
        assert retry_topic_v1(group, topic) not in topics

    asyncio.run(run())
