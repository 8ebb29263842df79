"""Runs clients until SIGINT or SIGTERM, and lets them end cleanly then.

Python's own answer to SIGTERM ends the process at once: what a consumer has handled since its last
commit is delivered again. A service manager, `docker stop` and Kubernetes all send SIGTERM.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Protocol, TypeVar, overload

from kourou.client.process_identity import ProcessGuard
from kourou.errors import UsageError

T = TypeVar("T")

_Handler = Callable[[int, FrameType | None], Any] | int | None
"""What `signal.signal` returns and takes."""

END_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)
"""SIGBREAK is Windows' Ctrl-Break, by which services are stopped there."""


class EndSignals:
    """Calls functions upon the first SIGINT or SIGTERM; a second signal ends the process at once.

    One object for a process, because a process has one handler for each signal. Handlers are
    installed by the main thread, as long as it is within `installed` or `calling`, and the earlier
    ones restored after. A handler of the program's own is never replaced, nor is a signal that is
    ignored.
    """

    def __init__(self) -> None:
        self._ends: list[Callable[[], object]] = []
        self._last_resorts: list[Callable[[], object]] = []
        self._depth = 0
        self._replaced: dict[int, _Handler] = {}
        self._guard = ProcessGuard()
        self._is_asked = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have the handlers within the block; outside of the main thread this does nothing."""
        if threading.current_thread() is not threading.main_thread() or self._guard.is_forked:
            yield
            return
        self._depth += 1
        try:
            if self._depth == 1:
                self._install()
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._restore()

    @contextmanager
    def calling(self, end: Callable[[], object], *, is_last_resort: bool = False) -> Iterator[None]:
        """Call `end` upon the first signal, while the block runs and the handlers are installed.

        Args:
            end: called on the main thread; or at once, where the signal came before the block.
            is_last_resort: call it only if no other function is registered then.
        """
        registered = self._last_resorts if is_last_resort else self._ends
        with self.installed():
            registered.append(end)
            try:
                if self._is_asked:
                    end()
                yield
            finally:
                registered.remove(end)

    def _install(self) -> None:
        for number in END_SIGNALS:
            before = signal.getsignal(number)
            if _is_pythons_own(before):
                self._replaced[number] = before
                signal.signal(number, self._on_signal)

    def _restore(self) -> None:
        replaced, self._replaced = self._replaced, {}
        self._is_asked = False
        for number, before in replaced.items():
            if signal.getsignal(number) in (self._on_signal, signal.SIG_DFL):
                signal.signal(number, before)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._guard.is_forked:  # a child has the handler, and none of the clients
            signal.signal(number, self._replaced[number])
            signal.raise_signal(number)
            return
        self._is_asked = True
        for each in self._replaced:
            signal.signal(each, signal.SIG_DFL)  # also ends a main thread that is stuck
        for end in tuple(self._ends or self._last_resorts):
            end()


end_signals: Final = EndSignals()
"""The one of this process."""


class Runnable(Protocol):
    """A client that `run` can run, such as `PushConsumer`."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

    async def run_forever(self) -> None: ...


@overload
def run(program: Runnable) -> None: ...


@overload
def run(program: Coroutine[Any, Any, T]) -> T | None: ...


def run(program: Runnable | Coroutine[Any, Any, T]) -> T | None:
    """Run a consumer in a new event loop until SIGINT (Ctrl-C) or SIGTERM; end it cleanly then.

    At the signal the consumer stops pulling, its listeners end, what they have done
    is committed, and this returns. A second signal ends the process at once.

        consumer = PushConsumer("billing", "localhost:9876")
        consumer.subscribe("OrderPlaced")
        consumer.listen(charge)
        kourou.run(consumer)

    A program of several clients, or one that iterates or polls, is a coroutine:
    `kourou.run(main())` is `asyncio.run(main())`, but SIGTERM, too, ends it in order. While a
    `run_forever` waits in it, a signal ends that; otherwise it cancels the coroutine, so that
    `async with` closes the clients.

    Args:
        program: a consumer with a listener, or a coroutine.

    Returns:
        What the coroutine returned; None for a consumer, or if a signal came first.

    Raises:
        UsageError: `program` is neither, or an event loop runs in this thread already.
        Exception: whatever the consumer's start or the coroutine raises.
    """
    main: Coroutine[Any, Any, T | None]
    if isinstance(program, Coroutine):
        main = _until_signal(program)
    elif inspect.iscoroutinefunction(getattr(program, "run_forever", None)) and not isinstance(
        program, type
    ):
        main = _start_and_run(program)
    else:
        raise UsageError(
            f"run takes a PushConsumer of asyncio or a coroutine, not {type(program).__name__}; a "
            "consumer of kourou.blocking runs by `with consumer: consumer.run_forever()`"
        )
    if _is_loop_running():
        for one in (main, program):
            if isinstance(one, Coroutine):
                one.close()  # what never began would warn of that
        raise UsageError("an event loop runs in this thread already: await `run_forever` in it")
    with asyncio.Runner() as runner:
        return runner.run(main)


async def _start_and_run(client: Runnable) -> None:
    # A signal that comes during the start is remembered, and ends the wait at once.
    with end_signals.installed():
        async with client:
            await client.run_forever()


async def _until_signal(main: Coroutine[Any, Any, T]) -> T | None:
    """Return what `main` returns; None if a signal came and had it cancelled."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main)
    is_asked = False

    def cancel() -> None:
        nonlocal is_asked
        is_asked = True
        loop.call_soon_threadsafe(task.cancel)

    with end_signals.calling(cancel, is_last_resort=True):
        try:
            return await task
        except asyncio.CancelledError:
            if is_asked and task.cancelled():
                return None
            raise


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_pythons_own(handler: _Handler) -> bool:
    """Return whether a program that sets no handlers has this one: Python's, or asyncio's."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    called = handler.func if isinstance(handler, functools.partial) else handler
    return getattr(called, "__module__", None) == asyncio.Runner.__module__
