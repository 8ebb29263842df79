"""Listeners called in runs: a slow call delays no other message. Real threads, a real loop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listening.consume_concurrently import ConcurrentConsumption
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.clock import SystemClock
from kourou.model.message import MessageExt
from kourou.testing.inspection import end_threads
from tests.client.consuming.listening.threads_rig import Hook, ListenerParts, until
from tests.client.consuming.messages import QUEUE, message_at

COUNT = 200


class Rig:
    """An unconnected consumer whose listener receives the messages that are put here."""

    def __init__(self, parts: ListenerParts, consumption: ConcurrentConsumption) -> None:
        self.parts = parts
        self.problems = consumption.problems
        self.process_queue = ProcessQueue(QUEUE)

    def put(self, first: int, count: int) -> None:
        messages = [message_at(offset) for offset in range(first, first + count)]
        self.parts.ready.put(self.process_queue, self.process_queue.put(messages))

    @property
    def committable(self) -> int | None:
        return self.parts.offsets.get(QUEUE)

    async def until_committable(self, offset: int) -> None:
        await until(lambda: self.committable == offset)


@asynccontextmanager
async def consuming(
    listener: Callable[[Any], object], *, threads: int = 4, in_batches: bool = False, **options: Any
) -> AsyncIterator[Rig]:
    config = PushConsumerConfig(consume_threads=threads, **options)
    parts = ListenerParts(config)
    (parts.listener.register_batch if in_batches else parts.listener.register)(listener)
    assert parts.listener.call is not None
    assert parts.listener.threads is not None
    consumption = ConcurrentConsumption(
        parts.listener.call,
        config,
        clock=SystemClock(),
        ready=parts.ready,
        acknowledgements=parts.acknowledgements,
        redeliverer=parts.redeliverer,
    )
    consumption.start()
    try:
        yield Rig(parts, consumption)
    finally:
        parts.ready.close()
        await consumption.close()
        parts.listener.threads.close()


def test_threads_consume_every_message_once_and_all_is_committable() -> None:
    received: list[int] = []
    names: set[str] = set()

    def listen(message: MessageExt) -> None:
        received.append(message.queue_offset)
        names.add(threading.current_thread().name)

    async def main() -> None:
        async with consuming(listen) as rig:
            for first in range(0, COUNT, 20):
                rig.put(first, 20)
                await asyncio.sleep(0)
            await rig.until_committable(COUNT)
            stats = rig.parts.stats.counts("T")
            assert (stats.ok, stats.failed, stats.calls) == (COUNT, 0, COUNT)

    asyncio.run(main())
    assert Counter(received) == Counter(range(COUNT))
    assert all(name.startswith("kourou-group") for name in names)


def test_a_blocking_call_delays_its_own_commit_and_no_other_message() -> None:
    released = threading.Event()
    received: list[int] = []

    def listen(message: MessageExt) -> None:
        if message.queue_offset in {0, 3}:
            assert released.wait(10)
        received.append(message.queue_offset)

    async def main() -> None:
        async with consuming(listen) as rig:
            rig.put(0, COUNT)
            await until(lambda: len(received) == COUNT - 2)
            assert not rig.committable
            released.set()
            await rig.until_committable(COUNT)

    asyncio.run(main())


def test_done_messages_are_acknowledged_while_the_thread_continues() -> None:
    released = threading.Event()

    def listen(message: MessageExt) -> None:
        if message.queue_offset == 5:
            assert released.wait(10)

    async def main() -> None:
        async with consuming(listen, threads=1) as rig:
            rig.put(0, 10)
            await rig.until_committable(5)
            released.set()
            await rig.until_committable(10)

    asyncio.run(main())


def test_as_many_calls_run_at_a_time_as_there_are_threads() -> None:
    barrier = threading.Barrier(4, timeout=10)

    async def main() -> None:
        async with consuming(lambda _: barrier.wait() and None, threads=4) as rig:
            rig.put(0, 8)
            await rig.until_committable(8)
            stats = rig.parts.stats.counts("T")
            assert (stats.ok, stats.failed) == (8, 0), "no call waited for a fourth in vain"

    asyncio.run(main())


def test_an_awaitable_returned_by_a_plain_function_is_awaited_on_the_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def later() -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    async def main() -> None:
        async with consuming(lambda _: later()) as rig:
            rig.put(0, 5)
            await rig.until_committable(5)
            assert loops == [asyncio.get_running_loop()] * 5

    asyncio.run(main())


def test_a_hook_added_later_sees_every_message_from_then_on() -> None:
    hook = Hook()

    async def main() -> None:
        async with consuming(lambda _: None) as rig:
            rig.put(0, 5)
            await rig.until_committable(5)
            rig.parts.hooks.add(hook)
            rig.put(5, 5)
            await rig.until_committable(10)

    asyncio.run(main())
    assert sorted(hook.seen) == [5, 6, 7, 8, 9]


class Unusual(BaseException):
    """An exception that bypasses `except Exception`, as test frameworks raise."""


class Proxy:
    """Raises even when its class is read, as context-bound proxies do."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        raise LookupError


FAILURES: dict[str, Callable[[], object]] = {
    "StopIteration": lambda: next(iter(())),
    "CancelledError": lambda: _raise(asyncio.CancelledError()),
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "no Exception": lambda: _raise(Unusual()),
    "what is returned": Proxy,
}


def _raise(error: BaseException) -> object:
    raise error


@pytest.mark.parametrize("way", ["in runs", "in batches", "with a hook", "on the loop"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_worker_survives_any_failure_of_its_listener(failure: str, way: str) -> None:
    received: list[int] = []

    def listen(argument: MessageExt | list[MessageExt]) -> object:
        offset = (argument[0] if isinstance(argument, list) else argument).queue_offset
        received.append(offset)
        return FAILURES[failure]() if offset == 0 and received.count(0) == 1 else None

    async def listen_on_loop(message: MessageExt) -> object:
        return listen(message)

    async def main() -> None:
        listener = listen_on_loop if way == "on the loop" else listen
        async with consuming(listener, threads=1, in_batches=way == "in batches") as rig:
            if way == "with a hook":
                rig.parts.hooks.add(Hook())
            rig.process_queue.advance(3)
            rig.put(0, 1)
            await until(lambda: received == [0])
            rig.put(1, 2)
            await until(lambda: received[-1] == 2)
        assert received == [0, 1, 2]

    asyncio.run(main())


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_health_reports_workers_ended_by_an_exit(*, is_coroutine: bool) -> None:
    """The event loop may outlive a listener's exit, as that of the blocking clients does."""

    def listen(_: MessageExt) -> object:
        return _raise(SystemExit("enough"))

    async def listen_on_loop(_: MessageExt) -> object:
        return _raise(SystemExit("enough"))

    async def main(is_over: asyncio.Event) -> list[str]:
        async with consuming(listen_on_loop if is_coroutine else listen, threads=2) as rig:
            assert rig.problems() == []
            rig.put(0, 1)
            await is_over.wait()
            return rig.problems()

    loop = asyncio.new_event_loop()
    try:
        is_over = asyncio.Event()
        running = loop.create_task(main(is_over))
        with pytest.raises(SystemExit, match="enough"):
            loop.run_until_complete(running)
        is_over.set()
        [problem] = loop.run_until_complete(running)
    finally:
        loop.close()
    assert problem.startswith(
        "1 of 2 workers of the listener have stopped, the last one: SystemExit("
    )


def test_only_done_messages_are_committable_at_any_time() -> None:
    finished: set[int] = set()

    async def later(offset: int) -> None:
        await asyncio.sleep(0)
        finished.add(offset)

    def listen(message: MessageExt) -> object:
        offset = message.queue_offset
        if offset == COUNT:
            raise ValueError  # no broker accepts it back: it stays held
        if offset % 3 == 0:
            return later(offset)
        finished.add(offset)
        return None

    async def main() -> None:
        async with consuming(listen) as rig:
            committable = 0
            for first in range(0, 2 * COUNT, 10):
                rig.put(first, 10)
                await asyncio.sleep(0)
                committable = rig.committable or 0
                assert finished.issuperset(range(committable))
            await until(lambda: len(finished) == 2 * COUNT - 1)
            await rig.until_committable(COUNT)
            await until(lambda: len(rig.process_queue) == 1)
            assert rig.committable == COUNT
            assert rig.process_queue.started == [COUNT]

    asyncio.run(main())


def test_close_abandons_a_call_that_exceeds_the_shutdown_timeout() -> None:
    began, released, ended = threading.Event(), threading.Event(), threading.Event()

    def listen(message: MessageExt) -> None:
        if message.queue_offset == 3:
            began.set()
            assert released.wait(10)
            ended.set()

    async def main() -> None:
        async with consuming(listen, threads=1, shutdown_timeout_ms=1) as rig:
            rig.put(0, 10)
            assert await asyncio.to_thread(began.wait, 10)
        assert rig.committable == 3
        rig.process_queue.drop()
        released.set()
        assert rig.parts.listener.threads is not None
        await end_threads(rig.parts.listener.threads)
        assert ended.is_set()
        await asyncio.sleep(0)  # runs the callbacks that the thread scheduled
        assert rig.committable == 3

    asyncio.run(main())


def test_messages_of_a_dropped_queue_are_not_delivered() -> None:
    began, released = threading.Event(), threading.Event()
    received: list[int] = []

    def listen(message: MessageExt) -> None:
        received.append(message.queue_offset)
        began.set()
        assert released.wait(10)

    async def main() -> None:
        async with consuming(listen, threads=1) as rig:
            rig.put(0, 10)
            assert await asyncio.to_thread(began.wait, 10)
            rig.process_queue.drop()
            released.set()
        assert received == [0]
        assert rig.committable is None

    asyncio.run(main())


def test_coroutines_consume_every_message_once_and_a_slow_one_delays_its_own_commit() -> None:
    received: list[int] = []

    async def main() -> None:
        released = asyncio.Event()

        async def listen(message: MessageExt) -> None:
            if message.queue_offset in {40, 43}:
                await released.wait()
            elif message.queue_offset % 7 == 0:
                await asyncio.sleep(0)
            received.append(message.queue_offset)

        async with consuming(listen) as rig:
            for first in range(0, COUNT, 50):
                rig.put(first, 50)
            await until(lambda: len(received) == COUNT - 2)
            await rig.until_committable(40)
            assert rig.process_queue.started == [40, 43]
            released.set()
            await rig.until_committable(COUNT)
            stats = rig.parts.stats.counts("T")
            assert (stats.ok, stats.failed, stats.calls) == (COUNT, 0, COUNT)

    asyncio.run(main())
    assert Counter(received) == Counter(range(COUNT))


def test_a_coroutine_s_done_messages_are_committable_during_its_next_call() -> None:
    async def main() -> None:
        released = asyncio.Event()
        done: list[int] = []

        async def listen(message: MessageExt) -> None:
            if message.queue_offset == 5:
                await released.wait()
            done.append(message.queue_offset)

        async with consuming(listen, threads=1) as rig:
            rig.put(0, 10)
            await rig.until_committable(5)
            assert done == [0, 1, 2, 3, 4]
            released.set()
            await rig.until_committable(10)
            assert done == [*range(10)]

    asyncio.run(main())


def test_a_coroutine_that_never_waits_yields_to_other_tasks() -> None:
    turns: list[int] = []

    async def main() -> None:
        received: list[int] = []

        async def listen(message: MessageExt) -> None:
            received.append(message.queue_offset)

        async with consuming(listen, threads=1) as rig:
            rig.put(0, 100)
            while len(received) < 100:
                turns.append(len(received))
                await asyncio.sleep(0)
            await rig.until_committable(100)

    asyncio.run(main())
    assert turns[-1] == 96
    assert set(turns) <= {0, 32, 64, 96}


def test_messages_done_before_coroutines_were_cancelled_are_committable() -> None:
    async def main() -> None:
        async def listen(message: MessageExt) -> None:
            if message.queue_offset == 3:
                await asyncio.Event().wait()

        async with consuming(listen, threads=1, shutdown_timeout_ms=1) as rig:
            rig.put(0, 10)
            await asyncio.sleep(0)
        assert rig.committable == 3
        assert rig.parts.stats.counts("T").failed == 1

    asyncio.run(main())
