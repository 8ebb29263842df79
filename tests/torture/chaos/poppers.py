"""Groups of pop consumers, whose members are processes that are killed and started again."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

from tests.torture.chaos.ledger import ORDERED_POPPERS, POPPERS, Arrival, Ledger
from tests.torture.chaos.pop_ledger import Popped, decode_event

MEMBERS: Final = {POPPERS: 3, ORDERED_POPPERS: 2}
"""Number of members by group."""
ALIVE_S: Final = (5.0, 25.0)


class Poppers:
    """All members.

    Args:
        ledger: records their events.
        namesrv: the name server's address.
        dice: decides when members are killed.
        directory: for their error output.
        seconds: duration of the run; each member is killed within it.
        members: number of members by group.
    """

    def __init__(
        self,
        ledger: Ledger,
        namesrv: str,
        dice: Random,
        directory: Path,
        seconds: float,
        members: Mapping[str, int] = MEMBERS,
    ) -> None:
        self._ledger = ledger
        self._namesrv = namesrv
        self._dice = dice
        self._directory = directory
        shortest_s, longest_s = ALIVE_S
        self._alive_s = min(shortest_s, seconds / 3), min(longest_s, seconds / 1.5)
        self._members = members
        self._numbers = itertools.count()

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[None]:
        """Consume until the block is left."""
        self._directory.mkdir()
        tasks = [
            asyncio.create_task(self._run(group))
            for group, count in self._members.items()
            for _ in range(count)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    self._ledger.fail("tracebacks", repr(ended))

    async def _run(self, group: str) -> None:
        """Run one member after the other; each is killed, except when senders have ended."""
        while True:
            name = f"{group}-{next(self._numbers)}"
            errors = self._directory / name
            with errors.open("wb") as file:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.torture.chaos.popper"),
                    *(self._namesrv, group, name),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=file,
                )
            assert process.stdout is not None
            reading = asyncio.create_task(self._read(process.stdout, group, name))
            try:
                await asyncio.wait({reading}, timeout=self._dice.uniform(*self._alive_s))
                while self._ledger.is_over and not reading.done():
                    await asyncio.wait({reading}, timeout=1)
                if reading.done():
                    text = f"{name} ended: {errors.read_text()[-3000:]}"
                    self._ledger.fail("tracebacks", text)
                    await asyncio.sleep(1)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()
                await reading
            self._ledger.counts[f"members of {group} killed"] += 1

    async def _read(self, reports: asyncio.StreamReader, group: str, name: str) -> None:
        """Record the events of a member until it ends; its last line may be incomplete."""
        pops = self._ledger.pops[group]
        async for line in reports:
            if not line.endswith(b"\n"):
                return
            event = decode_event(line)
            key = pops.note(name, event)
            if isinstance(event, Popped):
                arrival = Arrival(
                    event.queue_id, event.offset, event.reconsume_times, event.came_ms
                )
                self._ledger.note_arrival(group, key, arrival)
            else:
                self._ledger.look_again(group, key)
