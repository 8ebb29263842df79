"""Every file of the store has its full size from the start; what a shorter or longer one means.

    longer                         the store was made with a larger size: refused
    shorter, no sizes recorded     Java made the store with a smaller size: refused
    shorter, after a clean stop    a log segment was damaged: refused; a queue file: made again
    shorter, after a crash         its creation, or a cut, was interrupted: extended

An empty last file is what Java leaves when it dies while it creates one.
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
        disk: where they are.
        segments: all of them.
        are_recorded: the store says itself which sizes it was made with.
        durable_below: the log was complete up to this position.

    Raises:
        StoreConfigError: the store was made with another size.
        CorruptRecordError: a segment lost a part that was durable.
    """
    for start in segments.starts():
        name, size = segments.name(start), disk.size(segments.name(start))
        if size == segments.file_bytes:
            continue
        is_last = start + segments.file_bytes == segments.end
        _refuse_other_size(name, size, segments, is_short=are_recorded or (not size and is_last))
        if start + size < durable_below:
            raise CorruptRecordError(
                name, size, f"the file ends here, and was {segments.file_bytes} bytes long"
            )
        disk.truncate(name, segments.file_bytes)


def check_queue_sizes(
    disk: Disk, queues: Iterable[ConsumeQueue], *, are_recorded: bool
) -> list[ConsumeQueue]:
    """Extend the queue files that are short; return the queues that had such.

    Raises:
        StoreConfigError: the store was made with another size.
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
        f"{name} has {size} bytes, and the store is asked to open with files of "
        f"{segments.file_bytes}: open it with the sizes it was made with"
    )
