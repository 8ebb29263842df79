"""From a time to the offset of a queue, by the store times of the records that it names.

Source: ConsumeQueue.binarySearchInQueueByTime and BoundaryType.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from kourou.model.sysflag import BORN_HOST_V6
from kourou.store.commitlog import CommitLog
from kourou.store.consumequeue import ConsumeQueue
from kourou.store.formats import (
    STORE_TIME,
    STORE_TIME_AT,
    STORE_TIME_AT_V6,
    STORE_TIME_READ_BYTES,
    SYS_FLAG,
    SYS_FLAG_AT,
    QueueEntry,
)


def offset_by_time(
    log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False
) -> int:
    """Return the first offset whose message is not older than the time.

    With `upper`, the last one whose message is not newer; `min_offset` if all are newer. Without,
    `max_offset` if all are older.

    Raises:
        OSError: the queue or the log cannot be read.
    """
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        entry = queue.entry(middle)
        at_ms = -1 if entry is None else store_time(log, entry)
        if at_ms < timestamp_ms or (upper and at_ms == timestamp_ms):
            low = middle + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low


def store_time(log: CommitLog, entry: QueueEntry) -> int:
    """Return the store time of the entry's record, in epoch milliseconds; -1 if it is gone."""
    try:
        data = log.read(entry.physical_offset, STORE_TIME_READ_BYTES)
    except FileNotFoundError:
        return -1
    if len(data) < STORE_TIME_READ_BYTES:
        return -1
    is_v6 = SYS_FLAG.unpack_from(data, SYS_FLAG_AT)[0] & BORN_HOST_V6
    at = STORE_TIME_AT_V6 if is_v6 else STORE_TIME_AT
    value: int = STORE_TIME.unpack_from(data, at)[0]
    return value
