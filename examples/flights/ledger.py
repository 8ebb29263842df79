"""Ledgers: each counting process appends a line for each delivery, so that the demo can verify all.

A line is `flight_id queue_id queue_offset late_so_far minutes_so_far`, written before the message
is acknowledged. The last two numbers are the counts of the process so far.
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
    """Reads the ledgers of all processes while they grow.

    Attributes:
        files: one for each process; a missing file counts as empty.
        deliveries: number of lines read.
        flights: number of deliveries of each flight.
        records: (queue id, queue offset) of the delivered messages.
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
        """The sum of late flights counted by the processes."""
        return sum(entry.late_so_far for entry in self._latest.values())

    @property
    def minutes(self) -> int:
        """The sum of the delays of late flights, in minutes."""
        return sum(entry.minutes_so_far for entry in self._latest.values())

    def read_new_lines(self) -> None:
        """Read the complete lines written since the last call."""
        for file in self.files:
            if not file.exists():
                continue
            with file.open("rb") as stream:
                stream.seek(self._read_bytes[file])
                # An incomplete last line is read by the next call.
                lines, _, _ = stream.read().rpartition(b"\n")
            for line in lines.splitlines():
                self._add(file, Entry.parse(line))
            self._read_bytes[file] += len(lines) + 1 if lines else 0

    def _add(self, file: Path, entry: Entry) -> None:
        self._latest[file] = entry
        self.deliveries += 1
        self.flights[entry.flight_id] += 1
        self.records.add((entry.queue_id, entry.queue_offset))
