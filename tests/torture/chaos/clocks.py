"""Jumps and drifts of the broker's wall clock, recorded in the ledger.

The clients' clocks stay correct. A delayed message may be delivered too early by as much as the
broker's clock jumped while the message waited. A due time that was computed while the clock was
ahead is only reached when the clock is ahead again: so the clock is finally set ahead of all
earlier values, before missing messages count as lost. Nothing expires, because no jump lasts for
`clockSettleMinutes`.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from pathlib import Path
from random import Random
from typing import Final

from tests.torture.chaos.ledger import Ledger

HOUR_MS: Final = 3_600_000
JUMPS_MS: Final = (HOUR_MS, 73 * HOUR_MS, -HOUR_MS)
DRIFT_MS: Final = 50
"""Drift per second, forward or back: 5 %."""
LAST_MS: Final = 60_000
"""The final clock is this much ahead of its highest earlier offset."""
SETTINGS: Final = f"deleteWhen={';'.join(f'{hour:02}' for hour in range(24))}\n"
"""Files expire at any hour, so that a jump could cause harm."""


class FakedClock:
    """The wall clock of processes that are started with `environ`.

    Args:
        file: created here; the processes read the offset of their clock from it.
        ledger: records each change of the clock.
    """

    def __init__(self, file: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), 8)
        self._ahead_ms = self._latest_ms = 0
        faked = str(Path(__file__).with_name("faked_clock"))
        inherited = os.environ.get("PYTHONPATH")
        self.environ = {
            "PYTHONPATH": os.pathsep.join((faked, inherited) if inherited else (faked,)),
            "CHAOS_CLOCK": str(file),
        }

    def _step(self, ms: int) -> None:
        self._ahead_ms += ms
        self._latest_ms = max(self._latest_ms, self._ahead_ms)
        self._ledger.note_clock(self._ahead_ms)
        struct.pack_into("q", self._shared, 0, self._ahead_ms * 1_000_000)

    async def jump(self, dice: Random) -> None:
        """Jump and drift until cancelled; most of the time the clock is correct."""
        while True:
            await asyncio.sleep(dice.uniform(1, 12))
            drift_ms = dice.choice((-DRIFT_MS, DRIFT_MS))
            if dice.random() < 0.5:
                jump_ms = dice.choice(JUMPS_MS)
                self._step(jump_ms)
                self._ledger.counts[f"jumps of the clock by {jump_ms // HOUR_MS} h"] += 1
                await asyncio.sleep(dice.choice((0.3, 1, 4)))
                self._step(-jump_ms)
            else:
                for _ in range(10):
                    self._step(drift_ms)
                    await asyncio.sleep(1)
                self._step(-self._ahead_ms)

    def advance(self) -> None:
        """Set the clock ahead of all its earlier values."""
        self._step(self._latest_ms - self._ahead_ms + LAST_MS)
