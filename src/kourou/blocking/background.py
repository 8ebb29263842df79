"""The event loop behind the blocking clients, and how a call from another thread reaches it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from kourou.client.lifetime import Lifetime
from kourou.errors import UsageError
from kourou.model.message import MessageExt

P = ParamSpec("P")
R = TypeVar("R")
ClientT = TypeVar("ClientT")
LifetimeT = TypeVar("LifetimeT", bound=Lifetime)


class BackgroundLoop:
    """An event loop on a daemon thread, started when first needed; a forked child gets its own."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Start anew: a fork copies the loop, but not the thread that runs it."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run what `call` makes in the loop, and return its result or raise its exception.

        What interrupts the wait, such as Ctrl-C, cancels the coroutine, is raised when that has
        ended, and may interrupt that wait too.

        Raises:
            UsageError: called from the loop's own thread, which would wait for itself for ever.
        """
        loop = self._running()
        outcome: concurrent.futures.Future[R] = concurrent.futures.Future()
        tasks: list[asyncio.Task[R]] = []

        async def made_inside() -> R:
            return await call()  # what it makes on the way then belongs to that loop

        def begin() -> None:
            task = loop.create_task(made_inside())
            tasks.append(task)
            task.add_done_callback(functools.partial(_settle, outcome))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        loop.call_soon_threadsafe(begin)
        try:
            return outcome.result()
        except BaseException:
            if not outcome.done():
                loop.call_soon_threadsafe(cancel)
                concurrent.futures.wait([outcome])
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            loop = self._loop
            if loop is None:
                loop = self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=loop.run_forever, name="kourou-blocking", daemon=True
                ).start()
        if asyncio._get_running_loop() is loop:  # noqa: SLF001  # the public one raises for None
            raise UsageError(
                "a blocking client was called from the loop that serves it, as by a listener that "
                "is a coroutine function: make the listener a plain function"
            )
        return loop


def _settle(outcome: concurrent.futures.Future[R], task: asyncio.Task[R]) -> None:
    if task.cancelled():
        outcome.cancel()
        outcome.set_running_or_notify_cancel()  # wakes who waits; `cancel` alone does not
        return
    error = task.exception()
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


background: Final = BackgroundLoop()
"""The one loop of this process."""


class Blocking(Generic[LifetimeT]):
    """A client that lives in the background loop, and `with`.

    Args:
        make: makes the asyncio client; called in the loop.
    """

    def __init__(self, make: Callable[[], LifetimeT]) -> None:
        async def made() -> LifetimeT:
            return make()

        self._client = background.run(made)

    def start(self) -> None:
        """Begin to work; `with` does it. Raises what `start` of the asyncio client raises."""
        background.run(self._client.start)

    def close(self) -> None:
        """End, as `close` of the asyncio client; a second time is harmless."""
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


def waits(
    method: Callable[Concatenate[ClientT, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Blocking[Any], P], R]:
    """Return the method of a blocking client that waits for `method` of its asyncio client."""

    @functools.wraps(method)
    def wait(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return background.run(lambda: method(self._client, *args, **kwargs))

    return wait


def calls(
    method: Callable[Concatenate[ClientT, P], R],
) -> Callable[Concatenate[Blocking[Any], P], R]:
    """Return the method that calls the plain `method` of the asyncio client, in its loop."""

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def inside() -> R:
            return method(self._client, *args, **kwargs)

        return background.run(inside)

    return call


class Messages:
    """What one `for` over a consumer steps through.

    Asking for the next message acknowledges the one before; leaving the loop, by break or
    exception, leaves it unacknowledged.
    """

    def __init__(self, make: Callable[[], AsyncIterator[MessageExt]]) -> None:
        async def made() -> AsyncIterator[MessageExt]:
            return make()

        self._messages = background.run(made)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageExt:
        async def following() -> MessageExt | None:
            return await anext(self._messages, None)

        message = background.run(following)
        if message is None:
            raise StopIteration
        return message
