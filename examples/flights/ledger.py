"""What the counting processes got, one line a delivery, so that nothing is taken on trust.

A line is `flight_id queue_id queue_offset late_so_far minutes_so_far`, written before the message
is acknowledged. The two numbers at its end are the process's own counts: its latest line says
what it has counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """One delivery of one message."""

    flight_id: str
    queue_id: int
    queue_offset: int
    late_so_far: int
    minutes_so_far: int

    def line(self) -> bytes:
        """Return the entry as a line of a ledger."""
        return (" ".join(map(str, self)) + "\n").encode()

    @classmethod
    def parse(cls, line: bytes) -> Entry:
        """Return the entry of a whole line."""
        flight_id, *numbers = line.decode().split()
        return cls(flight_id, *map(int, numbers))


class Ledgers:
    """Follows the ledgers of all processes while they grow.

    Attributes:
        files: one a process; a missing one is empty.
        deliveries: lines read.
        flights: how often each flight was delivered.
        records: (queue id, queue offset) of the messages delivered.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self._read_bytes = dict.fromkeys(files, 0)
        self._latest: dict[Path, Entry] = {}
        self.deliveries = 0
        self.flights: Counter[str] = Counter()
        self.records: set[tuple[int, int]] = set()

    @property
    def late(self) -> int:
        """Late flights, as the processes count them together."""
        return sum(entry.late_so_far for entry in self._latest.values())

    @property
    def minutes(self) -> int:
        """Minutes that they were late, in all."""
        return sum(entry.minutes_so_far for entry in self._latest.values())

    def read_on(self) -> None:
        """Read the whole lines written since the last call."""
        for file in self.files:
            if not file.exists():
                continue
            with file.open("rb") as stream:
                stream.seek(self._read_bytes[file])
                # A line that is only begun stays for the next call.
                lines, _, _ = stream.read().rpartition(b"\n")
            for line in lines.splitlines():
                self._add(file, Entry.parse(line))
            self._read_bytes[file] += len(lines) + 1 if lines else 0

    def _add(self, file: Path, entry: Entry) -> None:
        self._latest[file] = entry
        self.deliveries += 1
        self.flights[entry.flight_id] += 1
        self.records.add((entry.queue_id, entry.queue_offset))
