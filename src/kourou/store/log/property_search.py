"""Search for records with a given property at the end of the commit log.

Used at a start after a kill, for state that only the log holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from kourou.disk import Disk
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.record.layout import RecordHeader
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import log_files


def position_before(disk: Disk, segment_bytes: int, at_ms: int) -> int:
    """Return the start of a commit log file before which all records are older than a time.

    For stores without a recorded position, such as those that Java wrote. The result is
    approximate: store times follow a clock that may have been set.

    Raises:
        OSError: the log cannot be read.
    """
    files = log_files(disk, COMMITLOG)
    for file in reversed(files):
        first = next(iter(walk_log(disk, [file], segment_bytes)), None)
        if first is not None and first.header is not None and first.header.store_at_ms < at_ms:
            return file.start
    return files[0].start if files else 0


def records_with_property(
    disk: Disk, segment_bytes: int, start: int, name: str, *, end: int | None = None
) -> Iterator[tuple[RecordHeader, bytes]]:
    """Yield the records from byte `start` that may have a property; on any thread.

    Args:
        disk: the disk that holds the commit log.
        segment_bytes: the size of its files.
        start: the position of a record.
        name: the property; records of which another name ends with this one are yielded as well.
        end: see `walk_log`.

    Yields:
        The header and the stored properties.

    Raises:
        OSError: the log cannot be read.
    """
    mark = f"{name}\x01".encode()
    for piece in walk_log(disk, log_files(disk, COMMITLOG), segment_bytes, start=start, end=end):
        header = piece.header
        if header is None:
            continue
        text = header.properties(piece.buffer)
        if mark in text:
            yield header, text


def is_set_aside(header: RecordHeader) -> bool:
    """Tell whether the record was set aside because its topic refused messages when it was due.

    Such a record is stored in a delay level and replaces the record that was due.
    """
    return header.topic == SCHEDULE_TOPIC and header.prepared_transaction_offset > 0
