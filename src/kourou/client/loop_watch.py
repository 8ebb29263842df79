"""Notices that something blocks the event loop, so that heartbeats and pulls come late."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 1.0
LATE_S: Final = 3.0
"""How late the loop must be. Brokers forget a client after 120 s without heartbeat."""


class LoopWatch:
    """Looks whether it is woken in time.

    Attributes:
        late_s: how late the loop was at its worst, in seconds.
    """

    def __init__(self) -> None:
        self.late_s = 0.0

    async def run(self) -> None:
        """Look until cancelled. The first time that the loop is late is logged."""
        loop = asyncio.get_running_loop()
        is_told = False
        while True:
            due_s = loop.time() + LOOK_INTERVAL_S
            await asyncio.sleep(LOOK_INTERVAL_S)
            late_s = loop.time() - due_s
            self.late_s = max(self.late_s, late_s)
            if late_s >= LATE_S and not is_told:
                is_told = True
                log.warning(
                    "event_loop.blocked late_s=%.1f reason=%s",
                    late_s,
                    "a coroutine function does not give the loop back: heartbeats come late, and "
                    "brokers forget this client after 120 s; let it await, or listen with a plain "
                    "function, which runs on a thread",
                )
