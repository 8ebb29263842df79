"""Search for a queue offset by time, using the store times of the queue's records.

A corrupt entry or a damaged record has no time: the search uses the next record after it, and
prefers a lower offset, so that no message is missed.

Source: ConsumeQueue.binarySearchInQueueByTime and BoundaryType.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.errors import MalformedMessageError
from kourou.protocol.record.read import read_checked
from kourou.store.formats import QueueEntry
from kourou.store.log.commitlog import CommitLog
from kourou.store.queues.consumequeue import ConsumeQueue

_NO_TIME_RUN_MAX: Final = 1024
"""The most consecutive entries without a time that are tried; a page holds 205 entries."""
_REMOVED: Final = -1


def offset_by_time(
    log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False
) -> int:
    """Return the first offset whose message is not older than the time.

    `max_offset` if all messages are older. With `upper`, return the last offset whose message is
    not newer; `min_offset` if all are newer.

    Raises:
        OSError: the queue or the log cannot be read.
    """
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        at, at_ms = _next_time(log, queue, middle, min(high, middle + _NO_TIME_RUN_MAX))
        if at_ms is not None and (at_ms < timestamp_ms or (upper and at_ms == timestamp_ms)):
            low = at + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low


def _next_time(
    log: CommitLog, queue: ConsumeQueue, offset: int, stop: int
) -> tuple[int, int | None]:
    """Return the first offset whose message has a time, and the time; None if none has."""
    for at in range(offset, stop):
        entry = queue.entry(at)
        at_ms = None if entry is None else _stored_at_ms(log, entry)
        if at_ms is not None:
            return at, at_ms
    return offset, None


def store_time(log: CommitLog, entry: QueueEntry) -> int:
    """Return the store time of the entry's record, in epoch milliseconds.

    -1 if the record is removed or damaged, or the entry has no record.
    """
    at_ms = _stored_at_ms(log, entry)
    return _REMOVED if at_ms is None else at_ms


def _stored_at_ms(log: CommitLog, entry: QueueEntry) -> int | None:
    """Return the record's store time; -1 if it is removed, None if it cannot be determined."""
    position, size, _ = entry
    if 0 <= position < log.min_position:
        return _REMOVED
    if not log.min_position <= position < position + size <= log.segment_end(position):
        return None
    try:
        header = read_checked(log.read(position, size), 0)
    except FileNotFoundError:
        return _REMOVED
    except MalformedMessageError:
        return None
    return header.store_at_ms if header.physical_offset == position else None
