"""Clocks for tests: advanced by the test, or following the virtual-time loop."""

from __future__ import annotations

import asyncio
from typing import Final

EPOCH_MS: Final = 1_700_000_000_000
"""Start of a simulation: 2023-11-14 22:13:20 UTC, a plausible time for a message."""


class ManualClock:
    """A clock that only moves when the test advances it."""

    def __init__(self, now_ms: int = EPOCH_MS) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move by `ms` milliseconds; backward if negative, as a system clock may."""
        self._now_ms += ms


class LoopClock:
    """A clock that follows the running loop: virtual time 0 is `epoch_ms`."""

    def __init__(self, epoch_ms: int = EPOCH_MS) -> None:
        self._epoch_ms = epoch_ms

    def now_ms(self) -> int:
        # The loop sums floats: without the rounding, a timer set for 300 ms might see 299.
        return self._epoch_ms + int(asyncio.get_running_loop().time() * 1000 + 1e-3)

    def step(self, ms: int) -> None:
        """Shift the clock by `ms` milliseconds, backward if negative, as a time server may."""
        self._epoch_ms += ms
