"""Reads stored records: the ranges of a read's plan, or one record at a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kourou.errors import CorruptRecordError, MalformedMessageError
from kourou.protocol.record.layout import RECORD_MAGICS, RECORD_START
from kourou.protocol.record.read import read_checked
from kourou.store.log.commitlog import CommitLog

_READ_WORTH_BYTES: Final = 32 * 1024
"""The bytes that can be copied from the page cache in the time of one more system call."""


def read_resident_ranges(log: CommitLog, ranges: Sequence[tuple[int, int]]) -> bytes | None:
    """Return the bytes of the ranges, one after another, if all are in memory; never waits.

    None if a segment is removed, or the read might wait for the device.

    Raises:
        CorruptRecordError: the log's file is shorter than it should be.
    """
    spanned = _read_span(log, ranges)
    if spanned is not None:
        return spanned
    parts: list[bytes] = []
    for position, size in ranges:
        try:
            data = log.read_resident(position, size)
        except FileNotFoundError:
            return None
        if data is None:
            return None
        if len(data) < size:
            file, file_offset = log.segments.name(position), log.file_offset(position)
            raise CorruptRecordError(file, file_offset, f"only {len(data)} of {size} bytes exist")
        parts.append(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _read_span(log: CommitLog, ranges: Sequence[tuple[int, int]]) -> bytes | None:
    """Return the ranges' bytes from one view, or one read, that spans all of them.

    Records of one queue lie between those of others. Reading those as well costs less than a call
    for each range: with 8 queues of 1 KB messages a quarter, and half of that if the file is
    mapped. None if one read does not pay here, or not all bytes are in memory.
    """
    if not ranges:
        return None
    first, end = min(ranges)[0], max(map(sum, ranges))
    span = end - first
    if span > len(ranges) * _READ_WORTH_BYTES or end > log.segment_end(first):
        return None
    try:
        view = log.view_resident(first, span)
        if view is None and len(ranges) > 1:
            data = log.read_resident(first, span)
            view = memoryview(data) if data is not None and len(data) == span else None
    except FileNotFoundError:
        return None
    if view is None:
        return None
    return b"".join([view[at - first : at - first + size] for at, size in ranges])


def read_record_at(log: CommitLog, physical_offset: int, end: int) -> bytes | None:
    """Return the verified record that begins at the offset and ends at or before `end`.

    None if no whole record begins there: the offset may come from a client.
    """
    if not log.min_position <= physical_offset < end:
        return None
    try:
        start = log.read(physical_offset, RECORD_START.size)
        if len(start) < RECORD_START.size:
            return None
        size, magic = RECORD_START.unpack(start)
        room = min(end, log.segment_end(physical_offset)) - physical_offset
        if magic not in RECORD_MAGICS or not 0 < size <= room:
            return None
        data = log.read(physical_offset, size)
        header = read_checked(data, 0)
    except (FileNotFoundError, MalformedMessageError):
        return None
    return data if header.physical_offset == physical_offset else None
