"""What a queue entry has no room for: extension units, in files beside the queue.

Java writes them when told to (`enableConsumeQueueExt`), for the bit maps of its filters. The entry
then has, where its tags code would be, the unit's address: the byte of the extension's files at
which the unit begins, less 2^63. No tags code is that small.

    unit      2  size of all of it, 20 to 32767
              8  tags code
              8  store time
              2  size of the bit map
              n  bit map
    file end  -1 in the 2 bytes behind the last unit; a unit never crosses into the next file

Units are derived data: an entry whose unit is missing, or is not whole, says nothing of its
message, which is handed out to whoever may want it.

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
"""Kept free behind the last unit of a file."""
_END: Final = _SIZE.pack(-1)


class ExtensionUnit(NamedTuple):
    """What the entry of a message says in its stead."""

    tags_code: int
    store_at_ms: int
    bit_map: bytes


def is_address(tags_code: int) -> bool:
    """Tell whether an entry's tags code is the address of a unit."""
    return tags_code <= _ADDRESS_MAX


def encode_unit(unit: ExtensionUnit) -> bytes:
    """Return the unit as it is in a file; the bit map has `BIT_MAP_BYTES_MAX` bytes at most."""
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

    Units that were put wait in memory for the next flush; reads may run on any thread.
    """

    def __init__(self, disk: Disk, topic: str, queue_id: int, file_bytes: int) -> None:
        self.segments = SegmentList(disk, extension_directory(topic, queue_id), file_bytes)
        self._disk = disk
        self._begin_tail(0)

    def _begin_tail(self, position: int) -> None:
        self._tail = bytearray()
        self._tail_from = (position, self._tail)

    def load(self) -> None:
        """Take up the files that are there; those of another size are left alone and not read."""
        try:
            self.segments.remove(self.segments.load())
        except StoreConfigError as error:
            log.warning("queue_extension.ignored reason=%s", error)
        self._begin_tail(self.segments.end)

    @property
    def end(self) -> int:
        """The byte behind the last unit."""
        start, tail = self._tail_from
        return start + len(tail)

    def directories(self) -> tuple[str, ...]:
        """Return what is to be synced when files are made, from the inside out."""
        topic_directory = self.segments.directory.rpartition("/")[0]
        return (self.segments.directory, topic_directory, CONSUMEQUEUE_EXT, "")

    def unit(self, address: int, *, may_block: bool = True) -> ExtensionUnit | None:
        """Return the unit at the address; None if there is no whole one.

        Raises:
            BlockingIOError: it would have to wait for the device, and must not.
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
        """Write the tail to the files, not synced.

        Returns:
            The names of the files written, and whether one of them is new.

        Raises:
            OSError: the tail is as it was.
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

    def end_behind(self, address: int | None) -> None:
        """Let the next unit come behind the one at the address; None: there is none to keep.

        What the files hold there is overwritten by later flushes; `cut` zeroes the rest.
        """
        self._begin_tail(self.segments.end)  # all that is there is in the files
        unit = None if address is None else self.unit(address)
        if address is None or unit is None:
            # Java starts where the files end; what lies before is not read by any entry.
            self._begin_tail(self.segments.end if address is not None else self.segments.first)
            return
        self._begin_tail(address - _LOWEST + _HEAD.size + len(unit.bit_map))

    def cut(self) -> list[str]:
        """Remove from the files what lies behind the last unit; return the files changed."""
        return self.segments.cut(self._tail_from[0])

    def count_expired_files(self, address: int) -> int:
        """Return how many of the oldest files lie before the unit; never the last file."""
        files = (address - _LOWEST - self.segments.first) // self.segments.file_bytes
        return max(0, min(files, len(self.segments.starts()) - 1))

    def _resident(self, name: str, offset: int, size: int) -> bytes:
        data = self._disk.read_resident(name, offset, size)
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "extension units are not in memory")
        return data

    def _bytes_at(self, position: int, read: Callable[[str, int, int], bytes]) -> bytes:
        """Return bytes from there on, more than a unit's; fewer where there are no more."""
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
