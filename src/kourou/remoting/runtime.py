"""What a server or client needs of the world: network, clock, randomness, a way off the loop.

They are arguments so that a simulation can replace each of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, ParamSpec, Protocol, TypeVar

from kourou.clock import Clock, SystemClock, elapsed_s
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
    """The outside world of one server or client."""

    network: Network
    clock: Clock
    random: random.Random
    offload: Offload
    timer: Callable[[], float]
    """Seconds that pass while a callback runs, for what ends its turn after a while."""

    @classmethod
    def system(cls) -> Runtime:
        """Return the real world: TCP, the system's clock, unseeded randomness, four threads."""
        return cls(TcpNetwork(), SystemClock(), random.Random(), _ThreadOffload(), elapsed_s)


class _ThreadOffload:
    """A small thread pool. Its threads start when first needed and end with the process."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(OFFLOAD_THREADS, thread_name_prefix="kourou-offload")

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        future = self._executor.submit(function, *args, **kwargs)
        return asyncio.wrap_future(future)
