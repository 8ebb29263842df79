"""The runtime of a simulation: a network in memory, loop time, seeded randomness, no threads."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kourou.remoting.network import Network
from kourou.remoting.runtime import Runtime
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.network import MemoryNetwork

P = ParamSpec("P")
T = TypeVar("T")


def sim_runtime(seed: int = 0, network: Network | None = None, epoch_ms: int = EPOCH_MS) -> Runtime:
    """Return a runtime that is deterministic for a seed.

    Args:
        seed: of random choices, and of the network if none is passed.
        network: must be the same for all servers and clients that connect to each other.
        epoch_ms: wall-clock time at virtual time 0, epoch milliseconds.
    """
    return Runtime(
        network or MemoryNetwork(seed),
        LoopClock(epoch_ms),
        random.Random(seed),
        call_directly,
        timer=lambda: 0.0,  # callbacks take no time
    )


async def call_directly(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` at once, on the loop; the simulated disk never blocks."""
    return function(*args, **kwargs)
