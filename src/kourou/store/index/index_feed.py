"""Feed of message keys from the append path to the index, which then need not re-read the log.

Code that builds a record has topic, id, key and tags as texts, which the index would have to parse
from the record's bytes again. It adds the texts to this feed, one list append for a record or a
batch, and the index takes those that start at its position.

The feed only saves time. The index gets the same entries as from the log, and reads the log for
everything that the feed lacks:

    case                                       behaviour
    other records or blanks in between         the log is read up to the next fed record
    the feed is full                           records are not added until there is room
    appends that are rolled back               `drop_from`
    several keys, a long key, one not ASCII    the log is read for all records of that slice
    a long id, one not ASCII                   the same

All methods run on the thread that appends.
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
"""Length of usual unique ids, also of those of batches. A fed id contains no blanks."""
ID_HEAD_CHARS: Final = UNIQUE_ID_CHARS - LANE_BYTES
"""Length of the id's beginning that one producer's ids share for a minute."""
SLICE_MAX: Final = LANES_MAX // 2
"""Records taken at once: half a millisecond, including the entries of their keys."""

_RECORD_BYTES: Final = 320
"""Memory of a record that was added singly."""
_BATCH_BYTES: Final = 512
_MESSAGE_BYTES: Final = 48
_KEY_BYTES: Final = 72
"""Memory of a batch, at most: for itself, for each message, and for each message's keys if any."""
_BYTES_MAX: Final = 5 * 1024 * 1024
"""Limit of the feed: 16,000 records, or 80,000 in batches of 32. One run may exceed it."""
_CONSECUTIVE_MIN: Final = 16
"""Fewer consecutive records are not worth a slice of their own, unless they are the last ones."""
_END: Final = itemgetter(1)

FedRecord = tuple[int, int, int, str, str, str, str]
"""A record's start and end in the log, store time, topic, tags, unique id and keys; "" for none."""


@final
class FedBatch(NamedTuple):
    """Consecutive records of one topic and one store time.

    Attributes:
        start, end: log positions where the first record begins and the last one ends.
        starts: the log position of each record.
        tags: of each record, or a single one for all.
        id_head: the common beginning of all unique ids: `ID_HEAD_CHARS` long, or empty.
        id_tails: the remaining parts of the ids, joined. ASCII, without blanks.
        keys: of each record; empty if none has any.
    """

    start: int
    end: int
    store_at_ms: int
    topic: str
    starts: array[int]
    tags: Sequence[str]
    id_head: bytes
    id_tails: bytes
    keys: Sequence[str]


class KeyTexts:
    """The texts of the keys of records, in columns.

    Attributes:
        starts: the log position of each record.
        end: the log position where the last record ends.
        times: store times.
        ids: for each group of consecutive records: their number, the common head of their ids
            (may be empty), and the joined remaining parts. All ids have the usual length.
        other_ids: the id of each record if some have another length; then `ids` is empty.
        keys: of each record, "" for none; may be empty if none has any.
    """

    __slots__ = ("end", "ids", "keys", "other_ids", "starts", "tags", "times", "topics")

    def __init__(self, end: int) -> None:
        self.starts: array[int] = array("q")
        self.end = end
        self.times: list[int] = []
        self.topics: list[str] = []
        self.tags: list[str] = []
        self.ids: list[tuple[int, bytes, bytes]] = []
        self.other_ids: list[str] = []
        self.keys: list[str] = []

    def __len__(self) -> int:
        return len(self.starts)

    def add_records(self, records: Sequence[FedRecord]) -> int:
        """Add the leading records that are consecutive; return their number.

        0 if ids of another length would follow usual ones.
        """
        starts, ends, times, topics, tags, ids, keys = zip(*records, strict=True)
        is_usual = not self.other_ids and set(map(len, ids)) == {UNIQUE_ID_CHARS}
        if starts[0] != self.end or not (is_usual or not self.ids):
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
        if is_usual:
            self.ids.append((number, b"", "".join(ids).encode()))
        else:
            self.other_ids += ids
        return number

    def add_batch(self, batch: FedBatch, first: int, last: int) -> None:
        """Add records `first` to below `last` of the batch."""
        _, end, store_at_ms, topic, starts, tags, id_head, id_tails, keys = batch
        number, count = last - first, len(starts)
        if number < count:
            end = end if last == count else starts[last]
            starts, keys = starts[first:last], keys[first:last]
            size = len(id_tails) // count
            id_tails = id_tails[size * first : size * last]
            tags = tags if len(tags) == 1 else tags[first:last]
        self._add_keys(keys, number)
        self.starts += starts
        self.end = end
        self.times += [store_at_ms] * number
        self.topics += [topic] * number
        self.tags += tags if len(tags) == number else [*tags] * number
        self.ids.append((number, id_head, id_tails))

    def _add_keys(self, keys: Sequence[str], number: int) -> None:
        """Add the keys of the next `number` records; call it before their `starts` are added."""
        if keys:
            self.keys += [""] * (len(self.starts) - len(self.keys))
            self.keys += keys
        elif self.keys:
            self.keys += [""] * number


class IndexFeed:
    """Appended records that are not indexed yet, in log order; some may be missing."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        """Limit the feed to about `bytes_max`; 0 where no index reads it."""
        self._bytes_max = bytes_max
        self._items: list[FedRecord | FedBatch] = []
        self._batches = 0  # among them
        self._batch_bytes = 0
        self._discarded: list[FedRecord | FedBatch] = []

    @property
    def fullness(self) -> float:
        """The used fraction of the limit; one run may raise it above 1."""
        return self._used_bytes / max(self._bytes_max, 1)

    @property
    def _used_bytes(self) -> int:
        return _RECORD_BYTES * (len(self._items) - self._batches) + self._batch_bytes

    @property
    def items(self) -> Sequence[FedRecord | FedBatch]:
        """The records and batches that are not indexed yet, oldest first; a view."""
        return self._items

    def begin_run(self) -> list[FedRecord | FedBatch]:
        """Return the list to which a run of appends adds its records; do not use it after the run.

        A full feed returns a list that is discarded.
        """
        if self._used_bytes < self._bytes_max:
            return self._items
        self._discarded.clear()
        return self._discarded

    def add_batch(self, batch: FedBatch) -> None:
        """Add a batch of the current run, if there is room."""
        if self._used_bytes < self._bytes_max:
            self._items.append(batch)
            self._batches += 1
            self._batch_bytes += _bytes_of(batch)

    def drop_from(self, position: int) -> None:
        """Drop the records at or after the position, which were removed from the log."""
        self._drop(bisect_left(self._items, (position,)), len(self._items))

    def next_from(self, position: int, until: int) -> int | None:
        """Return where the next usable fed records begin, at the position or after it.

        Records before the position are dropped. Records after it are usable if at least
        `_CONSECUTIVE_MIN` of them are consecutive below `until`. None if there are none.
        """
        items = self._items
        passed = bisect_left(items, (position,))
        if passed and items[passed - 1][1] > position:  # a batch that is partly taken
            passed -= 1
        if passed:
            self._drop(0, passed)
        if not items:
            return None
        start = items[0][0]
        if start <= position:
            return position
        return start if self._has_run(until) else None

    def _has_run(self, until: int) -> bool:
        """Tell whether enough records below `until` are consecutive."""
        number, end = 0, self._items[0][0]
        for item in islice(self._items, _CONSECUTIVE_MIN):
            if item[0] != end or item[1] > until:
                return False
            end = item[1]
            number += len(item.starts) if type(item) is FedBatch else 1
        return number >= _CONSECUTIVE_MIN

    def take(self, position: int, until: int, records_max: int = SLICE_MAX) -> KeyTexts | None:
        """Return the next consecutive records that end at or below `until`.

        A later call of `next_from` with a position after them drops them. None if there are too
        few for a slice.

        Args:
            position: start of the first record, as `next_from` returned it.
            until: the end of a record.
            records_max: limit of the records, capped at `SLICE_MAX`.
        """
        items, at = self._items, 0
        columns = KeyTexts(position)
        left = records_max = min(records_max, SLICE_MAX)
        while left and at < len(items) and columns.end < until:
            item = items[at]
            if type(item) is FedBatch:
                if item.start > columns.end or columns.other_ids:
                    break
                starts = item.starts
                first = 0 if item.start == columns.end else bisect_left(starts, columns.end)
                last = len(starts) if item.end <= until else bisect_right(starts, until) - 1
                if first >= last:
                    break
                columns.add_batch(item, first, min(last, first + left))
                at += 1
            else:
                records = self._records(at, until, left)
                number = columns.add_records(records) if records else 0
                if number < len(records) or not number:
                    break
                at += number
            left = records_max - len(columns)
        are_all = not left or columns.end == until
        return columns if len(columns) >= _CONSECUTIVE_MIN or are_all else None

    def _records(self, at: int, until: int, number: int) -> list[FedRecord]:
        """Return at most `number` singly added records from index `at` on, up to `until`."""
        items = self._items
        end = bisect_right(items, until, at, min(at + number, len(items)), key=_END)
        if self._batches:
            end = next((n for n in range(at, end) if type(items[n]) is FedBatch), end)
        return cast("list[FedRecord]", items[at:end])

    def _drop(self, start: int, end: int) -> None:
        """Drop the items from `start` to below `end`."""
        if self._batches:
            gone = [item for item in self._items[start:end] if type(item) is FedBatch]
            self._batches -= len(gone)
            self._batch_bytes -= sum(map(_bytes_of, gone))
        del self._items[start:end]


def _bytes_of(batch: FedBatch) -> int:
    """Return the batch's approximate memory."""
    return _BATCH_BYTES + _MESSAGE_BYTES * len(batch.starts) + _KEY_BYTES * len(batch.keys)
