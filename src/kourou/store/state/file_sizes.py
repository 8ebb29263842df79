"""Verifies the sizes of log segments and queue files, which are created at full size.

    file                           meaning and action
    longer                         the store was created with a larger size: refused
    shorter, no sizes recorded     Java created the store with a smaller size: refused
    shorter, log segment           refused as damaged if it lacks a durable part; otherwise its
                                   creation or truncation was interrupted: extended
    shorter, queue file            damaged or interrupted: extended, its queue is to be rebuilt

Java leaves an empty last file when it is killed while it creates one; that is extended too.
"""

from __future__ import annotations

from collections.abc import Iterable

from kourou.disk import Disk
from kourou.errors import CorruptRecordError, StoreConfigError
from kourou.store.log.segment_list import SegmentList
from kourou.store.queues.consumequeue import ConsumeQueue


def check_log_sizes(
    disk: Disk, segments: SegmentList, *, are_recorded: bool, durable_below: int
) -> None:
    """Extend the commit log segments that a crash left short.

    Args:
        disk: holds the segments.
        segments: all segments of the log.
        are_recorded: the store has recorded the sizes it was created with.
        durable_below: the log was durable up to this position.

    Raises:
        StoreConfigError: the store was created with another size.
        CorruptRecordError: a segment lost a durable part.
    """
    for start in segments.starts():
        name, size = segments.name(start), disk.size(segments.name(start))
        if size == segments.file_bytes:
            continue
        is_last = start + segments.file_bytes == segments.end
        _refuse_other_size(name, size, segments, is_short=are_recorded or (not size and is_last))
        if start + size < durable_below:
            raise CorruptRecordError(
                name, size, f"the file ends here; it must be {segments.file_bytes} bytes long"
            )
        disk.truncate(name, segments.file_bytes)


def check_queue_sizes(
    disk: Disk, queues: Iterable[ConsumeQueue], *, are_recorded: bool
) -> list[ConsumeQueue]:
    """Extend short queue files; return their queues, one for each such file.

    Raises:
        StoreConfigError: the store was created with another size.
    """
    damaged = []
    for queue in queues:
        segments = queue.segments
        for start in segments.starts():
            name, size = segments.name(start), disk.size(segments.name(start))
            if size == segments.file_bytes:
                continue
            is_last = start + segments.file_bytes == segments.end
            _refuse_other_size(
                name, size, segments, is_short=are_recorded or (not size and is_last)
            )
            disk.truncate(name, segments.file_bytes)
            damaged.append(queue)
    return damaged


def _refuse_other_size(name: str, size: int, segments: SegmentList, *, is_short: bool) -> None:
    if is_short and size < segments.file_bytes:
        return
    raise StoreConfigError(
        f"{name} has {size} bytes, but the configured file size is {segments.file_bytes} bytes: "
        "open the store with the sizes it was created with"
    )
