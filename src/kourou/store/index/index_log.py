"""Reads the fields that the key index needs from the commit log, at low cost.

Checksums are not verified: recovery did that, or this process wrote the records. Damage is skipped
up to the next record that contains its own position.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from kourou.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from kourou.protocol.record.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from kourou.store.log.commitlog import CommitLog

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 256 * 1024
"""Size of one read, which takes a tenth of a millisecond if it is in memory."""

_UNREADABLE_BYTES: Final = 4096
"""Bytes skipped at once where the device fails to read: a page."""
_SIZES: Final = struct.Struct(">ii").unpack_from
_SIZES_BYTES: Final = 8
HEAD: Final = struct.Struct(">ii20xqi16xq20xi").unpack_from
"""Size, magic, physical offset, sys flag, store time and body size, if both hosts are IPv4."""
HEAD_BYTES: Final = 88
_TIME: Final = struct.Struct(">q").unpack_from
_SIZE: Final = struct.Struct(">i").unpack_from
_SIZE16: Final = struct.Struct(">h").unpack_from
_V6_BYTES: Final = 12
V6_FLAGS: Final = BORN_HOST_V6 | STORE_HOST_V6
_HEAD_BYTES_MAX: Final = HEAD_BYTES + 2 * _V6_BYTES
_MAGICS: Final = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
_TAIL_BYTES_MAX: Final = 2 * (2 + 0x7FFF)
"""The longest topic and properties, with their size fields."""
TAIL_BYTES_MIN: Final = 4
"""The size fields of topic and properties, and a topic of one byte."""


class LogRecord(NamedTuple):
    """A record's position, and the fields from which its keys are read."""

    start: int
    size: int
    sys_flag: int
    store_at_ms: int
    topic: bytes
    properties: bytes


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
            at = _take_v1(chunk, at, start, end, records_max, found)
        while len(found) < records_max and 0 <= at <= end - _SIZES_BYTES:
            record = _parse(chunk, at, start, limit, segment_end)
            if record is None:
                break  # the record ends after the chunk
            if not record.size:
                at = self._skip_damage(at, end, limit, segment_end)
                continue
            at += record.size
            if record.topic:
                found.append(record)
        if end - _SIZES_BYTES < at < end == limit:
            at = limit
        self.position = start + at
        return found

    def walk(self, until: int, take: Callable[[bytes, int, int, int], int]) -> None:
        """Call `take` with the bytes in memory, up to `until`, and move the position.

        Args:
            until: the end of a record.
            take: gets the bytes, the start of the next record in them, their log position, and
                the end of the usable bytes; returns the start of the first record not taken.
        """
        start = self._chunk_start
        end = min(len(self._chunk), until - start, self._log.segment_end(start) - start)
        at = self.position - start
        if at >= 0:
            self.position = start + take(self._chunk, at, start, end)

    def seek(self, position: int) -> None:
        """Move to the position, which must be the start of a record."""
        self.position = position

    def _next_size(self) -> int:
        """Return the size of the next record, if the chunk has its first bytes."""
        at = self.position - self._chunk_start
        if not 0 <= at <= len(self._chunk) - 4:
            return 0
        return int(_SIZE(self._chunk, at)[0])

    def _is_whole(self, at: int) -> bool:
        """Tell whether the chunk has the complete record and the largest fixed part of one."""
        return at + max(self._next_size(), _HEAD_BYTES_MAX) <= len(self._chunk)

    def _skip_damage(self, at: int, end: int, limit: int, segment_end: int) -> int:
        """Return where the next record or blank begins after damage, or where to read on."""
        next_at, last = at + 1, end - HEAD_BYTES
        while next_at <= last:
            found = [self._chunk.find(magic, next_at + 4, end) for magic in _MAGICS]
            next_at = min((at_magic - 4 for at_magic in found if at_magic >= 0), default=end)
            if next_at <= last and self._is_start(next_at, segment_end):
                break
            next_at += 1
        else:
            next_at = end if end == limit else max(at, last) + 1
        log.warning(
            "index.damage_stepped_over physical_offset=%d bytes=%d",
            self._chunk_start + at,
            next_at - at,
        )
        return next_at

    def _is_start(self, at: int, segment_end: int) -> bool:
        size, magic, offset, *_ = HEAD(self._chunk, at)
        if magic == MAGIC_BLANK:
            return bool(size == segment_end - at)
        return bool(offset == self._chunk_start + at)


def record_time(log_: CommitLog, position: int) -> int | None:
    """Return the store time of the record at `position`; None if no record can be read there.

    May block on the device.
    """
    try:
        data = log_.read(position, _HEAD_BYTES_MAX).ljust(_HEAD_BYTES_MAX, b"\0")
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    _, magic, offset, sys_flag, store_at_ms, _ = HEAD(data, 0)
    if magic not in (MAGIC_V1, MAGIC_V2) or offset != position:
        return None
    at_ms = _TIME(data, 56 + _V6_BYTES)[0] if sys_flag & BORN_HOST_V6 else store_at_ms
    return int(at_ms)


def _take_v1(
    chunk: bytes, at: int, chunk_start: int, end: int, records_max: int, found: list[LogRecord]
) -> int:
    """Append complete version 1 records with IPv4 hosts to `found`; return where the next begins.

    Stops at the first other record, which is left to `_parse`. Accepts no record that `_parse`
    would refuse. One loop without calls per record, because it runs for each message.
    """
    new = tuple.__new__  # LogRecord's own constructor takes twice as long
    last = end - HEAD_BYTES
    while at <= last and len(found) < records_max:
        size, magic, offset, sys_flag, store_at_ms, body_size = HEAD(chunk, at)
        next_at = at + size
        topic_at = at + HEAD_BYTES + body_size
        if (
            magic != MAGIC_V1
            or offset != chunk_start + at
            or sys_flag & V6_FLAGS
            or not at < topic_at <= next_at - TAIL_BYTES_MIN
            or next_at > end
        ):
            break
        topic_at += 1
        topic_end = topic_at + chunk[topic_at - 1]
        properties_at = topic_end + 2
        if (
            topic_end == topic_at
            or properties_at > next_at
            or _SIZE16(chunk, topic_end)[0] != next_at - properties_at
        ):
            break
        topic, properties = chunk[topic_at:topic_end], chunk[properties_at:next_at]
        found.append(new(LogRecord, (offset, size, sys_flag, store_at_ms, topic, properties)))
        at = next_at
    return at


_DAMAGE: Final = LogRecord(0, 0, 0, 0, b"", b"")


def _parse(
    chunk: bytes, at: int, chunk_start: int, limit: int, segment_end: int
) -> LogRecord | None:
    """Return the record at a byte of the chunk; None if the chunk ends before the record does.

    A blank is returned as a record without a topic, damage as one of size 0.
    """
    if at + HEAD_BYTES > len(chunk):
        size, magic = _SIZES(chunk, at)
        is_record = magic in (MAGIC_V1, MAGIC_V2) and HEAD_BYTES < size <= limit - at
        return None if is_record else _blank(chunk_start + at, size, magic, segment_end - at)
    size, magic, offset, sys_flag, store_at_ms, body_size = HEAD(chunk, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return _blank(chunk_start + at, size, magic, segment_end - at)
    if offset != chunk_start + at or not HEAD_BYTES < size <= limit - at:
        return _DAMAGE
    end = at + size
    if end > len(chunk):
        # A damaged size may claim a whole segment: do not read that much to find out.
        is_likely = sys_flag & V6_FLAGS or 0 < size - HEAD_BYTES - body_size <= _TAIL_BYTES_MAX
        return None if is_likely else _DAMAGE
    topic_at = at + HEAD_BYTES + body_size
    if sys_flag & V6_FLAGS:
        store_at_ms, topic_at = _v6_fields(chunk, at, sys_flag)
    if not at < topic_at <= end - TAIL_BYTES_MIN:
        return _DAMAGE
    if magic == MAGIC_V1:
        topic_size, topic_at = chunk[topic_at], topic_at + 1
    else:
        topic_size, topic_at = _SIZE16(chunk, topic_at)[0], topic_at + 2
    topic_end = topic_at + topic_size
    if (
        topic_size <= 0
        or topic_end > end - 2
        or _SIZE16(chunk, topic_end)[0] != end - topic_end - 2
    ):
        return _DAMAGE
    fields = (offset, size, sys_flag, store_at_ms, chunk[topic_at:topic_end])
    # LogRecord's own constructor takes twice as long, and runs for each message.
    return tuple.__new__(LogRecord, (*fields, chunk[topic_end + 2 : end]))


def _blank(position: int, size: int, magic: int, left: int) -> LogRecord:
    """Return the blank that fills the segment to its end, or damage if it is none."""
    if magic == MAGIC_BLANK and size == left:
        return LogRecord(position, size, 0, 0, b"", b"")
    return _DAMAGE


def _v6_fields(chunk: bytes, at: int, sys_flag: int) -> tuple[int, int]:
    """Return the store time and the start of the topic of a record with an IPv6 host."""
    born = _V6_BYTES if sys_flag & BORN_HOST_V6 else 0
    store = _V6_BYTES if sys_flag & STORE_HOST_V6 else 0
    if at + _HEAD_BYTES_MAX > len(chunk):
        return 0, 0  # its size is smaller than its own head: damage
    body_size = int(_SIZE(chunk, at + 84 + born + store)[0])
    store_at_ms = int(_TIME(chunk, at + 56 + born)[0])
    return store_at_ms, at + HEAD_BYTES + born + store + body_size
