"""Reading at chosen offsets, with a real broker on a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.consuming.pull_consumer import PullConsumer, PullStatus
from kourou.errors import (
    ClosedError,
    ConnectFailedError,
    FilterSyntaxError,
    InvalidTopicError,
    NoRouteError,
    RemoteError,
    RequestTimeoutError,
    UsageError,
)
from kourou.model.queue import MessageQueue
from kourou.protocol.record.decode import decode_messages
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from kourou.testing.runtime import sim_runtime

QUEUE = MessageQueue(TOPIC, "broker-0", 0)
Body = Callable[[Recording, PullConsumer], Coroutine[Any, Any, None]]


def with_reader(body: Body) -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.pull_consumer() as reader:
            await body(w, reader)

    run_virtual(main())


def test_a_queue_is_read_from_any_offset_to_its_end() -> None:
    async def body(w: Recording, reader: PullConsumer) -> None:
        await w.send(*[b"%d" % number for number in range(50)])
        assert await reader.fetch_subscribe_message_queues(TOPIC) == [QUEUE]
        assert (await reader.min_offset(QUEUE), await reader.max_offset(QUEUE)) == (0, 50)

        result = await reader.pull(QUEUE, 10, max_messages=5)
        assert result.status is PullStatus.FOUND
        assert [message.body for message in result.messages] == [
            b"10",
            b"11",
            b"12",
            b"13",
            b"14",
        ]
        assert (result.next_offset, result.min_offset, result.max_offset) == (15, 0, 50)
        assert {message.broker_name for message in result.messages} == {"broker-0"}
        assert [one.queue_offset for one in decode_messages(result.raw)] == [10, 11, 12, 13, 14]

        end = await reader.pull(QUEUE, 50)
        assert (end.status, end.next_offset, end.messages) == (PullStatus.NO_NEW_MSG, 50, [])
        beyond = await reader.pull(QUEUE, 99)
        assert (beyond.status, beyond.next_offset) == (PullStatus.OFFSET_ILLEGAL, 0)

    with_reader(body)


def test_tags_are_checked_exactly() -> None:
    async def body(w: Recording, reader: PullConsumer) -> None:
        await w.send(b"no", tags="BB")  # the hash of Aa
        await w.send(b"yes", tags="Aa")
        await w.send(b"no", tags="other")

        result = await reader.pull(QUEUE, 0, tags="Aa || more")
        assert [message.body for message in result.messages] == [b"yes"]
        assert (await reader.pull(QUEUE, 0, tags="absent")).status is PullStatus.NO_MATCHED_MSG

    with_reader(body)


def test_a_wait_ends_with_the_first_message_or_its_timeout() -> None:
    async def body(w: Recording, reader: PullConsumer) -> None:
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(reader.pull_or_wait(QUEUE, 0))
        await asyncio.sleep(3)
        assert not waiting.done()
        await w.send(b"x")
        started_at = loop.time()
        assert [message.body for message in (await waiting).messages] == [b"x"]
        assert loop.time() - started_at < 0.1

        started_at = loop.time()
        result = await reader.pull_or_wait(QUEUE, 1, wait_ms=2000)
        assert result.status is PullStatus.NO_NEW_MSG
        assert 1.9 < loop.time() - started_at < 8

    with_reader(body)


def test_a_wait_survives_a_restart_of_the_broker() -> None:
    async def body(w: Recording, reader: PullConsumer) -> None:
        waiting = asyncio.create_task(reader.pull_or_wait(QUEUE, 0))
        await asyncio.sleep(1)
        await w.cluster.crash_broker()
        await asyncio.sleep(1)
        await w.cluster.restart_broker()
        await w.send(b"x")
        assert [message.body for message in (await waiting).messages] == [b"x"]

    with_reader(body)


def test_committed_offsets_belong_to_the_group_and_may_be_lowered() -> None:
    async def body(w: Recording, reader: PullConsumer) -> None:
        await w.send(*[b"x"] * 20)
        assert await reader.committed(QUEUE) is None
        await reader.pull(QUEUE, 0)  # the broker creates the group
        await reader.commit(QUEUE, 12)
        assert await reader.committed(QUEUE) == 12
        await reader.commit(QUEUE, 3)
        assert await reader.committed(QUEUE) == 3
        async with w.cluster.pull_consumer("others") as other:
            assert await other.committed(QUEUE) is None

    with_reader(body)


def test_an_offset_is_found_by_time() -> None:
    async def body(w: Recording, reader: PullConsumer) -> None:
        await w.send(*[b"x"] * 5)
        await asyncio.sleep(60)
        noon_ms = w.cluster.runtime.clock.now_ms()
        await asyncio.sleep(60)
        await w.send(*[b"y"] * 5)

        assert await reader.offset_for_time(QUEUE, 0) == 0
        assert await reader.offset_for_time(QUEUE, noon_ms) == 5
        assert await reader.offset_for_time(QUEUE, noon_ms, upper=True) == 4
        assert await reader.offset_for_time(QUEUE, noon_ms + 3_600_000) == 10

    with_reader(body)


def test_calls_survive_a_broker_outage_of_a_second() -> None:
    async def body(w: Recording, reader: PullConsumer) -> None:
        await w.send(b"x")
        await reader.pull(QUEUE, 0)
        await w.cluster.crash_broker()
        reading = asyncio.create_task(reader.pull(QUEUE, 0))
        await asyncio.sleep(1)
        await w.cluster.restart_broker()
        assert [message.body for message in (await reading).messages] == [b"x"]

    with_reader(body)


def test_a_silent_broker_causes_a_timeout() -> None:
    async def body(w: Recording, reader: PullConsumer) -> None:
        await reader.pull(QUEUE, 0)
        w.cluster.network.stall(w.cluster.broker_address())
        started_at = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimeoutError):
            await reader.pull(QUEUE, 0, timeout_ms=800)
        assert asyncio.get_running_loop().time() - started_at == pytest.approx(0.8, abs=0.05)
        w.cluster.network.heal(w.cluster.broker_address())

    with_reader(body)


def test_bad_arguments_are_refused_before_any_request() -> None:
    async def main() -> None:
        reader = PullConsumer("g", "127.0.0.1:19876", runtime=sim_runtime())
        with pytest.raises(ClosedError, match="not started"):
            await reader.pull(QUEUE, 0)
        async with reader:
            with pytest.raises(UsageError, match="-1 is negative"):
                await reader.pull(QUEUE, -1)
            with pytest.raises(UsageError, match="-1 is negative"):
                await reader.commit(QUEUE, -1)
            with pytest.raises(UsageError, match="max_messages is 0: allowed are 1 to 1024"):
                await reader.pull(QUEUE, 0, max_messages=0)
            with pytest.raises(FilterSyntaxError):
                await reader.pull(QUEUE, 0, tags="||")
            with pytest.raises(InvalidTopicError):
                await reader.fetch_subscribe_message_queues("a b")
            assert asyncio.get_running_loop().time() == 0
            with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:19876.*kourou serve"):
                await reader.fetch_subscribe_message_queues(TOPIC)
        with pytest.raises(ClosedError, match="pull consumer is closed"):
            await reader.committed(QUEUE)

    run_virtual(main())


def test_missing_topics_and_brokers_are_named() -> None:
    async def body(_: Recording, reader: PullConsumer) -> None:
        with pytest.raises(NoRouteError, match="the topic absent"):
            await reader.fetch_subscribe_message_queues("absent")
        with pytest.raises(NoRouteError, match="broker elsewhere"):
            await reader.min_offset(MessageQueue(TOPIC, "elsewhere", 0))
        with pytest.raises(RemoteError):
            await reader.pull(MessageQueue(TOPIC, "broker-0", 99), 0)

    with_reader(body)
