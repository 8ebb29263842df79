"""The newest index file, to which entries are added; its slots and newest entries are in memory.

Writes are ordered as follows, so that a crash after any step leaves a usable file:

    step                                 left by a crash after this step
    create the file at full size,        a file without entries; it is removed at the next start
        write and sync its header,
        sync its directory
    write entries                        entries that the header does not count; the same entries
                                         are written again, because the index continues from the
                                         log position in the header
    sync entries; write slots            slots that name uncounted entries; those entries are
                                         durable, and their chains lead to counted ones
    sync slots; write and sync header    the complete file
    checkpoint (another module)          -

A failed write is not rolled back: the next save writes the data again. A failed sync is never
retried: the store becomes read-only.
"""

from __future__ import annotations

import errno
import mmap
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from kourou.disk import Disk
from kourou.store.index.index_file import (
    HEADER,
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    SLOT_BYTES,
    IndexEntry,
    IndexFile,
    IndexHeader,
    IndexLayout,
    seconds_since,
)
from kourou.store.index.index_keys import KeyEntries
from kourou.store.index.index_lanes import Remainders
from kourou.store.paths import INDEX

TAIL_BYTES_MAX: Final = 512 * 1024
"""Unwritten entries in memory, in bytes; at this size `KeyIndex.upkeep` must write them."""

_INT: Final = "i"
_PAGE_BITS: Final = 10
_PAGE_SLOTS: Final = 1 << _PAGE_BITS
_HEADER_SLOTS: Final = HEADER_BYTES // SLOT_BYTES
"""The header's size in slots: pages are counted from the start of the file."""
_BLOCK_PAGES: Final = 64
"""Pages of slots read or written in one call, so that the interpreter lock is held only briefly."""
_SYNC_PAGES: Final = 256
"""Pages of slots per sync, so that a concurrent sync of the log waits for no more than these."""
_PAGES_TRACKED: Final = 0.9
"""Fraction of the pages; once more have changed, all count as changed and tracking stops."""
_NEVER: Final = 1 << 31
_NONE_PENDING: Final[tuple[int, list[int]]] = (_NEVER, [])


class ActiveIndexFile(IndexFile):
    """The newest file. One thread adds entries or saves; other threads may read meanwhile."""

    def __init__(
        self,
        disk: Disk,
        name: str,
        layout: IndexLayout,
        header: IndexHeader,
        slots: memoryview,
    ) -> None:
        super().__init__(disk, name, layout, header)
        (
            self._begin_at_ms,
            self._end_at_ms,
            self._begin_offset,
            self._end_offset,
            self._used_slots,
            self._count,
        ) = header
        self._slots = slots
        # While entries are added, slots already name entries that are not in the tail yet. For
        # readers: the number of the first such entry, and the previous entry of each.
        self._pending = _NONE_PENDING
        self._remainders = Remainders(layout.slots)
        self._changed_pages: set[int] = set()
        self._pages = (layout.slots + _HEADER_SLOTS - 1 >> _PAGE_BITS) + 1
        # The number of the first unwritten entry, and the bytes of the unwritten entries. Replaced
        # as a whole, so that readers see both or neither.
        self._tail = (header.count, bytearray())
        self._durable_header = header

    @classmethod
    def create(
        cls, disk: Disk, name: str, layout: IndexLayout, before: IndexHeader | None
    ) -> ActiveIndexFile:
        """Create the next file, durably; its header starts at the previous file's end, as in Java.

        Raises:
            OSError: an empty file may be left; the next start removes it.
        """
        path = f"{INDEX}/{name}"
        header = IndexHeader(0, 0, 0, 0, 0, 1)
        if before is not None:
            at_ms, offset = before.end_at_ms, before.end_offset
            header = IndexHeader(at_ms, at_ms, offset, offset, 0, 1)
        try:
            disk.truncate(path, 0)
            disk.truncate(path, layout.file_bytes)
            disk.write(path, 0, [HEADER.pack(*header)])
            _sync(disk, path)
            disk.sync_directory(INDEX)
        except OSError:
            with suppress(OSError):  # each attempt has a new name and would leave another file
                disk.unlink(path)
            raise
        return cls(disk, name, layout, header, _empty_slots(layout.slots))

    @classmethod
    def load(
        cls, disk: Disk, name: str, layout: IndexLayout, header: IndexHeader
    ) -> ActiveIndexFile:
        """Load a file with a verified header, so that entries can be added.

        Raises:
            OSError: the file cannot be read.
        """
        file = cls(disk, name, layout, header, _empty_slots(layout.slots))
        file._used_slots = 0
        piece = _BLOCK_PAGES * _PAGE_SLOTS
        for first in range(0, layout.slots, piece):
            file._read_slots(first, min(piece, layout.slots - first))
        return file

    def _read_slots(self, first: int, number: int) -> None:
        """Read `number` slots and point each one at an entry that the header counts."""
        at = HEADER_BYTES + SLOT_BYTES * first
        data = self._disk.read(self.path, at, SLOT_BYTES * number)
        piece = array(_INT, data.ljust(SLOT_BYTES * number, b"\0"))
        _convert_byte_order(piece)
        if max(piece) >= self._count or min(piece) < 0:
            for index, value in enumerate(piece):
                if not 0 <= value < self._count:
                    piece[index] = self._newest_counted(value, first + index)
                    self._changed_pages.add(first + index + _HEADER_SLOTS >> _PAGE_BITS)
        self._slots[first : first + number] = memoryview(piece)
        self._used_slots += number - piece.count(0)

    def _newest_counted(self, number: int, slot: int) -> int:
        """Follow the slot's chain from an uncounted entry to the newest counted one; 0 for none."""
        before = self.layout.entries
        while self._count <= number < before:
            entry = IndexFile.entry(self, number)
            if entry.key_hash % self.layout.slots != slot:
                return 0
            before, number = number, entry.previous
        return number if 0 < number < self._count else 0

    @property
    def header(self) -> IndexHeader:
        return IndexHeader(
            self._begin_at_ms,
            self._end_at_ms,
            self._begin_offset,
            self._end_offset,
            self._used_slots,
            self._count,
        )

    @property
    def durable_header(self) -> IndexHeader:
        """The header as it is durable on disk."""
        return self._durable_header

    @property
    def is_full(self) -> bool:
        """True if the file has no room for another entry."""
        return self._count >= self.layout.entries

    @property
    def _entries_end(self) -> int:
        # Slots in memory need no check against the header's count, and may name newer entries
        # while a reader follows a chain.
        return self.layout.entries

    @property
    def tail_bytes(self) -> int:
        """Size of the entries not yet written, in bytes."""
        return len(self._tail[1])

    def slot(self, number: int) -> int:
        entry = self._slots[number]
        first, previous = self._pending
        while entry >= first:
            entry = previous[entry - first]
        return entry

    def entry(self, number: int) -> IndexEntry:
        first, tail = self._tail
        if number < first:
            return super().entry(number)
        return IndexEntry._make(INDEX_ENTRY.unpack_from(tail, (number - first) * INDEX_ENTRY_BYTES))

    def add(self, entries: KeyEntries) -> int:
        """Add entries; return how many of them fit into the file."""
        number = min(len(entries.hashes), self.layout.entries - self._count)
        if number < len(entries.hashes):
            entries = entries.part(0, number)
        if not number:
            return 0
        _, offsets, times, *_ = entries
        begin_at_ms = times[0] if self._count == 1 else self._begin_at_ms
        hashes = array(_INT, entries.hashes)
        slot_numbers = self._remainders.of(hashes)
        previous: list[int] = []
        try:
            self._link(slot_numbers, previous)
            packed = _packed(hashes, offsets, _seconds(entries, begin_at_ms), previous)
            self._tail[1].extend(memoryview(packed).cast("B"))
        except BaseException:  # no entry was added
            for slot, entry in reversed(list(zip(slot_numbers, previous, strict=False))):
                self._slots[slot] = entry
            self._pending = _NONE_PENDING
            raise
        if self._count == 1:
            self._begin_at_ms, self._begin_offset = begin_at_ms, offsets[0]
        self._end_at_ms, self._end_offset = times[-1], offsets[-1]
        self._count += number
        self._pending = _NONE_PENDING
        self._used_slots += previous.count(0)
        self._mark_changed(slot_numbers)
        return number

    def _link(self, slot_numbers: Sequence[int], previous: list[int]) -> None:
        """Point these slots at the next entries; collect their old values in `previous`.

        A single loop, because it runs for each entry: each slot is accessed once, since most
        accesses miss the processor's caches and a miss takes longer than everything else. Readers
        run meanwhile: `slot` leads them past entries that are not in the tail yet.
        """
        slots, add = self._slots, previous.append
        self._pending = (self._count, previous)
        for number, slot in enumerate(slot_numbers, self._count):
            add(slots[slot])
            slots[slot] = number

    def _mark_changed(self, slot_numbers: Sequence[int]) -> None:
        """Mark the pages of these slots as changed; under load, soon all pages are."""
        changed, pages = self._changed_pages, self._pages
        if len(changed) < pages:
            changed.update([slot + _HEADER_SLOTS >> _PAGE_BITS for slot in set(slot_numbers)])
            if len(changed) > pages * _PAGES_TRACKED:
                changed.update(range(pages))

    def write_entries(self) -> None:
        """Write the unwritten entries. No entry may be added meanwhile.

        Raises:
            OSError: the entries stay in memory.
        """
        first, tail = self._tail
        if tail:
            at = self.layout.entries_at + INDEX_ENTRY_BYTES * first
            self._disk.write(self.path, at, [tail])
            self._tail = (self._count, bytearray())

    def save(self) -> None:
        """Make the file durable, in the module's write order. No entry may be added meanwhile.

        Raises:
            OSError: the file is in one of the states of the module's table.
        """
        header = self.header
        if header == self._durable_header and not self._changed_pages:
            return
        self.write_entries()
        _sync(self._disk, self.path)
        self._write_slots()
        self._disk.write(self.path, 0, [HEADER.pack(*header)])
        _sync(self._disk, self.path)
        self._durable_header = header

    def _write_slots(self) -> None:
        pages = sorted(self._changed_pages)
        unsynced = 0
        while unsynced < len(pages):
            some = pages[unsynced : unsynced + _SYNC_PAGES]
            for first, end in _runs(some):
                start = max(first * _PAGE_SLOTS - _HEADER_SLOTS, 0)
                slots = array(
                    _INT, self._slots[start : end * _PAGE_SLOTS - _HEADER_SLOTS].tobytes()
                )
                _convert_byte_order(slots)
                self._disk.write(self.path, HEADER_BYTES + SLOT_BYTES * start, [slots.tobytes()])
            _sync(self._disk, self.path)
            unsynced += len(some)
        self._changed_pages.clear()


def _seconds(entries: KeyEntries, begin_at_ms: int) -> array[int]:
    """Return the time field of each entry: seconds since the file's begin time."""
    first = seconds_since(begin_at_ms, entries.time_min)
    if first == seconds_since(begin_at_ms, entries.time_max):
        return array(_INT, [first]) * len(entries.times)
    seconds_by_time = {at_ms: seconds_since(begin_at_ms, at_ms) for at_ms in set(entries.times)}
    return array(_INT, [seconds_by_time[at_ms] for at_ms in entries.times])


def _packed(
    hashes: array[int], offsets: Sequence[int], seconds: array[int], previous: Sequence[int]
) -> array[int]:
    """Return the entries in the file's layout, packed column by column."""
    positions = array("q", offsets)
    _convert_byte_order(positions)
    halves = array(_INT, positions.tobytes())
    entries = array(_INT, bytes(INDEX_ENTRY_BYTES * len(hashes)))
    entries[1::5], entries[2::5] = halves[0::2], halves[1::2]
    for column, values in ((0, hashes), (3, seconds), (4, previous)):
        numbers = array(_INT, values)
        _convert_byte_order(numbers)
        entries[column::5] = numbers
    return entries


def _convert_byte_order(numbers: array[int]) -> None:
    """Convert numbers in place between machine byte order and the files' big-endian order."""
    if sys.byteorder == "little":
        numbers.byteswap()


def _sync(disk: Disk, path: str) -> None:
    """Sync a file.

    Raises:
        OSError: what was written may never become durable. Never that the disk is full, after
            which one would try again: a sync that failed may succeed the next time, without effect.
    """
    try:
        disk.sync(path)
    except OSError as error:
        raise OSError(errno.EIO, f"a sync failed: {error}", path) from error


def _empty_slots(number: int) -> memoryview:
    """Return zeroed slots, in huge pages where the system offers them.

    Keys hit slots all over 20 MB. With small pages, address translation (TLB misses) takes a fifth
    of the time of adding an entry.
    """
    memory = mmap.mmap(-1, SLOT_BYTES * number, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    slots = memoryview(memory).cast(_INT)
    for first in range(0, number, _BLOCK_PAGES * _PAGE_SLOTS):
        slots[first] = 0  # faults the page in now, off the event loop
    return slots


def _runs(pages: list[int]) -> list[tuple[int, int]]:
    """Return (first, end) of each run of consecutive pages, at most `_BLOCK_PAGES` long."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][1] == page and page - runs[-1][0] < _BLOCK_PAGES:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs
