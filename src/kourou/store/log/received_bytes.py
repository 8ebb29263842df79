"""Bytes of another broker's log, as they are received: cuts them into whole, verified records.

Pure. The bytes come in pieces that may end anywhere. A record is passed on when all of it has been
received, its size, magic and position are right, and its checksums match. So no damaged byte
reaches the log of a slave, and its log always ends with a whole record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kourou.errors import MalformedMessageError, ReplicationRefusedError
from kourou.protocol.record.layout import (
    BLANK_BYTES,
    MAGIC_BLANK,
    RECORD_MAGICS,
    RECORD_START,
)
from kourou.protocol.record.read import read_checked
from kourou.protocol.record.scan import Fields, ordinary_records
from kourou.store.log.log_scan import fields_of


class ReceivedRun(NamedTuple):
    """Consecutive records of one segment.

    Attributes:
        position: log position of the first one.
        data: their bytes, a view of the received ones.
        records: their fields.
        is_filled: whether a blank follows them, up to the end of the segment.
    """

    position: int
    data: memoryview
    records: list[Fields]
    is_filled: bool


class ReceivedBytes:
    """The bytes of an incomplete record or blank, at most one segment.

    Attributes:
        position: log position of the first of these bytes: everything below was passed on.
        end: log position of the next byte to receive.
    """

    def __init__(self, position: int, segment_bytes: int) -> None:
        """Expect the byte at `position` next; segments of both logs have `segment_bytes`."""
        self.position = self.end = position
        self._segment_bytes = segment_bytes
        self._pieces: list[bytes] = []
        self._needed = RECORD_START.size  # nothing can be passed on with fewer bytes

    def add(self, pieces: Sequence[bytes | memoryview]) -> list[ReceivedRun]:
        """Add the next bytes, and return the records that they complete.

        The bytes are copied once.

        Raises:
            ReplicationRefusedError: the bytes are no records, or not those of this position. The
                object must not be used any more.
        """
        self.end += sum(map(len, pieces))
        if self.end - self.position < self._needed:
            self._pieces += map(bytes, pieces)
            return []
        buffer, runs, at = b"".join((*self._pieces, *pieces)), list[ReceivedRun](), 0
        while True:
            position = self.position + at
            run, self._needed = self._take_run(buffer, at, position)
            if not run.data and not run.is_filled:
                break
            runs.append(run)
            at += len(run.data)
            if not run.is_filled:
                break
            at += self._segment_end(position) - position - len(run.data)
        self.position += at
        self._pieces = [buffer[at:]] if at < len(buffer) else []
        return runs

    def _segment_end(self, position: int) -> int:
        return position - position % self._segment_bytes + self._segment_bytes

    def _take_run(self, buffer: bytes, start: int, position: int) -> tuple[ReceivedRun, int]:
        """Return the whole records from byte `start`, and the bytes needed for what follows."""
        at, end, records = start, self._segment_end(position), list[Fields]()
        while True:
            for fields in ordinary_records(buffer, at, position + at - start, end):
                records.append(fields)
                at += fields[1]
            own = position + at - start
            is_blank, size = self._unit(buffer, at, own, end - own)
            is_whole = 0 < size <= len(buffer) - at
            if is_blank or not is_whole:
                data, is_filled = memoryview(buffer)[start:at], is_blank and is_whole
                needed = RECORD_START.size if is_filled else size or RECORD_START.size
                return ReceivedRun(position, data, records, is_filled), needed
            records.append(_checked(buffer, at, own, size))
            at += size

    def _unit(self, buffer: bytes, at: int, position: int, left: int) -> tuple[bool, int]:
        """Return whether a blank begins here, and its or the record's size; 0 if unknown yet."""
        if len(buffer) - at < RECORD_START.size:
            return False, 0
        size, magic = RECORD_START.unpack_from(buffer, at)
        if magic == MAGIC_BLANK and size == left:
            return True, size
        if magic == MAGIC_BLANK:
            raise _refused(
                position,
                f"a file of the master's log ends {size} bytes later, of this log {left} bytes "
                "later: both need the same mappedFileSizeCommitLog",
            )
        if magic not in RECORD_MAGICS or not 0 < size <= left - BLANK_BYTES:
            raise _refused(
                position, f"size {size} with {left} bytes left, magic {magic & 0xFFFF_FFFF:#x}"
            )
        return False, size


def _checked(buffer: bytes, at: int, position: int, size: int) -> Fields:
    """Return the fields of a whole record that is not an ordinary one.

    Raises:
        ReplicationRefusedError: it is corrupt, or belongs elsewhere.
    """
    try:
        header = read_checked(buffer, at)
    except MalformedMessageError as error:
        raise _refused(position, str(error)) from None
    if header.physical_offset != position or header.total_size != size:
        raise _refused(position, f"the record claims to be at {header.physical_offset}")
    return fields_of(header, buffer)


def _refused(position: int, reason: str) -> ReplicationRefusedError:
    return ReplicationRefusedError(
        f"the bytes received at log position {position} are no record: {reason}"
    )
