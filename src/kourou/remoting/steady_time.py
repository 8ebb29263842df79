"""Monotonic time of the event loop, for deadlines that a change of the wall clock must not move."""

from __future__ import annotations

import asyncio


def steady_ms() -> int:
    """Return the running loop's time in ms; its zero has no meaning."""
    # The loop's time is a float, and a timer may fire a nanosecond early: a timer set for 300 ms
    # must not read 299.
    return int(asyncio.get_running_loop().time() * 1000 + 1e-3)
