"""Read plan: the status of a read of a queue, its next offset, and the ranges of the log to read.

Planning reads only queue entries; reading the records is a separate step, which may wait for the
device. Runs on the hot path: about 0.15 us an entry.

Entries that this process made are trusted. Others may be corrupt: a plan lists each of these, so
that its record can be verified (`kourou.store.reading.verified_get`), and ends before one with
impossible values (`suspect`).

Source: DefaultMessageStore.getMessage, isTheBatchFull and nextOffsetCorrection, apache/rocketmq
5.5.0, as on a master.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

from kourou.protocol.record.check import ExpectedRecord
from kourou.store.config import StoreConfig
from kourou.store.formats import BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES
from kourou.store.queues.consumequeue import ConsumeQueue

_GET_BYTES_MIN: Final = 100
_GET_BYTES_MAX: Final = 128 * 1024 * 1024
_READ_ENTRIES: Final = 64

Accepts = Callable[[int], bool]
"""Tells by an entry's tags code whether the message may pass the reader's filter."""

ReadEntries = Callable[[int, int], bytes]
"""Reads entries, given an offset and the most entries to return; see `ConsumeQueue.read`."""


class GetStatus(Enum):
    """The status of a read; the names are Java's and are used in the response's remark."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MATCHED_LOGIC_QUEUE = auto()
    NO_MESSAGE_IN_QUEUE = auto()
    OFFSET_RESET = auto()
    """Used by the broker only, which answers it without a read."""


class GetPlan(NamedTuple):
    """The plan of a read.

    Attributes:
        next_offset: the offset of the reader's next read; after FOUND, that after the last entry
            examined.
        min_offset: the queue's minimum offset.
        max_offset: the offset after the queue's last message.
        ranges: (byte of the log, size) in queue order; adjacent records form one range.
        count: the number of messages in the ranges.
        expected: the entries of these messages, if their records must be verified.
        suspect: the offset of the entry with impossible values before which the plan ends; None
            if there is none.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    ranges: list[tuple[int, int]]
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    expected: Sequence[ExpectedRecord] = ()
    suspect: int | None = None


class LogView(NamedTuple):
    """The state of the commit log that a plan depends on.

    Attributes:
        min_position: records below are removed.
        max_position: the end of the log.
        segment_bytes: the size of a segment; if a record is removed, so are all records up to the
            end of its segment.
        unverified_below: records below may have left memory since they were written or verified.
    """

    min_position: int
    max_position: int
    segment_bytes: int
    unverified_below: int = 0

    def can_hold(self, position: int, size: int) -> bool:
        """Tell whether a record can be there: inside one segment, within the log's bounds."""
        return (
            self.min_position <= position
            and 0 < size <= self.segment_bytes - position % self.segment_bytes
            and position + size <= self.max_position
        )


def plan_missing_queue() -> GetPlan:
    """Return the plan for a queue that does not exist."""
    return GetPlan(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [], 0)


def plan_outside_queue(queue: ConsumeQueue, offset: int) -> GetPlan | None:
    """Return the plan for an offset outside the queue; None if it is inside."""
    low, high = queue.min_offset, queue.max_offset
    if low <= offset < high:
        return None
    if high == 0:
        return GetPlan(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [], 0)
    if offset < low:
        return GetPlan(GetStatus.OFFSET_TOO_SMALL, low, low, high, [], 0)
    if offset == high:
        return GetPlan(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0)
    return GetPlan(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0)


def plan_get(
    queue: ConsumeQueue | None,
    view: LogView,
    config: StoreConfig,
    offset: int,
    limits: tuple[int, int],
    *,
    accepts: Accepts | None,
    read: ReadEntries | None = None,
    verify_all: bool = False,
    removed: Collection[int] = (),
) -> GetPlan:
    """Return the plan of a read at `offset`, within the limits.

    The first message is included whatever its size. One call examines entries of one queue file
    only, and at most `scan_bytes_max` bytes of them, or as many entries as messages are allowed if
    that is more.

    Args:
        queue: None if it does not exist.
        view: the state of the log.
        config: limits.
        offset: the reader's offset.
        limits: the most messages, and the most bytes.
        accepts: called with each entry's tags code; None accepts all.
        read: replaces the queue's own read; its exceptions pass through.
        verify_all: list all entries in `expected`, also those that this process made.
        removed: offsets whose records are known to be removed, whatever their entries contain.
    """
    if queue is None:
        return plan_missing_queue()
    nothing = plan_outside_queue(queue, offset)
    if nothing is not None:
        return nothing
    low, high = queue.min_offset, queue.max_offset
    max_messages, max_bytes = limits
    read = read or queue.read
    per_file = queue.segments.file_bytes // ENTRY_BYTES
    next_file = offset - offset % per_file + per_file
    scan_entries = -(-max(config.scan_bytes_max, max_messages * ENTRY_BYTES) // ENTRY_BYTES)
    stop = min(high, next_file, offset + scan_entries)
    data = read(offset, min(_READ_ENTRIES, stop - offset))
    if len(data) < ENTRY_BYTES:
        return GetPlan(GetStatus.OFFSET_FOUND_NULL, next_file, low, high, [], 0)
    verify_all = verify_all or offset < queue.unverified_below
    if verify_all or ENTRY.unpack_from(data)[0] < view.unverified_below:
        chosen: _Selection = _VerifiedSelection(
            view, config, max_messages, max_bytes, accepts, offset, removed
        )
    else:
        chosen = _Selection(view, config, max_messages, max_bytes, accepts)
    at = offset
    while len(data) >= ENTRY_BYTES:
        examined = chosen.examine(data[: len(data) - len(data) % ENTRY_BYTES])
        at += examined
        if at >= stop or examined * ENTRY_BYTES < len(data):
            break
        data = read(at, min(_READ_ENTRIES, stop - at))
    return GetPlan(
        chosen.status, at, low, high,
        chosen.ranges, chosen.count, chosen.expected, chosen.suspect,
    )  # fmt: skip


def get_bytes_max(asked_bytes: int) -> int:
    """Return the most bytes of one read: the requested number within Java's bounds."""
    return min(max(asked_bytes, _GET_BYTES_MIN), _GET_BYTES_MAX)


def cold_below(view: LogView, config: StoreConfig) -> int:
    """Return the byte of the log below which records count as not in memory."""
    return view.max_position - config.resident_bytes if config.resident_bytes else 0


class _Selection:
    """Selects messages entry by entry until one does not fit."""

    __slots__ = (
        "_accepts",
        "_cold_below",
        "_config",
        "_max_bytes",
        "_max_messages",
        "_range_end",
        "_skip_below",
        "_view",
        "count",
        "ranges",
        "size",
        "status",
    )

    expected: Sequence[ExpectedRecord] = ()
    suspect: int | None = None

    def __init__(
        self,
        view: LogView,
        config: StoreConfig,
        max_messages: int,
        max_bytes: int,
        accepts: Accepts | None,
    ) -> None:
        self._view = view
        self._config = config
        self._max_messages = max_messages
        self._max_bytes = get_bytes_max(max_bytes)
        self._accepts = accepts
        self._cold_below = cold_below(view, config)
        self._skip_below = 0
        self._range_end = -1
        self.status = GetStatus.NO_MATCHED_MESSAGE
        self.ranges: list[tuple[int, int]] = []
        self.count = 0
        self.size = 0

    def examine(self, data: bytes) -> int:
        """Examine entries; return how many were examined, fewer than given if the plan is full."""
        accepts, ranges, view = self._accepts, self.ranges, self._view
        min_position = view.min_position
        for index, (at, size, code) in enumerate(ENTRY.iter_unpack(data)):
            if self.count and self._is_full(at, size):
                return index
            if at < self._skip_below:
                continue
            if accepts is not None and not accepts(code):
                if not self.count:
                    self.status = GetStatus.NO_MATCHED_MESSAGE
                continue
            if at < min_position or size == BLANK_ENTRY_SIZE:
                if not self.count:
                    self.status = GetStatus.MESSAGE_WAS_REMOVING
                if at < min_position:
                    self._skip_below = at - at % view.segment_bytes + view.segment_bytes
                continue
            if at == self._range_end:
                start, before = ranges[-1]
                ranges[-1] = (start, before + size)
            else:
                ranges.append((at, size))
            self._range_end = at + size
            self.count += 1
            self.size += size
            self.status = GetStatus.FOUND
            self._skip_below = 0
        return len(data) // ENTRY_BYTES

    def _is_full(self, at: int, size: int) -> bool:
        if self.count >= self._max_messages or self.size + size > self._max_bytes:
            return True
        if at >= self._cold_below:
            return False
        config = self._config
        return (
            self.count >= config.cold_get_messages_max
            or self.size + size > config.cold_get_bytes_max
        )


class _VerifiedSelection(_Selection):
    """Selects messages like `_Selection`, lists their entries, and stops at impossible entries."""

    __slots__ = ("_at", "_removed", "_removed_position", "expected", "suspect")

    def __init__(
        self,
        view: LogView,
        config: StoreConfig,
        max_messages: int,
        max_bytes: int,
        accepts: Accepts | None,
        offset: int,
        removed: Collection[int],
    ) -> None:
        super().__init__(view, config, max_messages, max_bytes, accepts)
        self._at = offset
        self._removed = removed
        self._removed_position = -1  # of the last entry whose record is removed
        self.expected: list[ExpectedRecord] = []
        self.suspect: int | None = None

    def examine(self, data: bytes) -> int:
        """Examine entries; return how many were examined, fewer than given if the plan is full."""
        before = self._at
        for at, size, code in ENTRY.iter_unpack(data):
            if self.count and self._is_full(at, size):
                break
            if (size == BLANK_ENTRY_SIZE and not at and not code) or self._is_removed(at, size):
                if not self.count:
                    self.status = GetStatus.MESSAGE_WAS_REMOVING
            elif not self._view.can_hold(at, size):
                self.suspect = self._at
                break
            elif self._accepts is None or self._accepts(code):
                self._select(ExpectedRecord(self._at, at, size, code))
            elif not self.count:
                self.status = GetStatus.NO_MATCHED_MESSAGE
            self._at += 1
        return self._at - before

    def _is_removed(self, at: int, size: int) -> bool:
        """Tell whether the record was removed.

        It was if the record of the preceding entry was, and its own position is higher but still
        below the log's begin.
        """
        if self._at in self._removed:
            self._removed_position = max(at, 0)
            return True
        if not 0 <= self._removed_position < at < self._view.min_position or size <= 0:
            return False
        self._removed_position = at
        return True

    def _select(self, expected: ExpectedRecord) -> None:
        _, at, size, _ = expected
        if at == self._range_end:
            start, before = self.ranges[-1]
            self.ranges[-1] = (start, before + size)
        else:
            self.ranges.append((at, size))
        self._range_end = at + size
        self.expected.append(expected)
        self.count += 1
        self.size += size
        self.status = GetStatus.FOUND
