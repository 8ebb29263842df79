"""What a read of a queue hands out: the outcome, the next offset, and which bytes of the log.

Only queue entries are looked at; reading the bytes is a step of its own, which may have to wait for
the device. Runs on the hot path: about 0.15 us an entry.

Source: DefaultMessageStore.getMessage, isTheBatchFull and nextOffsetCorrection, apache/rocketmq
5.5.0, as a master answers.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from kourou.store.config import StoreConfig
from kourou.store.consumequeue import ConsumeQueue
from kourou.store.formats import BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES

_GET_BYTES_MIN: Final = 100
_GET_BYTES_MAX: Final = 128 * 1024 * 1024
_READ_ENTRIES: Final = 64

Accepts = Callable[[int], bool]
"""Tells from an entry's tags code whether the reader may want the message."""


class GetStatus(Enum):
    """The outcome of a read; the names are Java's, and go into the response's remark."""

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
    """Of a broker only, which need not read to tell where a group goes on."""


class GetPlan(NamedTuple):
    """What a read found.

    Attributes:
        next_offset: where the reader goes on; after FOUND, behind the last entry looked at.
        min_offset: of the queue.
        max_offset: of the queue: one more than its last message's.
        ranges: (byte of the log, size), in queue order; neighbours are one range.
        count: messages in them.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    ranges: list[tuple[int, int]]
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks for


class LogView(NamedTuple):
    """What a read must know of the commit log.

    Attributes:
        min_position: records below are gone.
        max_position: where the log ends.
        segment_bytes: records at or behind a removed one's segment end are there again.
    """

    min_position: int
    max_position: int
    segment_bytes: int


def plan_get(
    queue: ConsumeQueue | None,
    view: LogView,
    config: StoreConfig,
    offset: int,
    limits: tuple[int, int],
    *,
    accepts: Accepts | None,
) -> GetPlan:
    """Return what a reader at `offset` gets, within the limits: messages, and about so many bytes.

    The first message is handed out whatever its size. One call looks at entries of one queue file,
    and at no more than `scan_bytes_max` of them.
    """
    if queue is None:
        return GetPlan(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [], 0)
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return GetPlan(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [], 0)
    if offset < low:
        return GetPlan(GetStatus.OFFSET_TOO_SMALL, low, low, high, [], 0)
    if offset == high:
        return GetPlan(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0)
    if offset > high:
        return GetPlan(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0)
    max_messages, max_bytes = limits
    pick = _Pick(view, config, max_messages, max_bytes, accepts)
    per_file = queue.segments.file_bytes // ENTRY_BYTES
    next_file = offset - offset % per_file + per_file
    scan_entries = -(-max(config.scan_bytes_max, max_messages * ENTRY_BYTES) // ENTRY_BYTES)
    stop = min(high, next_file, offset + scan_entries)
    at = offset
    while at < stop:
        data = queue.read(at, min(_READ_ENTRIES, stop - at))
        if not data:
            if at == offset:
                return GetPlan(GetStatus.OFFSET_FOUND_NULL, next_file, low, high, [], 0)
            break
        taken = pick.take(data)
        at += taken
        if taken * ENTRY_BYTES < len(data):
            break
    return GetPlan(pick.status, at, low, high, pick.ranges, pick.count)


class _Pick:
    """Chooses messages entry by entry until one does not fit."""

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
        self._max_bytes = min(max(max_bytes, _GET_BYTES_MIN), _GET_BYTES_MAX)
        self._accepts = accepts
        self._cold_below = view.max_position - config.resident_bytes if config.resident_bytes else 0
        self._skip_below = 0
        self._range_end = -1
        self.status = GetStatus.NO_MATCHED_MESSAGE
        self.ranges: list[tuple[int, int]] = []
        self.count = 0
        self.size = 0

    def take(self, data: bytes) -> int:
        """Look at entries; return how many were, fewer than there are when the answer is full."""
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
