"""Threads for listeners that are plain functions.

They are a pool of each consumer's own, so that a listener that blocks keeps up nothing but itself:
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
    """At most so many threads, started when first needed."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix=name)

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run `function` on a thread. Cancelling stops waiting for it, not the function."""
        return asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def resize(self, threads_max: int) -> None:
        """Have at most so many threads from now on; those that run functions first end them."""
        old, self._executor = (
            self._executor,
            ThreadPoolExecutor(threads_max, thread_name_prefix=self._name),
        )
        old.shutdown(wait=False)

    def close(self) -> None:
        """Take no more work; threads end with the functions that they run."""
        self._executor.shutdown(wait=False, cancel_futures=True)
