"""Reads the fields that the key index needs from the commit log, at low cost.

Checksums are not verified: recovery did that, or this process wrote the records. Damage is skipped
up to the next record that contains its own position.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from kourou.protocol.record.layout import HEAD_BYTES, HEAD_BYTES_MAX, RECORD_START
from kourou.protocol.record.scan import (
    LogRecord,
    append_unverified,
    candidates,
    is_start,
    parse_unverified,
    store_time,
)
from kourou.store.log.commitlog import CommitLog

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 256 * 1024
"""Size of one read, which takes a tenth of a millisecond if it is in memory."""

_UNREADABLE_BYTES: Final = 4096
"""Bytes skipped at once where the device fails to read: a page."""


class LogCursor:
    """Iterates over records from a position on, in a chunk of bytes loaded by `read`.

    Attributes:
        position: the start of the next record.
    """

    def __init__(self, log_: CommitLog, position: int) -> None:
        self.position = position
        self._log = log_
        self._chunk = b""
        self._chunk_start = position

    def read(self, until: int, *, may_block: bool) -> bool:
        """Load the next bytes below `until`, which must be the end of a record.

        Returns False if that might block and `may_block` is not set. Bytes that the device fails
        to read (EIO) count as damage.

        Raises:
            OSError: the log cannot be read for another reason.
        """
        position = self.position = max(self.position, self._log.min_position)
        at = position - self._chunk_start
        if 0 <= at < len(self._chunk) and self._is_whole(at):
            return True
        end = min(until, self._log.segment_end(position))
        size = min(max(CHUNK_BYTES, self._next_size()), end - position)
        read = self._log.read if may_block else self._log.read_resident
        try:
            data = read(position, size)
        except FileNotFoundError:
            if not may_block:
                return False
            data = b""  # the segment has expired and was removed
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if not may_block:
                return False
            size, data = min(size, _UNREADABLE_BYTES), b""
        if data is None:
            return False
        self._chunk, self._chunk_start = data.ljust(size, b"\0"), position
        return True

    def next_records(self, until: int, records_max: int) -> list[LogRecord]:
        """Return the next records in memory that end at or below `until`.

        Moves the position after the last one. An empty list means that `read` must load more, or
        that `until` is reached.
        """
        found: list[LogRecord] = []
        chunk, start = self._chunk, self._chunk_start
        segment_end = self._log.segment_end(start) - start
        limit = min(until - start, segment_end)
        end = min(len(chunk), limit)
        at = self.position - start
        if at >= 0:
            at = append_unverified(chunk, at, start, end, records_max, found)
        while len(found) < records_max and 0 <= at <= end - RECORD_START.size:
            record = parse_unverified(chunk, at, start, limit, segment_end)
            if record is None:
                break  # the record ends after the chunk
            if not record.size:
                at = self._skip_damage(at, end, limit, segment_end)
                continue
            at += record.size
            if record.topic:
                found.append(record)
        if end - RECORD_START.size < at < end == limit:
            at = limit
        self.position = start + at
        return found

    def seek(self, position: int) -> None:
        """Move to the position, which must be the start of a record."""
        self.position = position

    def _next_size(self) -> int:
        """Return the size of the next record, if the chunk has its first bytes."""
        at = self.position - self._chunk_start
        if not 0 <= at <= len(self._chunk) - RECORD_START.size:
            return 0
        return int(RECORD_START.unpack_from(self._chunk, at)[0])

    def _is_whole(self, at: int) -> bool:
        """Tell whether the chunk has the complete record and the largest fixed part of one."""
        return at + max(self._next_size(), HEAD_BYTES_MAX) <= len(self._chunk)

    def _skip_damage(self, at: int, end: int, limit: int, segment_end: int) -> int:
        """Return where the next record or blank begins after damage, or where to read on."""
        chunk, start = self._chunk, self._chunk_start
        last = end - HEAD_BYTES
        for position in candidates(chunk[at + 1 : end], start + at + 1):
            next_at = position - start
            if at < next_at <= last and is_start(chunk, next_at, segment_end):
                break
        else:
            next_at = end if end == limit else max(at, last) + 1
        log.warning(
            "index.damage_stepped_over physical_offset=%d bytes=%d",
            self._chunk_start + at,
            next_at - at,
        )
        return next_at


def record_time(log_: CommitLog, position: int) -> int | None:
    """Return the store time of the record at `position`; None if no record can be read there.

    May block on the device.
    """
    try:
        data = log_.read(position, HEAD_BYTES_MAX).ljust(HEAD_BYTES_MAX, b"\0")
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    return store_time(data, position)
