"""Reading a commit log from end to end: record after record, across blanks, up to what is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kourou.disk import Disk
from kourou.errors import MalformedMessageError
from kourou.protocol.message_layout import MAGIC_BLANK, RecordHeader
from kourou.store.formats import BLANK_BYTES, RECORD_START
from kourou.store.record_seal import read_checked
from kourou.store.segment_list import SegmentList

_READ_BYTES: Final = 1024 * 1024


class LogScan:
    """Walks the records from a position on and stops before the first that is not whole.

    Iterating gives each record's header and the buffer that its places refer to. Afterwards, or at
    any time between:

    Attributes:
        position: just behind the last whole record or blank.
        problem: why the next bytes are no record; empty when they are zeros or there are none.
        blanks: how many segments ended by a blank.
    """

    def __init__(self, disk: Disk, segments: SegmentList, start: int) -> None:
        self._disk = disk
        self._segments = segments
        self.position = start
        self.problem = ""
        self.blanks = 0
        self._buffer = b""
        self._buffer_start = start

    def __iter__(self) -> Iterator[tuple[RecordHeader, bytes]]:
        while self.position < self._segments.end:
            at = self._require(RECORD_START.size)
            if at is None:
                self.problem = "the file is cut short"
                return
            size, magic = RECORD_START.unpack_from(self._buffer, at)
            left = self._segments.file_bytes - self.position % self._segments.file_bytes
            if magic == MAGIC_BLANK and size == left:
                self.position += left
                self.blanks += 1
                continue
            header = self._record(size, magic, left)
            if header is None:
                return
            yield header, self._buffer
            self.position += size

    def _record(self, size: int, magic: int, left: int) -> RecordHeader | None:
        """Return the header of the record at the position, if there is a whole one."""
        if size == 0 and magic == 0:
            return None
        if not 0 < size <= left - BLANK_BYTES:
            self.problem = f"size {size} with {left} bytes left, magic {magic & 0xFFFF_FFFF:#x}"
            return None
        at = self._require(size)
        if at is None:
            self.problem = "the file is cut short"
            return None
        try:
            header = read_checked(self._buffer, at)
        except MalformedMessageError as error:
            self.problem = str(error)
            return None
        if header.physical_offset != self.position or header.total_size != size:
            self.problem = f"it claims to be at {header.physical_offset}"
            return None
        return header

    def _require(self, size: int) -> int | None:
        """Return where in the buffer the position is, with `size` bytes from there; None if cut."""
        at = self.position - self._buffer_start
        if at >= 0 and at + size <= len(self._buffer):
            return at
        step = self._segments.file_bytes
        file_offset = self.position % step
        self._buffer_start = self.position
        self._buffer = self._disk.read(
            self._segments.name(self.position),
            file_offset,
            min(max(size, _READ_BYTES), step - file_offset),
        )
        return 0 if size <= len(self._buffer) else None


def used_bytes(disk: Disk, segments: SegmentList, position: int) -> int:
    """Return the bytes of one file from the position to its last that is not zero; 0 if all are."""
    used, at, step = 0, position, segments.file_bytes
    name, file_end = segments.name(position), position - position % step + step
    while at < file_end:
        data = disk.read(name, at % step, min(_READ_BYTES, file_end - at))
        if not data:
            break
        kept = len(data.rstrip(b"\0"))
        if kept:
            used = at + kept - position
        at += len(data)
    return used
