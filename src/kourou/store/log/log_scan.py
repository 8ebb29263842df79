"""Sequential scan of a commit log: reads record after record, across blanks, to the log's end.

Bytes that are not a valid record mean one of two things. Below `durable_below` the records were
once durable: the bytes are damaged, and the scan skips them to the next position that certainly
holds a record or a blank, or to the durable end. At or above `durable_below` they are the end of
the log: an incomplete append.

    next position           condition
    after the bad record    by its size, if a whole record or the durable end is there
    later in the segment    a record's magic and own position, or a blank's magic, then checksums
    the next segment        the same, from its start
    the durable end         no whole record is left before it, but every page up to it has bytes
                            other than zero: the last record is damaged

If those bytes are zeros, or their file is missing, the log lost its end. The scan reports no damage
then and stops before the durable end; the caller must refuse the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kourou.disk import Disk
from kourou.errors import MalformedMessageError
from kourou.protocol.record.layout import (
    BLANK_BYTES,
    MAGIC_BLANK,
    RECORD_START,
    SIZE_BYTES,
    RecordHeader,
)
from kourou.protocol.record.read import read_checked, read_record
from kourou.protocol.record.scan import MAGIC_BYTES, Fields, candidates, ordinary_records
from kourou.store.log.damage import DamagedSpan
from kourou.store.log.segment_list import SegmentList

_READ_BYTES: Final = 1024 * 1024
_FIRST_READ_BYTES: Final = 4096
_PAGE_BYTES: Final = 4096


class LogScan:
    """Iterates over the records from a position and stops before the first that is not whole.

    Iteration yields each record's header and the buffer that the header's offsets refer to;
    `records` yields fewer fields, four times as fast. The attributes are valid during and after the
    iteration.

    Args:
        disk: the disk that holds the segments.
        segments: all segments of the log.
        start: the position of a record, a blank, or the log's end.
        durable_below: damage below this position is skipped; 0 skips none.
        is_end: `durable_below` is known to be the end of a record.

    Attributes:
        position: the end of the last whole record or blank.
        problem: why the next bytes are not a record; empty if they are zeros or missing.
        blanks: the number of blanks passed.
        damaged: the skipped spans, in log order.
        damaged_headers: headers of damaged records by position, as far as they can be parsed; their
            values may be wrong.
    """

    def __init__(
        self,
        disk: Disk,
        segments: SegmentList,
        start: int,
        *,
        durable_below: int = 0,
        is_end: bool = False,
    ) -> None:
        self._disk = disk
        self._segments = segments
        self._durable_below = durable_below
        self._is_end = is_end
        self.position = start
        self.problem = ""
        self.blanks = 0
        self.damaged: list[DamagedSpan] = []
        self.damaged_headers: dict[int, RecordHeader] = {}
        self._buffer = b""
        self._buffer_start = start

    def __iter__(self) -> Iterator[tuple[RecordHeader, bytes]]:
        while (header := self._next()) is not None:
            yield header, self._buffer
            self.position += header.total_size

    def records(self) -> Iterator[Fields]:
        """Continue the scan, yielding the fields of a `ScannedRecord` for each record."""
        step = self._segments.file_bytes
        while True:
            at = self.position - self._buffer_start
            if 0 <= at < len(self._buffer):
                segment_end = self.position - self.position % step + step
                for fields in ordinary_records(self._buffer, at, self.position, segment_end):
                    yield fields
                    self.position = fields[0] + fields[1]
            header = self._next()
            if header is None:
                return
            yield fields_of(header, self._buffer)
            self.position += header.total_size

    def _next(self) -> RecordHeader | None:
        """Return the header of the record at the position; None at the end of the log."""
        while self.position < self._segments.end:
            header = self._record()
            if header is not None:
                return header
            if not self._skip_blank() and not self._skip_damage():
                return None
        return None

    def _skip_blank(self) -> bool:
        """Move to the next segment if a blank ends this one at the position."""
        step = self._segments.file_bytes
        left = step - self.position % step
        at = self._require(RECORD_START.size)
        if at is None or RECORD_START.unpack_from(self._buffer, at) != (left, MAGIC_BLANK):
            return False
        self.problem = ""
        self.position += left
        self.blanks += 1
        return True

    def _record(self) -> RecordHeader | None:
        """Return the header of the record at the position; None if it is not whole."""
        at = self._require(RECORD_START.size)
        if at is None:
            self.problem = "the file is cut short"
            return None
        size, magic = RECORD_START.unpack_from(self._buffer, at)
        left = self._segments.file_bytes - self.position % self._segments.file_bytes
        self.problem = ""
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
        """Return the buffer offset of the position; None if fewer than `size` bytes follow.

        Reads the file if the buffer lacks them.
        """
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

    # Damage ------------------------------------------------------------------------------------

    def _skip_damage(self) -> bool:
        """Skip the invalid bytes at the position if they are damage and the log continues."""
        start, problem = self.position, self.problem
        if start >= self._durable_below:
            return False
        header = self._damaged_header()
        found = self._end_of_damaged_record() or self._search(start)
        self.position, self.problem = start, problem
        if found is None and self._has_data_to_durable_end(start):
            found = self._durable_below
            header = header or self._last_header()
        if found is None:
            return False
        if header is not None:
            self.damaged_headers[start] = header
        step = self._segments.file_bytes
        while start < found:
            end = min(found, start - start % step + step)
            self.damaged.append(DamagedSpan(start, end - start, problem or "zeros"))
            start = end
        self.position, self.problem = found, ""
        return True

    def _damaged_header(self) -> RecordHeader | None:
        """Return the header of the damaged record at the position, if its layout is intact."""
        at = self._require(RECORD_START.size)
        if at is None:
            return None
        size = RECORD_START.unpack_from(self._buffer, at)[0]
        left = self._segments.file_bytes - self.position % self._segments.file_bytes
        at = self._require(size) if 0 < size <= left - BLANK_BYTES else None
        if at is None:
            return None
        try:
            header = read_record(self._buffer, at, check_crc=False)
        except MalformedMessageError:
            return None
        is_here = header.physical_offset == self.position and header.total_size == size
        return header if is_here else None

    def _last_header(self) -> RecordHeader | None:
        """Return the header of the log's last record if only its size field is damaged."""
        size = self._durable_below - self.position
        left = self._segments.file_bytes - self.position % self._segments.file_bytes
        at = self._require(size) if size <= left - BLANK_BYTES else None
        if at is None or size < RECORD_START.size:
            return None
        data = size.to_bytes(SIZE_BYTES, "big") + self._buffer[at + SIZE_BYTES : at + size]
        try:
            header = read_checked(data, 0)
        except MalformedMessageError:
            return None
        is_here = header.physical_offset == self.position and header.total_size == size
        return header if is_here else None

    def _has_data_to_durable_end(self, start: int) -> bool:
        """Tell whether every page up to the durable end, and its last byte, is not zero."""
        end, step = self._durable_below, self._segments.file_bytes
        if not self._is_end or end > self._segments.end:
            return False
        at, data = start, b""
        while at < end:
            stop = min(end, at - at % _PAGE_BYTES + _PAGE_BYTES, at - at % step + step)
            data = self._disk.read(self._segments.name(at), at % step, stop - at)
            if len(data) < stop - at or not data.strip(b"\0"):
                return False
            at = stop
        return data[-1:] != b"\0"

    def _end_of_damaged_record(self) -> int | None:
        """Return the end of the record at the position by its size, if the log continues there."""
        start = self.position
        at = self._require(RECORD_START.size)
        size = 0 if at is None else RECORD_START.unpack_from(self._buffer, at)[0]
        left = self._segments.file_bytes - start % self._segments.file_bytes
        if not 0 < size <= left:
            return None
        return start + size if self._continues_at(start + size) else None

    def _continues_at(self, position: int) -> bool:
        """Tell whether the position holds a record or a blank, or is the durable end."""
        if position >= self._durable_below:
            return position == self._durable_below
        self.position = position
        if self._record() is not None:
            return True
        blanks = self.blanks
        is_blank = self._skip_blank()
        self.blanks = blanks
        return is_blank

    def _search(self, start: int) -> int | None:
        """Return the first position after `start` where the log certainly continues; else None."""
        step, at = self._segments.file_bytes, start + 1
        end = min(self._durable_below, self._segments.end)
        while at < end:
            segment_end = min(end, at - at % step + step)
            if at % step == 0 and self._continues_at(at):
                return at
            found = self._search_segment(at, segment_end)
            if found is not None:
                return found
            at = segment_end
        return None

    def _search_segment(self, start: int, end: int) -> int | None:
        """Return the position of the first record or blank from `start`, in one segment."""
        at = start
        while at < end:
            name, file_offset = self._segments.name(at), at % self._segments.file_bytes
            data_at = self._disk.next_data(name, file_offset)
            at += data_at - file_offset
            data = self._disk.read(name, data_at, min(_READ_BYTES, max(end - at, 0)))
            if not data:
                return None
            for candidate in candidates(data, at):
                if start <= candidate < end and self._continues_at(candidate):
                    return candidate
            if len(data) <= MAGIC_BYTES:
                return None
            at += len(data) - MAGIC_BYTES
        return None


def fields_of(header: RecordHeader, buffer: bytes) -> Fields:
    """Return the fields of a `ScannedRecord`; the header's offsets refer to the buffer."""
    return (
        header.physical_offset,
        header.total_size,
        header.queue_id,
        header.queue_offset,
        header.sys_flag,
        header.store_at_ms,
        header.topic.encode(),
        header.properties(buffer),
    )


def used_bytes(disk: Disk, segments: SegmentList, position: int) -> int:
    """Return the number of bytes from the position to the file's last one that is not zero.

    0 if all are zero. Holes are not read, and small reads come first, because a store may have
    40,000 such files.
    """
    used, at, step = 0, position, segments.file_bytes
    name, file_end = segments.name(position), position - position % step + step
    size = _FIRST_READ_BYTES
    while at < file_end:
        at += disk.next_data(name, at % step) - at % step
        data = disk.read(name, at % step, min(size, file_end - at)) if at < file_end else b""
        if not data:
            break
        used_size = len(data.rstrip(b"\0"))
        if used_size:
            used = at + used_size - position
        at += len(data)
        size = min(2 * size, _READ_BYTES)
    return used
