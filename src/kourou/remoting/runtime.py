"""The environment of a server or client: network, clock, randomness, offloading, timer.

They are passed as arguments so that a simulation can replace each of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, ParamSpec, Protocol, TypeVar

from kourou.clock import Clock, SystemClock, boot_id, elapsed_s
from kourou.remoting.network import Network, TcpNetwork

P = ParamSpec("P")
T = TypeVar("T")

OFFLOAD_THREADS: Final = 4
"""Threads for blocking disk work; more would not make one disk faster."""


class Offload(Protocol):
    """Runs a blocking function off the event loop and returns its result or raises its error."""

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...


@dataclass(frozen=True)
class Runtime:
    """The environment of one server or client."""

    network: Network
    clock: Clock
    random: random.Random
    offload: Offload
    timer: Callable[[], float]
    """Returns elapsed seconds, also within a callback; for work that yields to the loop after some
    time."""
    boot_id: Callable[[], str | None] = lambda: None
    """Returns the id of the time since the machine started, see `kourou.clock.boot_id`."""

    @classmethod
    def system(cls) -> Runtime:
        """Return the real environment: TCP, system clock, unseeded randomness, four threads."""
        return cls(
            TcpNetwork(), SystemClock(), random.Random(), _ThreadOffload(), elapsed_s, boot_id
        )


class _ThreadOffload:
    """A small thread pool. Its threads start on demand and end with the process."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(OFFLOAD_THREADS, thread_name_prefix="kourou-offload")

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        future = self._executor.submit(function, *args, **kwargs)
        return asyncio.wrap_future(future)
