"""Notices that something blocks the event loop, so that heartbeats and pulls come late."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
LATE_S: Final = 3.0
"""How late the loop must be. Brokers forget a client after 120 s without heartbeat."""


async def watch_loop() -> None:
    """Look whether the loop wakes us in time; the first time that it is late is logged."""
    loop = asyncio.get_running_loop()
    late_s = 0.0
    while late_s < LATE_S:
        due_s = loop.time() + LOOK_INTERVAL_S
        await asyncio.sleep(LOOK_INTERVAL_S)
        late_s = loop.time() - due_s
    log.warning(
        "event_loop.blocked late_s=%.1f reason=%s",
        late_s,
        "a coroutine function does not give the loop back: heartbeats come late, and brokers "
        "forget this client after 120 s; let it await, or listen with a plain function, which "
        "runs on a thread",
    )
