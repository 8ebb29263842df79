"""Clocks that a test moves: by hand, or together with the virtual-time loop."""

from __future__ import annotations

import asyncio
from typing import Final

EPOCH_MS: Final = 1_700_000_000_000
"""Where a simulation starts: 2023-11-14 22:13:20 UTC, a date that looks like one in a message."""


class ManualClock:
    """A clock that stands still until it is told."""

    def __init__(self, now_ms: int = EPOCH_MS) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Move by `ms` milliseconds; a negative number steps back, as a system's clock may."""
        self._now_ms += ms


class LoopClock:
    """A clock that goes with the running loop: virtual time 0 is `epoch_ms`."""

    def __init__(self, epoch_ms: int = EPOCH_MS) -> None:
        self._epoch_ms = epoch_ms

    def now_ms(self) -> int:
        # The loop adds up floats; a timer set for 300 ms must not see 299.
        return self._epoch_ms + int(asyncio.get_running_loop().time() * 1000 + 1e-3)

    def step(self, ms: int) -> None:
        """Set the clock by `ms` milliseconds, back if negative, as a time server may."""
        self._epoch_ms += ms
