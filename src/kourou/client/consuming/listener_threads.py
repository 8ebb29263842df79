"""Threads for listeners that are plain functions.

Each consumer has its own pool, so that a blocking listener delays only its own consumer's messages:
heartbeats, pulls and other consumers run elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ListenerThreads:
    """A pool of at most `threads_max` threads, started on demand."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix=name)

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run `function` on a thread. Cancelling ends the wait, not the function."""
        return asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def resize(self, threads_max: int) -> None:
        """Set the maximum number of threads; functions already submitted finish on old threads."""
        old, self._executor = (
            self._executor,
            ThreadPoolExecutor(threads_max, thread_name_prefix=self._name),
        )
        old.shutdown(wait=False)

    def close(self) -> None:
        """Refuse new work and cancel queued work; threads end with their running functions."""
        self._executor.shutdown(wait=False, cancel_futures=True)
