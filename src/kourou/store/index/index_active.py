"""The index file that is being filled: its slots in memory, its newest entries too.

What reaches the disk, in this order, and what a crash in between leaves:

    step                                 a crash after it leaves
    new file of full size, header,       a file without entries, which is removed
        synced; its directory synced
    entries, as they come                entries that the header does not count: written again,
                                         the same, since the log is followed from the header on
    entries synced; slots                slots of entries that the header does not count: such an
                                         entry is durable, and leads on to one that is counted
    slots synced; header, synced         all as it was
    checkpoint (not this module's)       -

Nothing is taken back when a write fails: the next save writes it again. A sync that failed is
never tried again: the store is read-only then.
"""

from __future__ import annotations

import errno
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
from kourou.store.paths import INDEX

TAIL_BYTES_MAX: Final = 256 * 1024
"""Entries that wait in memory, before some must be written."""

_PACK_ENTRY: Final = INDEX_ENTRY.pack
_INT: Final = "i"
_PAGE_BITS: Final = 10
_PAGE_SLOTS: Final = 1 << _PAGE_BITS
_HEADER_SLOTS: Final = HEADER_BYTES // SLOT_BYTES
"""So many slots of the file's first page are taken by the header."""
_PIECE_PAGES: Final = 64
"""Pages of slots that are read, or written, at once: what that takes of the interpreter's time
holds up nobody."""
_SYNC_PAGES: Final = 256
"""Pages of slots that are synced together, so that a sync of the log waits for no more."""


Keyed = tuple[list[int], int, int]
"""The hashes of a record's keys, where it is in the log, and its store time."""


class ActiveIndexFile(IndexFile):
    """The newest file. One thread fills or saves it, others may read meanwhile."""

    def __init__(
        self,
        disk: Disk,
        name: str,
        layout: IndexLayout,
        header: IndexHeader,
        slots: array[int],
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
        self._end_seconds = seconds_since(header.begin_at_ms, header.end_at_ms)
        self._slots = slots
        self._changed_pages: set[int] = set()
        # The number of the first entry in memory, and those. Replaced as a whole, for readers.
        self._tail = (header.count, bytearray())
        self._saved = header

    @classmethod
    def create(
        cls, disk: Disk, name: str, layout: IndexLayout, before: IndexHeader | None
    ) -> ActiveIndexFile:
        """Make the next file, durably; it begins with the end of the one before, as Java's does.

        Raises:
            OSError: a file may be left, which counts for nothing.
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
            with suppress(OSError):  # each try has another name, and would leave another file
                disk.unlink(path)
            raise
        return cls(disk, name, layout, header, _empty_slots(layout.slots))

    @classmethod
    def load(
        cls, disk: Disk, name: str, layout: IndexLayout, header: IndexHeader
    ) -> ActiveIndexFile:
        """Take up a file whose header was found to be whole.

        Raises:
            OSError: it cannot be read.
        """
        slots: array[int] = array(_INT)
        file = cls(disk, name, layout, header, slots)
        file._used_slots = 0
        while len(slots) < layout.slots:
            file._read_slots(min(_PIECE_PAGES * _PAGE_SLOTS, layout.slots - len(slots)))
        return file

    def _read_slots(self, number: int) -> None:
        """Read so many more slots, and let each lead to an entry that the header counts."""
        first = len(self._slots)
        at = HEADER_BYTES + SLOT_BYTES * first
        data = self._disk.read(self.path, at, SLOT_BYTES * number)
        piece = array(_INT, data.ljust(SLOT_BYTES * number, b"\0"))
        _to_or_from_disk(piece)
        if max(piece) >= self._count or min(piece) < 0:
            for index, value in enumerate(piece):
                if not 0 <= value < self._count:
                    piece[index] = self._counted(value, first + index)
                    self._changed_pages.add(first + index + _HEADER_SLOTS >> _PAGE_BITS)
        self._slots.extend(piece)
        self._used_slots += number - piece.count(0)

    def _counted(self, number: int, slot: int) -> int:
        """Return the newest entry of the slot that the header counts, from an uncounted one on."""
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
    def saved(self) -> IndexHeader:
        """The header that the file holds, durably."""
        return self._saved

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more."""
        return self._count >= self.layout.entries

    @property
    def _entries_end(self) -> int:
        # Slots are in memory, true, and may get newer entries while somebody follows them.
        return self.layout.entries

    @property
    def tail_bytes(self) -> int:
        """Bytes of entries that are not written yet."""
        return len(self._tail[1])

    def slot(self, number: int) -> int:
        return self._slots[number]

    def entry(self, number: int) -> IndexEntry:
        first, tail = self._tail
        if number < first:
            return super().entry(number)
        return IndexEntry._make(INDEX_ENTRY.unpack_from(tail, (number - first) * INDEX_ENTRY_BYTES))

    def put(self, hashes: list[int], physical_offset: int, store_at_ms: int) -> int:
        """Add an entry for each hash of one record, as long as they fit; return how many did."""
        fitting = hashes[: self.layout.entries - self._count]
        self.put_all([(fitting, physical_offset, store_at_ms)])
        return len(fitting)

    def put_all(self, keyed: Sequence[Keyed]) -> int:
        """Add the entries of records whose entries all fit; return how many records these are."""
        count, end, slots, slot_number = (
            self._count, self.layout.entries, self._slots, self.layout.slots
        )  # fmt: skip
        tail, changed, used = self._tail[1], self._changed_pages, self._used_slots
        end_at_ms, seconds, offset = self._end_at_ms, self._end_seconds, self._end_offset
        done = 0
        for hashes, physical_offset, store_at_ms in keyed:
            if count + len(hashes) > end:
                break
            done += 1
            if not hashes:
                continue
            if count == 1:
                self._begin_at_ms, self._begin_offset = store_at_ms, physical_offset
            if store_at_ms != end_at_ms or count == 1:
                seconds = seconds_since(self._begin_at_ms, store_at_ms)
            end_at_ms, offset = store_at_ms, physical_offset
            for key_hash in hashes:
                slot = key_hash % slot_number
                previous = slots[slot]
                # A slot leads to no entry that is not there: others read.
                tail += _PACK_ENTRY(key_hash, physical_offset, seconds, previous)
                slots[slot] = count
                changed.add(slot + _HEADER_SLOTS >> _PAGE_BITS)
                if not previous:
                    used += 1
                count += 1
        self._used_slots, self._count = used, count
        self._end_at_ms, self._end_seconds, self._end_offset = end_at_ms, seconds, offset
        return done

    def write_entries(self) -> None:
        """Write the entries that are in memory only; nobody may `put` meanwhile.

        Raises:
            OSError: they stay in memory.
        """
        first, tail = self._tail
        if tail:
            at = self.layout.entries_at + INDEX_ENTRY_BYTES * first
            self._disk.write(self.path, at, [tail])
            self._tail = (self._count, bytearray())

    def save(self) -> None:
        """Make all durable, in the order of the table above; nobody may `put` meanwhile.

        Raises:
            OSError: the file is as the table says.
        """
        header = self.header
        if header == self._saved and not self._changed_pages:
            return
        self.write_entries()
        _sync(self._disk, self.path)
        self._write_slots()
        self._disk.write(self.path, 0, [HEADER.pack(*header)])
        _sync(self._disk, self.path)
        self._saved = header

    def _write_slots(self) -> None:
        pages = sorted(self._changed_pages)
        unsynced = 0
        while unsynced < len(pages):
            some = pages[unsynced : unsynced + _SYNC_PAGES]
            for first, end in _runs(some):
                start = max(first * _PAGE_SLOTS - _HEADER_SLOTS, 0)
                slots = self._slots[start : end * _PAGE_SLOTS - _HEADER_SLOTS]
                _to_or_from_disk(slots)
                self._disk.write(self.path, HEADER_BYTES + SLOT_BYTES * start, [slots.tobytes()])
            _sync(self._disk, self.path)
            unsynced += len(some)
        self._changed_pages.clear()


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


def _empty_slots(number: int) -> array[int]:
    """Return slots that lead nowhere, made in pieces: 20 MB at once hold up all for 12 ms."""
    slots: array[int] = array(_INT)
    piece: array[int] = array(_INT, bytes(SLOT_BYTES * min(_PIECE_PAGES * _PAGE_SLOTS, number)))
    while len(slots) < number:
        slots.extend(piece[: number - len(slots)])
    return slots


def _runs(pages: list[int]) -> list[tuple[int, int]]:
    """Return (first, end) of pages that follow one another, in pieces."""
    runs: list[tuple[int, int]] = []
    for page in pages:
        if runs and runs[-1][1] == page and page - runs[-1][0] < _PIECE_PAGES:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs


def _to_or_from_disk(numbers: array[int]) -> None:
    """Turn the bytes of each number, where the machine has the other order than the files."""
    if sys.byteorder == "little":
        numbers.byteswap()
