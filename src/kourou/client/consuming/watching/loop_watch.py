"""Detects a blocked event loop, which delays heartbeats and pulls."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
LATE_S: Final = 3.0
"""Seconds of delay that are reported. Brokers remove a client after 120 s without heartbeat."""


async def watch_loop() -> None:
    """Measure the delay of the loop's wake-ups; log the first that exceeds `LATE_S` and return."""
    loop = asyncio.get_running_loop()
    late_s = 0.0
    while late_s < LATE_S:
        due_s = loop.time() + CHECK_INTERVAL_S
        await asyncio.sleep(CHECK_INTERVAL_S)
        late_s = loop.time() - due_s
    log.warning(
        "event_loop.blocked late_s=%.1f reason=%s",
        late_s,
        "a coroutine function blocks the event loop: heartbeats are late, and brokers remove "
        "this client after 120 s without one; let it await, or use a plain function as listener, "
        "which runs on a thread",
    )
