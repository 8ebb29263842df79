"""The background event loop of the blocking clients, and calls into it from other threads."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import functools
import logging
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
)

from kourou.client.lifetime import Lifetime
from kourou.client.process_identity import call_in_forked_children
from kourou.errors import UsageError
from kourou.model.message import MessageExt

P = ParamSpec("P")
R = TypeVar("R")
ClientT = TypeVar("ClientT")
LifetimeT = TypeVar("LifetimeT", bound=Lifetime)

log = logging.getLogger(__name__)


class BackgroundLoop:
    """An event loop on a daemon thread, started on first use; a forked child gets its own."""

    def __init__(self) -> None:
        self.reset()
        call_in_forked_children(self.reset)

    def reset(self) -> None:
        """Reset the state: a fork copies the loop, but not the thread that runs it."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: deque[_Call[Any]] = deque()
        self._is_scheduled = False

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run the coroutine that `call` returns in the loop, and return its result.

        An exception that interrupts the wait, such as Ctrl-C, cancels the coroutine and is raised
        after the coroutine has ended. That second wait can be interrupted as well.

        Raises:
            UsageError: called from the loop's own thread, which would wait for itself forever.
            BaseException: the exception of the coroutine.
        """
        loop = self._ensure_running()
        waiting = _Call(call)
        try:
            self._calls.append(waiting)
            # One system call wakes the loop for all calls that are queued before it runs. The loop
            # clears the flag before it reads the queue, so no call is missed.
            if not self._is_scheduled:
                self._is_scheduled = True
                loop.call_soon_threadsafe(self._begin_calls)
            waiting.wait()
        except BaseException:
            # Ctrl-C may have come after the flag was set, and before the loop was woken.
            loop.call_soon_threadsafe(self._begin_calls)
            if not waiting.is_ended:
                loop.call_soon_threadsafe(waiting.cancel)
                waiting.wait()
            raise
        return waiting.outcome()

    def _begin_calls(self) -> None:
        self._is_scheduled = False
        calls, loop = self._calls, asyncio.get_running_loop()
        while calls:
            calls.popleft().begin(loop)

    def _ensure_running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_serve, args=(loop,), name="kourou-blocking", daemon=True
                ).start()
        if asyncio._get_running_loop() is loop:  # noqa: SLF001  # the public one raises for None
            raise UsageError(
                "a blocking client was called from the loop that serves it, as by a listener that "
                "is a coroutine function: make the listener a plain function"
            )
        return loop


_EXIT_TOGETHER_S: Final = 1.0
"""Exits of listeners within this time interrupt the main thread only once: after the first it may
already be closing the clients."""


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop forever.

    If a listener calls `sys.exit`, the program ends, as with `asyncio.run`: the main thread is
    interrupted as by Ctrl-C. The loop keeps running, because calls into it would otherwise block
    forever.
    """
    interrupted_at_s = float("-inf")
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            log.exception("listener.exited remedy=%s", "the main thread is interrupted")
            if loop.time() - interrupted_at_s > _EXIT_TOGETHER_S:
                interrupted_at_s = loop.time()
                _interrupt_main_thread()


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)  # also interrupts a wait of the main thread
    else:
        _thread.interrupt_main()


class _Call(Generic[R]):
    """A call from another thread into the loop, with its outcome.

    It uses a lock instead of a `concurrent.futures.Future`, whose condition costs several times as
    much.
    """

    __slots__ = ("_ended", "_make", "_task", "is_ended")

    def __init__(self, make: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self._make = make
        self._task: asyncio.Task[R] | None = None
        self._ended = threading.Lock()
        self._ended.acquire()
        self.is_ended = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the coroutine. Called in the loop."""
        self._task = loop.create_task(self._run())
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Cancel the coroutine; `wait` returns only after it has ended. Called in the loop.

        All queued calls have begun: one that has not was interrupted before it was queued.
        """
        if self._task is not None:
            self._task.cancel()
        elif not self.is_ended:
            self.is_ended = True
            self._ended.release()

    def wait(self) -> None:
        """Block until the coroutine has ended."""
        self._ended.acquire()

    def outcome(self) -> R:
        """Return the result of the ended coroutine or raise its exception."""
        task, self._task = self._task, None
        try:
            assert task is not None, "the call has begun"
            if task.cancelled():
                raise concurrent.futures.CancelledError
            return task.result()
        finally:
            del task  # breaks a reference cycle: the exception refers to this frame

    async def _run(self) -> R:
        # Called in the loop, so that asyncio objects it creates belong to this loop.
        return await self._make()

    def _end(self, task: asyncio.Task[R]) -> None:
        if not task.cancelled():
            # Marked as retrieved: an interrupted caller does not retrieve the exception.
            task.exception()
        self.is_ended = True
        self._ended.release()


background: Final = BackgroundLoop()
"""The background loop of this process."""


class Blocking(Generic[LifetimeT]):
    """Base of the blocking clients: an asyncio client in the background loop, used by `with`.

    Args:
        make: returns the asyncio client; called in the loop.
    """

    def __init__(self, make: Callable[[], LifetimeT]) -> None:
        async def create() -> LifetimeT:
            return make()

        self._client = background.run(create)

    def start(self) -> None:
        """Start the client, as `with` does. Raises as `start` of the asyncio client."""
        background.run(self._client.start)

    def close(self) -> None:
        """Close the client, as `close` of the asyncio client; a second call has no effect."""
        background.run(self._client.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    if not TYPE_CHECKING:  # type checkers report it; Python's own error suggests no remedy

        async def __aenter__(self) -> NoReturn:
            name = type(self).__name__
            raise TypeError(f"use `with blocking.{name}(...)`, or `async with kourou.{name}(...)`")

        async def __aexit__(self, *_: object) -> None: ...


def blocking_method(
    method: Callable[Concatenate[ClientT, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Blocking[Any], P], R]:
    """Return a blocking method that runs the coroutine method `method` of the asyncio client."""

    @functools.wraps(method)
    def wait(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return background.run(lambda: method(self._client, *args, **kwargs))

    return wait


def loop_method(
    method: Callable[Concatenate[ClientT, P], R],
) -> Callable[Concatenate[Blocking[Any], P], R]:
    """Return a method that calls the plain method `method` of the asyncio client, in its loop."""

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def inside() -> R:
            return method(self._client, *args, **kwargs)

        return background.run(inside)

    return call


class MessageIterator:
    """Iterator over the messages of a consumer, for one `for` loop.

    Fetching the next message acknowledges the previous one. If the loop is left by `break` or an
    exception, its last message stays unacknowledged.
    """

    def __init__(self, make: Callable[[], AsyncIterator[MessageExt]]) -> None:
        async def create() -> AsyncIterator[MessageExt]:
            return make()

        self._messages = background.run(create)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageExt:
        async def fetch_next() -> MessageExt | None:
            return await anext(self._messages, None)

        message = background.run(fetch_next)
        if message is None:
            raise StopIteration
        return message
