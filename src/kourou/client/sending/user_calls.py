"""Calls of functions that users gave: plain ones on threads of the producer's own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kourou.remoting.runtime import Offload

T = TypeVar("T")
ArgumentT = TypeVar("ArgumentT")


class UserCalls:
    """Calls functions, at most so many plain ones at once; others wait for their turn.

    Args:
        threads_max: of the pool, which starts them when they are first needed.
        name: of the threads.
        run_blocking: runs plain functions in place of the pool, for tests.
    """

    def __init__(self, threads_max: int, name: str, run_blocking: Offload | None = None) -> None:
        self._run_blocking = run_blocking
        self._threads = (
            ThreadPoolExecutor(threads_max, thread_name_prefix=name)
            if run_blocking is None
            else None
        )

    async def call(
        self, function: Callable[[ArgumentT], T | Awaitable[T]], argument: ArgumentT
    ) -> T:
        """Return what the function returns, or what it returns to be awaited.

        Cancelling stops waiting for a plain function, not the function.
        """
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - of an object that can be called
        ):
            value: Any = function(argument)
        elif self._threads is None:
            assert self._run_blocking is not None
            value = await self._run_blocking(function, argument)
        else:
            value = await asyncio.wrap_future(self._threads.submit(function, argument))
        return await value if inspect.isawaitable(value) else value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Take no more calls; threads end with the functions that they run."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
