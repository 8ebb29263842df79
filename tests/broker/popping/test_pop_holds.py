"""Held pops: waking by messages, the order of wake-ups, time-outs and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, cast

import pytest

from kourou.broker.popping.pop_holds import (
    ALL_QUEUES,
    EXPIRED_MAX,
    SERVED_MAX,
    HoldLimits,
    HoldResult,
    PopHolds,
)
from kourou.broker.pulling.long_polling import ArrivedMessage
from kourou.remoting.connection import Connection
from kourou.testing.loop import VirtualTimeLoop, run_virtual
from kourou.testing.peers import FakePeer
from tests.broker.pulling.test_long_polling import News

served: list[str] = []


@pytest.fixture(autouse=True)
def _forget_served() -> None:
    served.clear()


@dataclass(frozen=True)
class OnlyTag:
    """Accepts messages with one tags code."""

    tags_code: int
    cost: int = 1

    def matches(self, message: ArrivedMessage) -> bool:
        return message.tags_code == self.tags_code


class Request:
    """A held request, which notes that it is served, and blocks the loop meanwhile."""

    def __init__(self, name: str, peer: FakePeer | None = None, takes_s: float = 0) -> None:
        self.name = name
        self.peer = peer or FakePeer()
        self.takes_s = takes_s

    @property
    def connection(self) -> Connection:
        return cast(Connection, self.peer)

    def serve_again(self) -> None:
        served.append(self.name)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.advance(self.takes_s)


def retry_topics(topic: str, group: str) -> list[str]:
    return [f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}"]


def table(*, wakes_latest: bool = False, per_key: int = 1024, in_all: int = 100_000) -> PopHolds:
    return PopHolds(lambda: HoldLimits(per_key, in_all), retry_topics, wakes_latest=wakes_latest)


def hold(
    holds: PopHolds,
    name: str,
    *,
    wait_ms: int = 1_000,
    queue_id: int = ALL_QUEUES,
    group: str = "g",
    topic: str = "T",
    peer: FakePeer | None = None,
    tags_code: int | None = None,
    takes_s: float = 0,
) -> HoldResult:
    wanted = None if tags_code is None else OnlyTag(tags_code)
    return holds.hold(Request(name, peer, takes_s), (topic, group, queue_id), wait_ms, wanted)


async def turn() -> None:
    """Let woken requests be served."""
    for _ in range(3):
        await asyncio.sleep(0)


def in_loop(test: Coroutine[Any, Any, None]) -> None:
    run_virtual(test)


def test_message_wakes_one_request_for_all_queues_and_one_for_its_queue_in_each_group() -> None:
    async def test() -> None:
        holds = table()
        for group in ("g", "h"):
            for number in range(2):
                hold(holds, f"{group}-all-{number}", group=group, wait_ms=1000 + number)
                hold(holds, f"{group}-0-{number}", group=group, queue_id=0, wait_ms=1000 + number)
            hold(holds, f"{group}-1", group=group, queue_id=1)
        holds.on_arrivals([News()])
        await turn()
        assert sorted(served) == ["g-0-0", "g-all-0", "h-0-0", "h-all-0"]
        holds.close()

    in_loop(test())


def test_request_that_expires_first_is_woken_first() -> None:
    async def test() -> None:
        holds = table()
        for name, wait_ms in (("late", 900), ("soon", 300), ("middle", 500)):
            hold(holds, name, wait_ms=wait_ms)
        for _ in range(3):
            holds.on_arrivals([News()])
            await turn()
        assert served == ["soon", "middle", "late"]

    in_loop(test())


def test_notification_that_expires_last_is_woken_first() -> None:
    async def test() -> None:
        holds = table(wakes_latest=True)
        for name, wait_ms in (("late", 900), ("soon", 300)):
            hold(holds, name, wait_ms=wait_ms)
        holds.on_arrivals([News()])
        await turn()
        assert served == ["late"]
        holds.close()

    in_loop(test())


def test_wake_up_passes_over_closed_paused_and_unmatched_requests() -> None:
    async def test() -> None:
        holds = table()
        closed, paused = FakePeer(), FakePeer()
        hold(holds, "closed", wait_ms=100, peer=closed)
        hold(holds, "paused", wait_ms=200, peer=paused)
        hold(holds, "other tag", wait_ms=300, tags_code=7)
        hold(holds, "wanted", wait_ms=400, tags_code=8)
        closed.close("gone")
        paused.is_paused = True
        holds.on_arrivals([News(tags_code=8)])
        await turn()
        assert served == ["wanted"]
        paused.is_paused = False
        assert paused.on_resumed is not None
        paused.on_resumed(cast(Connection, paused))
        await turn()
        assert served == ["wanted", "paused"], "it missed a message while its peer did not read"
        holds.close()

    in_loop(test())


def test_wake_up_of_request_whose_connection_closes_before_it_is_served_goes_to_the_next() -> None:
    async def test() -> None:
        holds = table()
        closing = FakePeer()
        hold(holds, "closing", wait_ms=100, peer=closing)
        hold(holds, "next", wait_ms=200)
        holds.wake("T", "g", ALL_QUEUES)
        closing.close("gone")
        await turn()
        assert served == ["next"]

    in_loop(test())


def test_message_of_retry_topic_of_either_version_wakes_requests_of_its_group() -> None:
    async def test() -> None:
        holds = table()
        hold(holds, "own", wait_ms=100)
        hold(holds, "own 3", queue_id=3, wait_ms=100)
        hold(holds, "other", group="h")
        holds.on_arrivals([News(topic="%RETRY%g+T")])
        await turn()
        assert sorted(served) == ["own", "own 3"]
        served.clear()
        hold(holds, "again")
        holds.on_arrivals([News(topic="%RETRY%g_T"), News(topic="%RETRY%g")])
        await turn()
        assert served == ["again"]
        holds.close()

    in_loop(test())


def test_request_is_served_at_the_end_of_its_time_and_at_most_a_tick_later() -> None:
    async def test() -> None:
        holds = table()
        hold(holds, "late", wait_ms=500)
        hold(holds, "soon", wait_ms=95)
        await asyncio.sleep(0.094)
        assert served == []
        await asyncio.sleep(0.030)
        assert served == ["soon"]
        await asyncio.sleep(0.400)
        assert served == ["soon", "late"]
        assert len(holds) == 0

    in_loop(test())


def test_requests_beyond_a_limit_or_their_time_are_not_held() -> None:
    async def test() -> None:
        holds = table(per_key=2, in_all=5)
        assert hold(holds, "late", wait_ms=0) is HoldResult.LATE
        results = [hold(holds, f"a{number}") for number in range(4)]
        # As in Java, one request more than the limit is held.
        assert results == [HoldResult.HELD] * 3 + [HoldResult.FULL]
        assert [hold(holds, "b", queue_id=number) for number in range(3)] == [
            HoldResult.HELD,
            HoldResult.HELD,
            HoldResult.FULL,
        ]
        assert holds.count_of("T", "g", ALL_QUEUES) == 3
        assert holds.count_of("T", "g", 2) == holds.count_of("U", "g", 0) == 0
        holds.close()

    in_loop(test())


def test_requests_of_closed_connection_are_dropped() -> None:
    async def test() -> None:
        holds = table()
        peer = FakePeer()
        for number in range(3):
            hold(holds, f"{number}", queue_id=number, peer=peer)
        holds.on_connection_closed(cast(Connection, peer))
        assert len(holds) == 0
        await asyncio.sleep(2)
        assert served == []

    in_loop(test())


def test_deleted_topic_and_stopped_group_end_all_their_requests() -> None:
    async def test() -> None:
        holds = table()
        hold(holds, "T g", queue_id=1)
        hold(holds, "T h", group="h")
        hold(holds, "U g", topic="U")
        holds.serve_topic("T")
        await turn()
        assert sorted(served) == ["T g", "T h"]
        holds.serve_group("g")
        await turn()
        assert sorted(served) == ["T g", "T h", "U g"]
        assert len(holds) == 0

    in_loop(test())


def test_requests_that_expire_together_are_served_in_several_iterations() -> None:
    async def test() -> None:
        holds = table(per_key=10_000)
        count = 3 * SERVED_MAX
        for number in range(count):
            hold(holds, f"{number}", wait_ms=95)
        await asyncio.sleep(0.094)
        most = before = 0
        while len(served) < count:
            await asyncio.sleep(0 if served else 0.001)
            most, before = max(most, len(served) - before), len(served)
        assert most == EXPIRED_MAX
        assert served == [str(number) for number in range(count)]

    in_loop(test())


def test_other_tasks_run_between_woken_requests_that_take_long() -> None:
    async def test() -> None:
        holds = table()
        for number in range(10):
            hold(holds, f"{number}", topic=f"T{number}", takes_s=0.003)
        holds.on_arrivals([News(topic=f"T{number}") for number in range(10)])
        most = before = len(served)
        while len(served) < 10:
            await asyncio.sleep(0)
            most, before = max(most, len(served) - before), len(served)
        assert most == 2

    in_loop(test())


def test_request_with_the_tick_of_one_that_was_woken_expires_on_time() -> None:
    async def test() -> None:
        holds = table()
        hold(holds, "woken", wait_ms=500)
        holds.on_arrivals([News()])
        hold(holds, "late", wait_ms=500)
        await asyncio.sleep(0.530)
        assert served == ["woken", "late"]

    in_loop(test())


def test_many_woken_requests_are_served_in_several_iterations() -> None:
    async def test() -> None:
        holds = table()
        count = 3 * SERVED_MAX
        for number in range(count):
            hold(holds, f"{number}", topic=f"T{number}")
        holds.on_arrivals([News(topic=f"T{number}") for number in range(count)])
        assert 0 < len(served) <= SERVED_MAX
        await asyncio.sleep(0.001)
        assert len(served) == count

    in_loop(test())
