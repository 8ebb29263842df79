"""What the end of the commit log says that no other file does yet: read at a start after a kill."""

from __future__ import annotations

from collections.abc import Iterator

from kourou.disk import Disk
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.message_layout import RecordHeader
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.store_sizes import log_files


def stored_before(disk: Disk, segment_bytes: int, at_ms: int) -> int:
    """Return a byte of the commit log where a file begins; what lies before is older than a time.

    For a store that nobody noted the place in: Java's. Store times follow a clock that may be set.

    Raises:
        OSError: the log cannot be read.
    """
    files = log_files(disk, COMMITLOG)
    for file in reversed(files):
        first = next(iter(walk_log(disk, [file], segment_bytes)), None)
        if first is not None and first.header is not None and first.header.store_at_ms < at_ms:
            return file.start
    return files[0].start if files else 0


def marked_records(
    disk: Disk, segment_bytes: int, start: int, name: str
) -> Iterator[tuple[RecordHeader, bytes]]:
    """Yield the records from byte `start` on that may have a property; on any thread.

    Args:
        disk: the commit log.
        segment_bytes: of its files.
        start: of a record.
        name: of the property; where a value ends with it, the record is yielded as well.

    Yields:
        Header, and properties as they are stored.

    Raises:
        OSError: the log cannot be read.
    """
    mark = f"{name}\x01".encode()
    for piece in walk_log(disk, log_files(disk, COMMITLOG), segment_bytes, start=start):
        header = piece.header
        if header is None:
            continue
        begin = header.properties_start
        text = piece.buffer[begin : begin + header.properties_size]
        if mark in text:
            yield header, text


def is_set_aside(header: RecordHeader) -> bool:
    """Return whether a record waits since its topic took no messages when it was due.

    Such a record lies in a delay level, and stands for the one that waited before.
    """
    return header.topic == SCHEDULE_TOPIC and header.prepared_transaction_offset > 0
