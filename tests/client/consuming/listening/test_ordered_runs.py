"""Ordered listeners called in runs, one message at a time. Real threads."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listening.consume_order import QueueOrder
from kourou.client.consuming.listening.consume_orderly import (
    RUN_MESSAGES,
    OrderedRuns,
    OrderlyConsumption,
)
from kourou.client.consuming.listening.ordered_calls import OrderedCall
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.client.user_functions import UserThreads
from kourou.clock import SystemClock
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.inspection import end_threads
from tests.client.consuming.listening.threads_rig import Gate, Hook, ListenerParts, until
from tests.client.consuming.messages import QUEUE, message_at

P = ParamSpec("P")
T = TypeVar("T")

COUNT = 500


class Locks:
    """Locks whose validity the test sets.

    Attributes:
        left_s: remaining validity in seconds.
        asked: number of lock requests.
    """

    def __init__(self) -> None:
        self.left_s = math.inf
        self.asked = 0

    def valid_s(self, queue: MessageQueue) -> float:
        del queue
        return self.left_s

    async def lock(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        self.asked += 1
        self.left_s = math.inf
        return set(queues)


class Threads(UserThreads):
    """Counts the calls that are passed to a thread."""

    def __init__(self, threads_max: int) -> None:
        super().__init__(threads_max, "listener")
        self.hops = 0

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        self.hops += 1
        return super().__call__(function, *args, **kwargs)


class Rig:
    """An unconnected consumer whose ordered listener receives the messages that are put here."""

    def __init__(
        self, parts: ListenerParts, consumption: OrderlyConsumption, threads: Threads
    ) -> None:
        self.parts = parts
        self.threads = threads
        self.consumption = consumption
        self.process_queue = ProcessQueue(QUEUE)

    def put(self, first: int, count: int) -> None:
        messages = [message_at(offset) for offset in range(first, first + count)]
        self.consumption.put(self.process_queue, self.process_queue.put(messages))

    @property
    def committable(self) -> int | None:
        return self.parts.offsets.get(QUEUE)

    async def until_committable(self, offset: int) -> None:
        await until(lambda: self.committable == offset)


@asynccontextmanager
async def consuming(
    listener: Callable[[Any], object], locks: Locks | None = None, **options: Any
) -> AsyncIterator[Rig]:
    config = PushConsumerConfig(suspend_queue_ms=10, **options)
    threads = Threads(config.consume_threads)
    parts = ListenerParts(config, threads)
    parts.listener.register_ordered(listener)
    assert isinstance(parts.listener.call, OrderedCall)
    consumption = OrderlyConsumption(
        parts.listener.call,
        config,
        clock=SystemClock(),
        locks=Locks() if locks is None else locks,
        acknowledgements=parts.acknowledgements,
        offsets=parts.offsets,
    )
    try:
        yield Rig(parts, consumption, threads)
    finally:
        await consumption.close()
        threads.close()


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_messages_are_delivered_once_in_order_and_are_committable(is_coroutine: bool) -> None:
    got: list[int] = []

    def listen(message: MessageExt) -> None:
        got.append(message.queue_offset)

    async def listen_on_loop(message: MessageExt) -> None:
        got.append(message.queue_offset)
        if message.queue_offset % 7 == 0:
            await asyncio.sleep(0)

    async def main() -> None:
        async with consuming(listen_on_loop if is_coroutine else listen) as rig:
            for first in range(0, COUNT, 50):
                rig.put(first, 50)
                await asyncio.sleep(0)
            await rig.until_committable(COUNT)
            stats = rig.parts.stats.counts("T")
            assert (stats.ok, stats.failed, stats.calls) == (COUNT, 0, COUNT)
            assert not rig.process_queue.started

    asyncio.run(main())
    assert got == list(range(COUNT))


def test_one_hop_to_a_thread_serves_many_messages() -> None:
    async def main() -> None:
        async with consuming(lambda _: None) as rig:
            rig.put(0, COUNT)
            await rig.until_committable(COUNT)
            assert rig.threads.hops == math.ceil(COUNT / RUN_MESSAGES)

    asyncio.run(main())


@pytest.mark.parametrize("failure", [ValueError, GeneratorExit])
@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_failed_message_is_delivered_again_before_later_ones(
    failure: type[BaseException], *, is_coroutine: bool
) -> None:
    got: list[tuple[int, int]] = []

    def listen(message: MessageExt) -> None:
        got.append((message.queue_offset, message.reconsume_times))
        if message.queue_offset == 3 and message.reconsume_times < 2:
            raise failure

    async def listen_on_loop(message: MessageExt) -> None:
        listen(message)

    async def main() -> None:
        async with consuming(listen_on_loop if is_coroutine else listen) as rig:
            rig.put(0, 6)
            await rig.until_committable(6)
            stats = rig.parts.stats.counts("T")
            assert (stats.ok, stats.failed) == (6, 2)

    asyncio.run(main())
    assert got == [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (4, 0), (5, 0)]


def test_a_returned_awaitable_is_awaited_before_the_next_call() -> None:
    events: list[str] = []

    async def later(offset: int) -> None:
        await asyncio.sleep(0.001)
        events.append(f"done {offset}")

    def listen(message: MessageExt) -> object:
        events.append(f"got {message.queue_offset}")
        return later(message.queue_offset) if message.queue_offset % 2 else None

    async def main() -> None:
        async with consuming(listen) as rig:
            rig.put(0, 4)
            await rig.until_committable(4)

    asyncio.run(main())
    assert events == ["got 0", "got 1", "done 1", "got 2", "got 3", "done 3"]


def test_a_lost_queue_starts_no_further_call_and_commits_nothing() -> None:
    async def main() -> None:
        gate = Gate(3)
        async with consuming(gate.listen) as rig:
            rig.put(0, 10)
            await gate.reached()
            await rig.until_committable(3)
            rig.process_queue.drop()
            gate.open()
            assert await rig.consumption.drain(rig.process_queue, 10)
        assert gate.received == [0, 1, 2, 3]
        assert rig.committable == 3

    asyncio.run(main())


def test_a_revoked_queue_finishes_and_commits_its_running_call() -> None:
    async def main() -> None:
        gate = Gate(3)
        async with consuming(gate.listen) as rig:
            rig.put(0, 10)
            await gate.reached()
            assert not await rig.consumption.drain(rig.process_queue, 0.01)
            gate.open()
            assert await rig.consumption.drain(rig.process_queue, 10)
            assert rig.committable == 4
        assert gate.received == [0, 1, 2, 3]

    asyncio.run(main())


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_a_lock_that_expires_during_a_run_is_requested_before_the_next_call(
    is_coroutine: bool,
) -> None:
    locks = Locks()
    locks.left_s = 0.05
    got: list[tuple[int, int]] = []
    wait = threading.Event().wait

    def listen(message: MessageExt) -> None:
        got.append((message.queue_offset, locks.asked))
        if message.queue_offset == 3:
            wait(0.06)
            locks.left_s = -1

    async def listen_on_loop(message: MessageExt) -> None:
        listen(message)
        await asyncio.sleep(0)

    async def main() -> None:
        async with consuming(listen_on_loop if is_coroutine else listen, locks) as rig:
            rig.put(0, 6)
            await rig.until_committable(6)

    asyncio.run(main())
    assert got == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]


def test_queues_take_turns_on_one_thread_even_with_short_turns() -> None:
    async def main() -> None:
        pause = threading.Event().wait
        async with consuming(
            lambda _: pause(0.002) and None, consume_threads=1, consume_continuously_ms=1
        ) as rig:
            other = ProcessQueue(MessageQueue("T", "broker-a", 1))
            rig.put(0, 5)
            rig.consumption.put(other, other.put([message_at(offset) for offset in range(5)]))
            await rig.until_committable(5)
            assert len(other) <= 1

    asyncio.run(main())


@pytest.mark.parametrize(("locked_s", "calls"), [(math.inf, 1), (-1.0, 0)])
def test_a_run_delivers_one_message_without_time_and_none_without_a_lock(
    locked_s: float, calls: int
) -> None:
    got: list[int] = []

    async def main() -> None:
        async with consuming(lambda message: got.append(message.queue_offset)) as rig:
            call, order = rig.parts.listener.call, QueueOrder(rig.process_queue)
            assert isinstance(call, OrderedCall)
            order.put(rig.process_queue.put([message_at(0), message_at(1)]))
            runs = OrderedRuns(call.for_queue(QUEUE), order, SystemClock(), lambda: None)
            assert await runs.run(0.0, locked_s) is None
            assert len(order.finished) == calls
            assert not order.taken

    asyncio.run(main())
    assert got == [0][:calls]


def test_close_abandons_a_call_that_exceeds_the_shutdown_timeout() -> None:
    async def main() -> None:
        gate = Gate(3)
        async with consuming(gate.listen, shutdown_timeout_ms=1) as rig:
            rig.put(0, 10)
            await gate.reached()
        assert rig.committable == 3
        assert not await rig.consumption.drain(rig.process_queue, 0)
        rig.process_queue.drop()
        gate.open()
        await end_threads(rig.threads)
        await asyncio.sleep(0)  # runs the callbacks that the thread scheduled
        assert await rig.consumption.drain(rig.process_queue, 0)
        assert gate.received == [0, 1, 2, 3]
        assert rig.committable == 3

    asyncio.run(main())


def test_a_hook_added_during_a_run_sees_each_later_message() -> None:
    hook = Hook()

    async def main() -> None:
        gate = Gate(3)
        async with consuming(gate.listen) as rig:
            rig.put(0, 10)
            await gate.reached()
            rig.parts.hooks.add(hook)
            gate.open()
            await rig.until_committable(10)
        assert gate.received == list(range(10))
        assert hook.seen == list(range(4, 10))

    asyncio.run(main())
