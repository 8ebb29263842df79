"""What makers of records say of the keys of each, so that the index need not read those again.

Whoever makes a record by hand knows its topic, id, key and tags as texts; the index would have to
find them in its bytes once more. So the maker puts them here beside the record, which costs it one
append to a list, a record or a batch, and the index takes them where they go on at its position.

This buys speed and nothing else. The index gets the same as from the log, and whatever is not here
it reads there:

    other records, and blanks, between         the log is read up to the next record that is here
    the list is full                           later ones are not taken until there is room
    appends that were taken back               `drop_from`
    several keys, a long one, one not ASCII    the log is read for all records of that slice
    an id that is not ASCII                    the same

Everything runs on the thread that appends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple, cast, final

from kourou.store.index.index_lanes import LANE_BYTES, LANES_MAX

UNIQUE_ID_CHARS: Final = 32
"""Of each unique id here; blanks are not among them."""
ID_HEAD_CHARS: Final = UNIQUE_ID_CHARS - LANE_BYTES
"""Of those, what the ids of one producer have in common for a minute."""
SLICE_MAX: Final = LANES_MAX // 2
"""Records that are taken at once: half a millisecond, with the entries of their keys."""

_RECORD_BYTES: Final = 320
"""What a record takes that was put here alone."""
_BATCH_BYTES: Final = 512
_MESSAGE_BYTES: Final = 48
_KEY_BYTES: Final = 72
"""What a batch takes at most: itself, for each message, and for the keys of each if there are."""
_BYTES_MAX: Final = 5 * 1024 * 1024
"""Kept: 16,000 records, or 80,000 that came in batches of 32. One run may go beyond."""
_STRETCH_MIN: Final = 16
"""Fewer that follow one another are not worth a slice of their own, unless they are the last."""
_END: Final = itemgetter(1)

FedRecord = tuple[int, int, int, str, str, str, str]
"""Where a record begins and ends, its store time, topic, tags, unique id and keys; "" for none."""


@final
class FedBatch(NamedTuple):
    """The same of records that follow one another, of one topic and one store time.

    Attributes:
        start, end: where the first one begins, and the last one ends.
        starts: where each begins.
        tags: of each, or one for all.
        id_head: with what all unique ids begin: `ID_HEAD_CHARS`, or nothing.
        id_rests: their rests, one behind the other. ASCII, without blanks.
        keys: of each; empty if none has any.
    """

    start: int
    end: int
    store_at_ms: int
    topic: str
    starts: array[int]
    tags: Sequence[str]
    id_head: bytes
    id_rests: bytes
    keys: Sequence[str]


class FedColumns:
    """What is known of records that follow one another in the log, column by column.

    Attributes:
        starts: where each begins.
        end: where the last one ends.
        times: their store times; none is before the one before it.
        ids: of some that follow one another: how many, the head of their ids, which may be empty,
            and the rests of all.
        keys: of each, "" for none; may be empty if none has any.
    """

    __slots__ = ("end", "ids", "keys", "starts", "tags", "times", "topics")

    def __init__(self, end: int) -> None:
        self.starts: array[int] = array("q")
        self.end = end
        self.times: list[int] = []
        self.topics: list[str] = []
        self.tags: list[str] = []
        self.ids: list[tuple[int, bytes, bytes]] = []
        self.keys: list[str] = []

    def __len__(self) -> int:
        return len(self.starts)

    def add_records(self, records: Sequence[FedRecord]) -> int:
        """Add those records that follow one another; return how many."""
        starts, ends, times, topics, tags, ids, keys = zip(*records, strict=True)
        if starts[0] != self.end:
            return 0
        number = len(starts)
        if starts[1:] != ends[:-1]:
            number = next(at for at in range(1, number) if starts[at] != ends[at - 1])
            return self.add_records(records[:number])
        self._add_keys(keys if any(keys) else (), number)
        self.starts.extend(starts)
        self.end = ends[-1]
        self.times += times
        self.topics += topics
        self.tags += tags
        self.ids.append((number, b"", "".join(ids).encode()))
        return number

    def add_batch(self, batch: FedBatch, first: int, last: int) -> None:
        """Add the records of the batch that follow, from one number to another."""
        _, end, store_at_ms, topic, starts, tags, id_head, id_rests, keys = batch
        number, count = last - first, len(starts)
        if number < count:
            end = end if last == count else starts[last]
            starts, keys = starts[first:last], keys[first:last]
            size = len(id_rests) // count
            id_rests = id_rests[size * first : size * last]
            tags = tags if len(tags) == 1 else tags[first:last]
        self._add_keys(keys, number)
        self.starts += starts
        self.end = end
        self.times += [store_at_ms] * number
        self.topics += [topic] * number
        self.tags += tags if len(tags) == number else [*tags] * number
        self.ids.append((number, id_head, id_rests))

    def _add_keys(self, keys: Sequence[str], number: int) -> None:
        """Add the keys, or none, of so many records that are added then."""
        if keys:
            self.keys += [""] * (len(self.starts) - len(self.keys))
            self.keys += keys
        elif self.keys:
            self.keys += [""] * number


class IndexFeed:
    """Records that were appended and are not indexed yet, or some of them; in the log's order."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        """Keep about so many bytes; 0 where nobody takes them."""
        self._bytes_max = bytes_max
        self._parts: list[FedRecord | FedBatch] = []
        self._batches = 0  # among them
        self._batch_bytes = 0
        self._refused: list[FedRecord | FedBatch] = []

    @property
    def fullness(self) -> float:
        """What it keeps, to what it keeps at most."""
        return self._bytes_kept / max(self._bytes_max, 1)

    @property
    def _bytes_kept(self) -> int:
        return _RECORD_BYTES * (len(self._parts) - self._batches) + self._batch_bytes

    def begin_run(self) -> list[FedRecord | FedBatch]:
        """Return what the records of one run of appends are to be added to, and then let go."""
        if self._bytes_kept < self._bytes_max:
            return self._parts
        self._refused.clear()
        return self._refused

    def add_batch(self, batch: FedBatch) -> None:
        """Add records of the run that has begun, if there is room."""
        if self._bytes_kept < self._bytes_max:
            self._parts.append(batch)
            self._batches += 1
            self._batch_bytes += _bytes_of(batch)

    def drop_from(self, position: int) -> None:
        """Forget the records at or behind the position, which are no longer in the log."""
        self._forget(bisect_left(self._parts, (position,)), len(self._parts))

    def next_from(self, position: int, until: int) -> int | None:
        """Return where the next records begin that are worth it: at the position, or behind it.

        Those before it are forgotten. None if there are none, or too few before others.
        """
        parts = self._parts
        passed = bisect_left(parts, (position,))
        if passed and parts[passed - 1][1] > position:  # a batch, some of whose records are taken
            passed -= 1
        if passed:
            self._forget(0, passed)
        if not parts:
            return None
        start = parts[0][0]
        if start <= position:
            return position
        return start if self._is_stretch(until) else None

    def _is_stretch(self, until: int) -> bool:
        """Tell whether enough records follow one another, below `until`."""
        number, end = 0, self._parts[0][0]
        for part in islice(self._parts, _STRETCH_MIN):
            if part[0] != end or part[1] > until:
                return False
            end = part[1]
            number += len(part.starts) if type(part) is FedBatch else 1
        return number >= _STRETCH_MIN

    def take(self, position: int, until: int, records_max: int = SLICE_MAX) -> FedColumns | None:
        """Return the next records that follow one another and end at or below `until`.

        They are forgotten when `next_from` is asked of a position behind them. None if there are
        too few to be worth a slice.

        Args:
            position: as `next_from` gave it: the first one is there.
            until: where a record ends.
            records_max: so many at most, and no more than `SLICE_MAX`.
        """
        parts, at = self._parts, 0
        columns = FedColumns(position)
        left = records_max = min(records_max, SLICE_MAX)
        while left and at < len(parts) and columns.end < until:
            part = parts[at]
            if type(part) is FedBatch:
                if part.start > columns.end:
                    break
                starts = part.starts
                first = 0 if part.start == columns.end else bisect_left(starts, columns.end)
                last = len(starts) if part.end <= until else bisect_right(starts, until) - 1
                if first >= last:
                    break
                columns.add_batch(part, first, min(last, first + left))
                at += 1
            else:
                records = self._records(at, until, left)
                number = columns.add_records(records) if records else 0
                if number < len(records) or not number:
                    break
                at += number
            left = records_max - len(columns)
        are_all = not left or columns.end == until
        return columns if len(columns) >= _STRETCH_MIN or are_all else None

    def _records(self, at: int, until: int, number: int) -> list[FedRecord]:
        """Return so many records at most that were put here alone, from a part on, to `until`."""
        parts = self._parts
        end = bisect_right(parts, until, at, min(at + number, len(parts)), key=_END)
        if self._batches:
            end = next((n for n in range(at, end) if type(parts[n]) is FedBatch), end)
        return cast("list[FedRecord]", parts[at:end])

    def _forget(self, start: int, end: int) -> None:
        """Forget parts."""
        if self._batches:
            gone = [part for part in self._parts[start:end] if type(part) is FedBatch]
            self._batches -= len(gone)
            self._batch_bytes -= sum(map(_bytes_of, gone))
        del self._parts[start:end]


def _bytes_of(batch: FedBatch) -> int:
    """Return about what the batch takes of memory."""
    return _BATCH_BYTES + _MESSAGE_BYTES * len(batch.starts) + _KEY_BYTES * len(batch.keys)
