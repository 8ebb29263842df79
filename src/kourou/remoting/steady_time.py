"""Time that only grows: the event loop's, for what must not end early when a wall clock is set."""

from __future__ import annotations

import asyncio


def steady_ms() -> int:
    """Return the running loop's time in ms; its zero has no meaning."""
    # The loop counts in floats, and a timer may fire a nanosecond early: one that was set for
    # 300 ms must not see 299.
    return int(asyncio.get_running_loop().time() * 1000 + 1e-3)
