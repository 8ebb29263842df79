"""Runs clients until SIGINT or SIGTERM, then closes them cleanly.

By default SIGTERM ends a Python process at once, and messages that a consumer has processed since
its last commit are delivered again. Service managers, `docker stop` and Kubernetes send SIGTERM.
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
"""Type of the handlers that `signal.signal` takes and returns."""

END_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)
"""Signals that end a program. SIGBREAK is Ctrl-Break on Windows, by which services are stopped."""


class EndSignals:
    """Calls functions on the first SIGINT or SIGTERM; a second signal ends the process at once.

    There is one object per process, because a process has one handler for each signal. The handlers
    are installed while the main thread is within `installed` or `registered`, and then the earlier
    ones are restored. Handlers that the program has set, and ignored signals, are never replaced.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], object]] = []
        self._fallbacks: list[Callable[[], object]] = []
        self._depth = 0
        self._replaced: dict[int, _Handler] = {}
        self._guard = ProcessGuard()
        self._is_signaled = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the handlers for the block; no effect outside the main thread."""
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
    def registered(
        self, callback: Callable[[], object], *, is_fallback: bool = False
    ) -> Iterator[None]:
        """Call `callback` on the first signal that arrives while the handlers are installed.

        Args:
            callback: called in the main thread during the block. If the signal came before the
                block, it is called at the beginning of the block.
            is_fallback: call `callback` only if no other function is registered when the signal
                arrives.
        """
        callbacks = self._fallbacks if is_fallback else self._callbacks
        with self.installed():
            callbacks.append(callback)
            try:
                if self._is_signaled:
                    callback()
                yield
            finally:
                callbacks.remove(callback)

    def _install(self) -> None:
        for number in END_SIGNALS:
            before = signal.getsignal(number)
            if _is_default_handler(before):
                self._replaced[number] = before
                signal.signal(number, self._on_signal)

    def _restore(self) -> None:
        replaced, self._replaced = self._replaced, {}
        self._is_signaled = False
        for number, before in replaced.items():
            if signal.getsignal(number) in (self._on_signal, signal.SIG_DFL):
                signal.signal(number, before)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._guard.is_forked:  # a child inherits the handler, but not the clients
            signal.signal(number, self._replaced[number])
            signal.raise_signal(number)
            return
        self._is_signaled = True
        for each in self._replaced:
            # The default action of a second signal ends the process even if the main thread hangs.
            signal.signal(each, signal.SIG_DFL)
        for callback in tuple(self._callbacks or self._fallbacks):
            callback()


end_signals: Final = EndSignals()
"""The only instance in this process."""


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
    """Run a consumer in a new event loop until SIGINT (Ctrl-C) or SIGTERM, then close it cleanly.

    On the signal the consumer stops pulling and waits for its listeners, commits the offsets of
    processed messages, and this function returns. A second signal ends the process at once.

        consumer = PushConsumer("billing", "localhost:9876")
        consumer.subscribe("OrderPlaced")
        consumer.listen(charge)
        kourou.run(consumer)

    A program with several clients, or one that iterates or polls, is passed as a coroutine:
    `kourou.run(main())` is `asyncio.run(main())` with clean shutdown also on SIGTERM. If
    `run_forever` is waiting in the coroutine, a signal ends that wait. Otherwise it cancels the
    coroutine, so that `async with` closes the clients.

    Args:
        program: a consumer with a listener, or a coroutine.

    Returns:
        The result of the coroutine; None for a consumer, or if a signal cancelled the coroutine.

    Raises:
        UsageError: `program` is neither, or an event loop already runs in this thread.
        Exception: any exception of the consumer's `start` or of the coroutine.
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
            f"run takes an asyncio PushConsumer or a coroutine, not {type(program).__name__}; run "
            "a consumer of kourou.blocking by `with consumer: consumer.run_forever()`"
        )
    if _is_loop_running():
        for one in (main, program):
            if isinstance(one, Coroutine):
                one.close()  # avoids the warning that it was never awaited
        raise UsageError("an event loop already runs in this thread: await `run_forever` in it")
    with asyncio.Runner() as runner:
        return runner.run(main)


async def _start_and_run(client: Runnable) -> None:
    # A signal during the start is remembered and ends `run_forever` at once.
    with end_signals.installed():
        async with client:
            await client.run_forever()


async def _until_signal(main: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `main`; None if a signal cancelled it."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(main)
    is_signaled = False

    def cancel() -> None:
        nonlocal is_signaled
        is_signaled = True
        loop.call_soon_threadsafe(task.cancel)

    with end_signals.registered(cancel, is_fallback=True):
        try:
            return await task
        except asyncio.CancelledError:
            if is_signaled and task.cancelled():
                return None
            raise


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_default_handler(handler: _Handler) -> bool:
    """Return whether the handler is a default one, of Python or asyncio, not set by the program."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    called = handler.func if isinstance(handler, functools.partial) else handler
    return getattr(called, "__module__", None) == asyncio.Runner.__module__
