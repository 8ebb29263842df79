"""Calls of users' functions: plain functions run on the producer's own threads."""

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
    """Calls users' functions, at most `threads_max` plain ones at the same time.

    Args:
        threads_max: size of the thread pool; threads are started on first use.
        name: prefix of the thread names.
        run_blocking: runs plain functions instead of the pool, for tests.
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
        """Call a function and return its result; an awaitable result is awaited.

        Cancelling ends the wait for a plain function, but not the function.
        """
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - the method of a callable object
        ):
            value: Any = function(argument)
        elif self._threads is None:
            assert self._run_blocking is not None
            value = await self._run_blocking(function, argument)
        else:
            value = await asyncio.wrap_future(self._threads.submit(function, argument))
        return await value if inspect.isawaitable(value) else value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Refuse further calls; threads end when their current function returns."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
