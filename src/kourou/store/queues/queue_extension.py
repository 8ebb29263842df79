"""Queue extension: units with data that does not fit into a queue entry, in files of their own.

Java writes them with the option `enableConsumeQueueExt`, for the bit maps of its filters. The entry
then holds the unit's address in place of its tags code: the byte of the extension's files at which
the unit begins, minus 2^63. No tags code is that small.

    unit      2  size of the unit, 20 to 32767
              8  tags code
              8  store time
              2  size of the bit map
              n  bit map
    file end  -1 in the 2 bytes after the last unit; a unit never crosses into the next file

Units are derived data: if an entry's unit is missing or incomplete, the message is delivered
whatever the filter.

Source: ConsumeQueueExt.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import StoreConfigError
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import CONSUMEQUEUE_EXT, extension_directory

log = logging.getLogger(__name__)

_HEAD: Final = struct.Struct(">hqqh")
_SIZE: Final = struct.Struct(">h")
UNIT_BYTES_MAX: Final = 0x7FFF
BIT_MAP_BYTES_MAX: Final = UNIT_BYTES_MAX - _HEAD.size

_LOWEST: Final = -(1 << 63)
_ADDRESS_MAX: Final = -(1 << 31) - 1
_POSITION_MAX: Final = _ADDRESS_MAX - _LOWEST
_END_BYTES: Final = 4
"""Bytes that stay free after the last unit of a file."""
_END: Final = _SIZE.pack(-1)


class ExtensionUnit(NamedTuple):
    """The data of a message that its queue entry refers to."""

    tags_code: int
    store_at_ms: int
    bit_map: bytes


def is_address(tags_code: int) -> bool:
    """Tell whether an entry's tags code is the address of a unit."""
    return tags_code <= _ADDRESS_MAX


def encode_unit(unit: ExtensionUnit) -> bytes:
    """Return the encoded unit; the bit map has at most `BIT_MAP_BYTES_MAX` bytes."""
    size = _HEAD.size + len(unit.bit_map)
    return _HEAD.pack(size, unit.tags_code, unit.store_at_ms, len(unit.bit_map)) + unit.bit_map


def decode_unit(data: bytes) -> ExtensionUnit | None:
    """Return the unit at the start of the bytes; None if there is no whole one."""
    if len(data) < _HEAD.size:
        return None
    size, code, store_at_ms, bit_map_size = _HEAD.unpack_from(data)
    if size != _HEAD.size + bit_map_size or not 0 <= bit_map_size <= len(data) - _HEAD.size:
        return None
    return ExtensionUnit(code, store_at_ms, data[_HEAD.size : size])


def unit_position(address: int) -> int:
    """Return the byte of the extension's files at which a unit begins."""
    return address - _LOWEST


class QueueExtension:
    """The extension of one queue, in `consumequeue_ext/<topic>/<queue id>`.

    New units are buffered in memory until the next flush; reads may run on any thread.
    """

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_bytes: int) -> None:
        self.segments = SegmentList(disk, extension_directory(topic, queue_id), file_bytes)
        self._disk = disk
        self._begin_tail(0)

    def _begin_tail(self, position: int) -> None:
        self._tail = bytearray()
        self._tail_from = (position, self._tail)

    def load(self) -> None:
        """Load the existing files; if their size differs from the config, they are ignored."""
        try:
            self.segments.remove(self.segments.load())
        except StoreConfigError as error:
            log.warning("queue_extension.ignored reason=%s", error)
        self._begin_tail(self.segments.end)

    @property
    def end(self) -> int:
        """The byte after the last unit."""
        start, tail = self._tail_from
        return start + len(tail)

    def directories(self) -> tuple[str, ...]:
        """Return the directories to sync after files were created, innermost first."""
        topic_directory = self.segments.directory.rpartition("/")[0]
        return (self.segments.directory, topic_directory, CONSUMEQUEUE_EXT, "")

    def unit(self, address: int, *, may_block: bool = True) -> ExtensionUnit | None:
        """Return the unit at the address; None if there is no whole one.

        Raises:
            BlockingIOError: the unit is not in memory, and `may_block` is False.
        """
        if not is_address(address):
            return None
        read = self._disk.read if may_block else self._resident
        return decode_unit(self._bytes_at(address - _LOWEST, read))

    def put(self, unit: ExtensionUnit) -> int | None:
        """Add a unit, in memory; return its address, None if the extension is full."""
        data = encode_unit(unit)
        position, step = self.end, self.segments.file_bytes
        left = step - position % step
        if len(data) > left - _END_BYTES:
            self._tail += _END.ljust(left, b"\0")
            position += left
        if len(data) > step - _END_BYTES or position + len(data) > _POSITION_MAX:
            return None
        self._tail += data
        return position + _LOWEST

    def flush(self) -> tuple[list[str], bool]:
        """Write the tail to the files, without a sync.

        Returns:
            The names of the files written, and whether one of them is new.

        Raises:
            OSError: the tail is unchanged.
        """
        written: list[str] = []
        (position, tail), step = self._tail_from, self.segments.file_bytes
        end_before = self.segments.end
        at = 0
        while at < len(tail):
            is_first = self.segments.first == self.segments.end
            if is_first:
                self._disk.make_directory(self.segments.directory)
            if is_first or position >= self.segments.end:
                self.segments.create(position - position % step)
            size = min(len(tail) - at, step - position % step)
            name = self.segments.name(position)
            self._disk.write(name, position % step, [bytes(tail[at : at + size])])
            written.append(name)
            at, position = at + size, position + size
        self._begin_tail(position)
        return written, self.segments.end != end_before

    def end_after(self, address: int | None) -> None:
        """Let the next unit follow the one at the address; with None keep no unit.

        Later flushes overwrite the data in the files from there on; `truncate` zeroes the rest.
        """
        self._begin_tail(self.segments.end)  # all existing units are in the files
        unit = None if address is None else self.unit(address)
        if address is None or unit is None:
            # Java starts at the end of the files; no entry refers to the data before it.
            self._begin_tail(self.segments.end if address is not None else self.segments.first)
            return
        self._begin_tail(address - _LOWEST + _HEAD.size + len(unit.bit_map))

    def truncate(self) -> list[str]:
        """Remove the data after the last unit from the files; return the files changed."""
        return self.segments.truncate(self._tail_from[0])

    def count_expired_files(self, address: int) -> int:
        """Return how many of the oldest files end before the unit; never the last file."""
        files = (address - _LOWEST - self.segments.first) // self.segments.file_bytes
        return max(0, min(files, len(self.segments.starts()) - 1))

    def _resident(self, name: str, offset: int, size: int) -> bytes:
        data = self._disk.read_resident(name, offset, size)
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "extension units are not in memory")
        return data

    def _bytes_at(self, position: int, read: Callable[[str, int, int], bytes]) -> bytes:
        """Return bytes from the position, at least a whole unit; fewer if there are no more."""
        start, tail = self._tail_from
        if position >= start:
            return bytes(tail[position - start : position - start + UNIT_BYTES_MAX])
        if not self.segments.first <= position < self.segments.end:
            return b""
        step = self.segments.file_bytes
        name, at = self.segments.name(position), position % step
        try:
            head = read(name, at, _HEAD.size)
            size = _SIZE.unpack_from(head)[0] if len(head) == _HEAD.size else 0
            return read(name, at, size) if size > _HEAD.size else head
        except FileNotFoundError:
            return b""
