"""One file of the key index: a hash table from message keys to records, as Java lays it out.

Big-endian. A file of `slots` slots and `entries` entries has 40 + 4 * slots + 20 * entries bytes:

    byte              size   field
    0                 8      begin time     store time of the first record, epoch milliseconds
    8                 8      end time       of the last record
    16                8      begin offset   physical offset of the first record
    24                8      end offset     of the last record
    32                4      used slots
    36                4      count          entries plus one: entry 0 is never used
    40 + 4 * slot     4      number of the slot's newest entry; 0 for none
    entries_at + 20*n 20     key hash 4, physical offset 8, seconds since begin time 4,
                             number of the slot's previous entry 4

The hash is the absolute value of Java's hash of `topic#key`; modulo `slots` it is the slot. Hashes
collide, so the caller must compare the keys of the record that an entry names.

This module reads files that no longer change and verifies headers; `index_active.py` adds entries.

Source: IndexFile.java, IndexHeader.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kourou.decimals import is_decimal
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
"""Entries of one slot that a search reads in a file: seconds, if the file is in memory."""


class IndexLayout(NamedTuple):
    """Numbers of slots and entries in each file of a store; they never change."""

    slots: int
    entries: int

    @property
    def entries_at(self) -> int:
        """The file offset of entry 0."""
        return HEADER_BYTES + SLOT_BYTES * self.slots

    @property
    def file_bytes(self) -> int:
        """The size of each file, in bytes."""
        return self.entries_at + INDEX_ENTRY_BYTES * self.entries


class IndexHeader(NamedTuple):
    """The first 40 bytes; `count` is the number of entries plus one."""

    begin_at_ms: int
    end_at_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    count: int  # type: ignore[assignment]  # hides the method of tuple


class IndexEntry(NamedTuple):
    """The position of a record that may have a key.

    Attributes:
        seconds: the record's store time, since the file's begin time.
        previous: the number of the slot's previous entry; 0 for none.
    """

    key_hash: int
    physical_offset: int
    seconds: int
    previous: int


def index_file_name(now_ms: int, last_name: str) -> str:
    """Return the name of a file created now, in local time: yyyyMMddHHmmssSSS.

    The name sorts after `last_name` even if the clock was set back, because files are ordered by
    name.
    """
    local = datetime.fromtimestamp(now_ms // 1000, UTC).astimezone()
    name = f"{local:%Y%m%d%H%M%S}{now_ms % 1000:03d}"
    return name if name > last_name else f"{int(last_name) + 1:0{_NAME_DIGITS}d}"


def index_file_names(disk: Disk) -> list[str]:
    """Return the names of the index's files, oldest first."""
    return [name for name in disk.list(INDEX) if len(name) == _NAME_DIGITS and is_decimal(name)]


def seconds_since(begin_at_ms: int, store_at_ms: int) -> int:
    """Return the time field of an entry: seconds since begin time, clamped to 0 .. 2 ** 31 - 1.

    0 if the begin time is not positive.
    """
    if begin_at_ms <= 0:
        return 0
    return min(max((store_at_ms - begin_at_ms) // 1000, 0), _INT_MAX)


def read_header(disk: Disk, name: str, layout: IndexLayout) -> IndexHeader:
    """Return the header of a file after a quick verification of the file.

    Compares the size, the counts, and the first and last entries; not the slots or the others.

    Raises:
        CorruptRecordError: the file is damaged, or has no entries.
        OSError: the file cannot be read.
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
        raise CorruptRecordError(
            path, 16, "the first or the last entry names another record than the header"
        )
    seconds = seconds_since(header.begin_at_ms, header.end_at_ms)
    if header.end_at_ms < header.begin_at_ms or (header.count > 2 and last.seconds != seconds):
        raise CorruptRecordError(
            path,
            0,
            f"times {header.begin_at_ms} to {header.end_at_ms} disagree with the entries",
        )
    return header


def is_empty(disk: Disk, name: str) -> bool:
    """Tell whether the file's header counts no entries."""
    count = disk.read(f"{INDEX}/{name}", HEADER_BYTES - SLOT_BYTES, SLOT_BYTES)
    return int.from_bytes(count, signed=True) in (0, 1)


def read_entry(disk: Disk, name: str, layout: IndexLayout, number: int) -> IndexEntry:
    """Return an entry from the file; zeros where the file is too short."""
    at = layout.entries_at + INDEX_ENTRY_BYTES * number
    data = disk.read(f"{INDEX}/{name}", at, INDEX_ENTRY_BYTES)
    return IndexEntry._make(INDEX_ENTRY.unpack(data.ljust(INDEX_ENTRY_BYTES, b"\0")))


class IndexFile:
    """An index file opened for reading, on any thread."""

    def __init__(self, disk: Disk, name: str, layout: IndexLayout, header: IndexHeader) -> None:
        self.name = name
        self.layout = layout
        self._disk = disk
        self._header = header

    @property
    def header(self) -> IndexHeader:
        """The current header."""
        return self._header

    @property
    def _entries_end(self) -> int:
        """Slots that name this entry number or a higher one are damaged."""
        return self.header.count

    @property
    def path(self) -> str:
        """The file's path below the store's root."""
        return f"{INDEX}/{self.name}"

    def slot(self, number: int) -> int:
        """Return the number of the slot's newest entry."""
        data = self._disk.read(self.path, HEADER_BYTES + SLOT_BYTES * number, SLOT_BYTES)
        return int(_SLOT.unpack(data.ljust(SLOT_BYTES, b"\0"))[0])

    def entry(self, number: int) -> IndexEntry:
        """Return the entry with this number."""
        return read_entry(self._disk, self.name, self.layout, number)

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions of records that may have the key and a store time in the span.

        Newest first. Entries have their time in whole seconds, so records up to one second before
        the span are included. The search stops at an entry whose previous one is not older, so
        that a damaged chain cannot loop.

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


def remove_index_from(disk: Disk, position: int) -> None:
    """Remove the files of the key index with records at or after the position, durably.

    They are rebuilt when the store is used. A file with an incomplete header is removed too, with
    all later ones.
    """
    names = disk.list(INDEX)
    kept_count = 0
    for name in names:
        data = disk.read(f"{INDEX}/{name}", 0, HEADER_BYTES)
        if len(data) < HEADER_BYTES or HEADER.unpack(data)[3] >= position:
            break
        kept_count += 1
    for name in reversed(names[kept_count:]):
        disk.unlink(f"{INDEX}/{name}")
    if kept_count < len(names):
        disk.sync_directory(INDEX)
