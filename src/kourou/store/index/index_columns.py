"""What the index gets, column by column: many entries at a third of a call for each."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from kourou.store.index.index_file import INDEX_ENTRY_BYTES, seconds_since

_INT: Final = "i"


class KeyColumns(NamedTuple):
    """For each entry the index gets: the key's hash, where its record is, and its store time.

    Attributes:
        time_min, time_max: no time is outside of these.
    """

    hashes: Sequence[int]
    offsets: Sequence[int]
    times: Sequence[int]
    time_min: int
    time_max: int

    def part(self, start: int, end: int) -> KeyColumns:
        """Return the entries from one to another."""
        return self._replace(
            hashes=self.hashes[start:end],
            offsets=self.offsets[start:end],
            times=self.times[start:end],
        )


NO_COLUMNS: Final = KeyColumns((), (), (), 0, 0)


def _seconds(begin_at_ms: int, columns: KeyColumns) -> array[int]:
    """Return what entries of these times say of them."""
    first = seconds_since(begin_at_ms, columns.time_min)
    if first == seconds_since(begin_at_ms, columns.time_max):
        return array(_INT, [first]) * len(columns.times)
    known = {at_ms: seconds_since(begin_at_ms, at_ms) for at_ms in set(columns.times)}
    return array(_INT, [known[at_ms] for at_ms in columns.times])


def packed(columns: KeyColumns, begin_at_ms: int, previous: Sequence[int]) -> array[int]:
    """Return entries as the file holds them: column by column, a third of a call for each."""
    entries = array(_INT, bytes(INDEX_ENTRY_BYTES * len(previous)))
    places = array("q", columns.offsets)
    to_or_from_disk(places)
    halves = array(_INT, places.tobytes())
    entries[1::5], entries[2::5] = halves[0::2], halves[1::2]
    seconds = _seconds(begin_at_ms, columns)
    for column, values in ((0, columns.hashes), (3, seconds), (4, previous)):
        numbers = array(_INT, values)
        to_or_from_disk(numbers)
        entries[column::5] = numbers
    return entries


def to_or_from_disk(numbers: array[int]) -> None:
    """Turn the bytes of each number, where the machine has the other order than the files."""
    if sys.byteorder == "little":
        numbers.byteswap()
