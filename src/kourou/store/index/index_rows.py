"""Index entries of records that all have the same kinds of keys: one row of entries per record.

    | id | key | tags |   of the first record, then of the second, and so on

Rows are packed in a third of the time of single entries: most fields of a row equal those of the
row before, and position and time are the same for all entries of a row. If all records have the
same tags, the entries of these form one chain, which needs no look-up of slots.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from kourou.store.index.index_columns import KeyColumns, convert_byte_order
from kourou.store.index.index_file import INDEX_ENTRY_BYTES, seconds_since

_INT: Final = "i"
_ENTRY_INTS: Final = INDEX_ENTRY_BYTES // 4
_HASH, _OFFSET_HIGH, _OFFSET_LOW, _SECONDS, _PREVIOUS = range(_ENTRY_INTS)
_LOW_FIRST: Final = sys.byteorder == "little"


class KeyRows(NamedTuple):
    """Entries of some records.

    Attributes:
        hashes: for each entry of a row but the last: a column of the records' hashes.
        last: the hash of each row's last entry: a column, or a single one for all rows.
        offsets: the physical offset of each record.
        times: the store time of each record, never descending.
    """

    hashes: Sequence[array[int]]
    last: array[int]
    offsets: array[int]
    times: Sequence[int]

    def columns(self) -> KeyColumns:
        """Return the same entries as columns of single entries."""
        number = len(self.offsets)
        last = self.last if len(self.last) == number else self.last * number
        columns = (*self.hashes, last)
        width = len(columns)
        hashes = interleave(columns)
        offsets = interleave((self.offsets,) * width)
        times = interleave((array("q", self.times),) * width)
        return KeyColumns(hashes, offsets, times, self.times[0], self.times[-1])


def interleave(columns: Sequence[array[int]]) -> array[int]:
    """Return the first of each column, then the second of each, and so on."""
    if len(columns) == 1:
        return columns[0]
    found = columns[0] * len(columns)
    for at, column in enumerate(columns):
        found[at :: len(columns)] = column
    return found


def pack_rows(rows: KeyRows, begin_at_ms: int, previous: Sequence[Sequence[int]]) -> array[int]:
    """Return the entries in the file's layout.

    Args:
        rows: the entries.
        begin_at_ms: store time of the file's first entry.
        previous: for each entry of a row, a column: the number of its slot's previous entry.
    """
    hashes, last, offsets, times = rows
    number = len(offsets)
    columns = (*hashes, last)
    seconds = [seconds_since(begin_at_ms, times[0])]
    if seconds[0] != seconds_since(begin_at_ms, times[-1]):
        seconds_by_time = {at_ms: seconds_since(begin_at_ms, at_ms) for at_ms in set(times)}
        seconds = [seconds_by_time[at_ms] for at_ms in times]
    high, low = _halves(offsets)
    row = array(_INT, bytes(INDEX_ENTRY_BYTES * len(columns)))
    row[_SECONDS::_ENTRY_INTS] = array(_INT, seconds[:1]) * len(columns)
    row[_OFFSET_HIGH::_ENTRY_INTS] = high[:1] * len(columns)
    row[_ENTRY_INTS * len(hashes)] = last[0]
    found = row * number
    step = len(row)
    for at, (column, before) in enumerate(zip(columns, previous, strict=True)):
        first = at * _ENTRY_INTS
        if len(column) == number:
            found[first + _HASH :: step] = column
        if high[0] != high[-1]:
            found[first + _OFFSET_HIGH :: step] = high
        found[first + _OFFSET_LOW :: step] = low
        if len(seconds) == number:
            found[first + _SECONDS :: step] = array(_INT, seconds)
        found[first + _PREVIOUS :: step] = array(_INT, before)
    convert_byte_order(found)
    return found


def _halves(offsets: array[int]) -> tuple[array[int], array[int]]:
    """Return the upper and the lower 32 bits of each offset."""
    halves = array(_INT, offsets.tobytes())
    return (halves[1::2], halves[::2]) if _LOW_FIRST else (halves[::2], halves[1::2])
