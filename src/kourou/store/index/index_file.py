"""One file of the key index: a hash table from message keys to records, as Java lays it out.

Big-endian. A file of `slots` slots and `entries` entries has 40 + 4 * slots + 20 * entries bytes:

    byte              size   field
    0                 8      begin time     store time of the first record, epoch milliseconds
    8                 8      end time       of the last record
    16                8      begin offset   where the first record is in the commit log
    24                8      end offset     where the last record is
    32                4      used slots
    36                4      count          entries and one: entry 0 is never used
    40 + 4 * slot     4      number of the slot's newest entry; 0 for none
    entries_at + 20*n 20     key hash 4, physical offset 8, seconds since begin time 4,
                             number of the slot's entry before 4

The hash is the absolute value of Java's of `topic#key`; modulo `slots` it is the slot. Entries only
say where a key may be: who asks compares the record's own keys.

This module reads files that no longer change, and says what a whole one looks like;
`index_active.py` fills one.

Source: IndexFile.java, IndexHeader.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import CorruptRecordError
from kourou.store.paths import INDEX

HEADER: Final = struct.Struct(">qqqqii")
HEADER_BYTES: Final = HEADER.size
SLOT_BYTES: Final = 4
INDEX_ENTRY: Final = struct.Struct(">iqii")
INDEX_ENTRY_BYTES: Final = INDEX_ENTRY.size

_SLOT: Final = struct.Struct(">i")
_INT_MAX: Final = 0x7FFF_FFFF
_NAME_DIGITS: Final = 17
_CHAIN_MAX: Final = 1_000_000
"""Entries of one slot that a search follows in a file: seconds, when the file is in memory."""


class IndexLayout(NamedTuple):
    """How many slots and entries each file of a store has; both are kept for its life."""

    slots: int
    entries: int

    @property
    def entries_at(self) -> int:
        """The byte at which entry 0 would be."""
        return HEADER_BYTES + SLOT_BYTES * self.slots

    @property
    def file_bytes(self) -> int:
        """The size of each file."""
        return self.entries_at + INDEX_ENTRY_BYTES * self.entries


class IndexHeader(NamedTuple):
    """What the first 40 bytes say; `count` is one more than there are entries."""

    begin_at_ms: int
    end_at_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    count: int  # type: ignore[assignment]  # a tuple's own `count` is of no use here


class IndexEntry(NamedTuple):
    """Where a record is that may have a key."""

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


def index_file_name(now_ms: int, last_name: str) -> str:
    """Return the name of a file made now, in local time: yyyyMMddHHmmssSSS.

    It is behind `last_name` in the order of names even if the clock was set back, since that
    order is the order of the files.
    """
    local = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone()
    name = f"{local:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
    return name if name > last_name else f"{int(last_name) + 1:0{_NAME_DIGITS}d}"


def index_file_names(disk: Disk) -> list[str]:
    """Return the names of the index's files, oldest first."""
    return [
        name
        for name in disk.list(INDEX)
        if len(name) == _NAME_DIGITS and name.isascii() and name.isdecimal()
    ]


def seconds_since(begin_at_ms: int, store_at_ms: int) -> int:
    """Return what an entry says of its record's time."""
    if begin_at_ms <= 0:
        return 0
    return min(max((store_at_ms - begin_at_ms) // 1000, 0), _INT_MAX)


def read_header(disk: Disk, name: str, layout: IndexLayout) -> IndexHeader:
    """Return the header of a file that has entries and is whole, as far as that shows quickly.

    Raises:
        CorruptRecordError: it is not, or it is empty.
        OSError: it cannot be read.
    """
    path = f"{INDEX}/{name}"
    size = disk.size(path)
    if size != layout.file_bytes:
        raise CorruptRecordError(path, size, f"must be {layout.file_bytes} bytes long")
    header = IndexHeader._make(HEADER.unpack(disk.read(path, 0, HEADER_BYTES)))
    if not 1 < header.count <= layout.entries or not 0 < header.used_slots < header.count:
        raise CorruptRecordError(
            path, 32, f"{header.used_slots} slots used, {header.count - 1} entries"
        )
    if not 0 <= header.begin_offset <= header.end_offset:
        raise CorruptRecordError(
            path, 16, f"records from {header.begin_offset} to {header.end_offset}"
        )
    first, last = (read_entry(disk, name, layout, at) for at in (1, header.count - 1))
    if first.physical_offset != header.begin_offset or last.physical_offset != header.end_offset:
        raise CorruptRecordError(path, 16, "the first or the last entry is of another record")
    seconds = seconds_since(header.begin_at_ms, header.end_at_ms)
    if header.end_at_ms < header.begin_at_ms or (header.count > 2 and last.seconds != seconds):
        raise CorruptRecordError(
            path, 0, f"times {header.begin_at_ms} to {header.end_at_ms} are not its entries'"
        )
    return header


def is_empty(disk: Disk, name: str) -> bool:
    """Tell whether a file was made and never filled, as far as a crash left."""
    count = disk.read(f"{INDEX}/{name}", HEADER_BYTES - SLOT_BYTES, SLOT_BYTES)
    return int.from_bytes(count, signed=True) in (0, 1)


def read_entry(disk: Disk, name: str, layout: IndexLayout, number: int) -> IndexEntry:
    """Return an entry as the file holds it; zeros where the file is too short."""
    at = layout.entries_at + INDEX_ENTRY_BYTES * number
    data = disk.read(f"{INDEX}/{name}", at, INDEX_ENTRY_BYTES)
    return IndexEntry._make(INDEX_ENTRY.unpack(data.ljust(INDEX_ENTRY_BYTES, b"\0")))


class IndexFile:
    """A file that is read; any thread may."""

    def __init__(self, disk: Disk, name: str, layout: IndexLayout, header: IndexHeader) -> None:
        self.name = name
        self.layout = layout
        self._disk = disk
        self._header = header

    @property
    def header(self) -> IndexHeader:
        """What the file holds, now."""
        return self._header

    @property
    def _entries_end(self) -> int:
        """Slots name entries of lower numbers only."""
        return self.header.count

    @property
    def path(self) -> str:
        """Its name below the store's root."""
        return f"{INDEX}/{self.name}"

    def slot(self, number: int) -> int:
        """Return the number of the slot's newest entry."""
        data = self._disk.read(self.path, HEADER_BYTES + SLOT_BYTES * number, SLOT_BYTES)
        return int(_SLOT.unpack(data.ljust(SLOT_BYTES, b"\0"))[0])

    def entry(self, number: int) -> IndexEntry:
        """Return an entry."""
        return read_entry(self._disk, self.name, self.layout, number)

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield where records are that may have the key and a store time in the span.

        Newest first. Entries know their time to a second only: up to one less is yielded too. No
        entry leads to a newer one, so that damage makes no circle.

        Raises:
            OSError: the file cannot be read, or was removed meanwhile.
        """
        begin_at_ms = self.header.begin_at_ms
        before = self._entries_end
        number = self.slot(key_hash % self.layout.slots)
        for _ in range(_CHAIN_MAX):
            if not 0 < number < before:
                return
            entry = self.entry(number)
            at_ms = begin_at_ms + entry.seconds * 1000
            if entry.key_hash == key_hash and begin_ms - 1000 < at_ms <= end_ms:
                yield entry.physical_offset
            if entry.seconds < 0 or at_ms <= begin_ms - 1000:
                return
            before, number = number, entry.previous
