"""Consumers end cleanly on SIGINT and SIGTERM: listeners end, and their offsets are committed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest

import kourou
from kourou.client.running import END_SIGNALS, end_signals, run
from kourou.errors import ClosedError, UsageError
from kourou.model.message import MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import recording

BODIES = [b"%d" % number for number in range(6)]


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in END_SIGNALS]


@contextmanager
def handler_set(number: int, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Set Python's handlers, because a shell ignores SIGINT in background processes."""
    with (
        handler_set(signal.SIGINT, signal.default_int_handler),
        handler_set(signal.SIGTERM, signal.SIG_DFL),
    ):
        yield


@pytest.mark.parametrize("number", END_SIGNALS)
def test_signal_ends_run_forever_and_commits_processed_messages(number: int) -> None:
    async def main() -> None:
        before = handlers()
        async with recording() as w:
            await w.send(*BODIES)
            consumer = w.consumer()
            async with consumer:
                await w.until_received(*BODIES)
                assert await w.committed() == 0  # only each 5 s
                asyncio.get_running_loop().call_soon(signal.raise_signal, number)
                await consumer.run_forever()
                assert handlers() == before
                assert await w.committed() == len(BODIES)

    run_virtual(main())


def test_signal_waits_for_a_running_listener() -> None:
    async def main() -> None:
        async with recording() as w:
            done: list[bytes] = []

            async def slow(message: MessageExt) -> None:
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(5)
                done.append(message.body)

            consumer = w.consumer(slow)
            await w.send(b"x")
            await consumer.start()
            await consumer.run_forever()
            assert done == [b"x"]
            assert await w.committed() == 1

    run_virtual(main())


def test_signal_ends_all_consumers_of_a_task_group() -> None:
    async def main() -> None:
        async with recording() as w:
            await w.send(*BODIES)
            first, second = w.consumer(group="first"), w.consumer(group="second")
            async with first, second:
                await w.until_received(*BODIES, *BODIES)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(first.run_forever())
                    tasks.create_task(second.run_forever())
                    await asyncio.sleep(0)
                    signal.raise_signal(signal.SIGTERM)
            assert await w.committed("first") == await w.committed("second") == len(BODIES)

    run_virtual(main())


def test_consumer_started_after_the_signal_ends_too() -> None:
    async def main() -> None:
        async with recording() as w:
            first, second = w.consumer(group="first"), w.consumer(group="second")
            async with first, second:
                first_waits = asyncio.create_task(first.run_forever())
                await asyncio.sleep(0)
                signal.raise_signal(signal.SIGTERM)
                await second.run_forever()
                await first_waits
                for consumer in (first, second):
                    with pytest.raises(ClosedError):
                        await consumer.run_forever()

    run_virtual(main())


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_previous_handlers_are_restored_when_no_signal_arrives(how: str) -> None:
    async def main() -> None:
        before = handlers()
        async with recording() as w, w.consumer() as consumer:
            waiting = asyncio.create_task(consumer.run_forever())
            await asyncio.sleep(1)
            assert all(a != b for a, b in zip(handlers(), before, strict=True))
            if how == "close":
                await consumer.close()
                await waiting
            else:
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert consumer.health().is_open
            assert handlers() == before

    run_virtual(main())


@pytest.mark.parametrize("own", [lambda *_: None, signal.SIG_IGN])
def test_program_handlers_and_ignored_signals_are_kept(own: Any) -> None:
    async def main() -> None:
        async with recording() as w, w.consumer() as consumer:
            waiting = asyncio.create_task(consumer.run_forever())
            await asyncio.sleep(1)
            assert signal.getsignal(signal.SIGTERM) is own
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(1)
            assert not waiting.done()
            signal.raise_signal(signal.SIGINT)  # ignored by the program
            await waiting

    with handler_set(signal.SIGTERM, own):
        run_virtual(main())


def test_no_handlers_are_installed_outside_the_main_thread() -> None:
    before = handlers()
    outcome: list[str] = []

    async def main() -> None:
        async with recording() as w, w.consumer() as consumer:
            waiting = asyncio.create_task(consumer.run_forever())
            await asyncio.sleep(1)
            assert handlers() == before
            await consumer.close()
            await waiting
            outcome.append("ended")

    thread = threading.Thread(target=lambda: run_virtual(main()))
    thread.start()
    thread.join(60)
    assert outcome == ["ended"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_handles_signals_by_default() -> None:
    async def main() -> None:
        async with recording() as w, w.consumer() as consumer:
            waiting = asyncio.create_task(consumer.run_forever())
            await asyncio.sleep(1)
            child = os.fork()
            if child == 0:
                signal.raise_signal(signal.SIGTERM)
                os._exit(1)  # not reached
            _, status = os.waitpid(child, 0)  # noqa: ASYNC222  # it has ended by now
            assert os.WTERMSIG(status) == signal.SIGTERM
            await consumer.close()
            await waiting

    run_virtual(main())


# run


def test_run_returns_the_result_or_raises_the_error_of_the_coroutine() -> None:
    async def seven() -> int:
        return 7

    async def fails() -> int:
        raise ZeroDivisionError

    assert kourou.run(seven()) == 7
    with pytest.raises(ZeroDivisionError):
        run(fails())


@pytest.mark.parametrize("number", END_SIGNALS)
def test_signal_cancels_a_coroutine_without_run_forever(number: int) -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            asyncio.get_running_loop().call_soon(signal.raise_signal, number)
            await asyncio.Event().wait()
        finally:
            ended.append("in order")

    before = handlers()
    assert run(main()) is None
    assert ended == ["in order"]
    assert handlers() == before


def test_cancellation_without_a_signal_is_raised() -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        run(main())


class Waits:
    """A client that runs until a signal and records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def __aenter__(self) -> Self:
        self.calls.append("start")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.calls.append("close")

    async def run_forever(self) -> None:
        self.calls.append("run")


def test_signal_during_start_ends_run_after_the_start() -> None:
    class SignalledAtStart(Waits):
        async def __aenter__(self) -> Self:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
            return await super().__aenter__()

        async def run_forever(self) -> None:
            over = asyncio.Event()
            with end_signals.registered(over.set):
                await over.wait()

    client = SignalledAtStart()
    run(client)
    assert client.calls == ["start", "close"]


def test_cancelled_start_commits_processed_messages() -> None:
    async def main() -> None:
        async with recording(brokers=2) as w:
            async with w.cluster.admin() as admin:
                await admin.create_topic("Z", broker_name="broker-1")
            await w.send(*BODIES)
            consumer = w.consumer()
            consumer.subscribe("Z")

            @consumer.on_queues_changed  # called in order of topics: the start then waits for Z
            def stall(*_: object) -> None:
                if not w.received:
                    w.cluster.network.stall(w.cluster.broker_address(1))

            starting = asyncio.create_task(consumer.start())
            await w.until(lambda: len(w.received) > 0)
            assert not starting.done()
            starting.cancel()
            w.cluster.network.heal(w.cluster.broker_address(1))
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert await w.committed() == len(w.received)

    run_virtual(main())


def test_run_starts_runs_and_closes_a_client() -> None:
    client = Waits()
    run(client)
    assert client.calls == ["start", "run", "close"]


@pytest.mark.parametrize("wrong", [None, print, Waits])
def test_run_refuses_invalid_programs(wrong: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match=r"run takes an asyncio PushConsumer or a coroutine, not"):
        run(wrong)  # type: ignore[call-overload]


def test_run_within_an_event_loop_is_refused_without_a_warning() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="an event loop already runs"):
            run(asyncio.sleep(0))

    asyncio.run(main())
