"""Checks the key index of a closed store.

    names and sizes   a time of 17 digits; each file has the size of its slots and entries
    header            counts, times and positions agree with the entries
    entries           each names a record of the log with a key of this hash and this time, and the
                      slot's previous entry; their records are in log order
    slots             each names its newest entry

Keys without an entry are findings only if the index is known to be complete: a killed Java broker
leaves such keys. Entries of expired records are compared with each other only.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final

from kourou.disk import Disk
from kourou.errors import CorruptRecordError
from kourou.protocol.record.scan import LogRecord
from kourou.store.index.index_file import (
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    SLOT_BYTES,
    IndexFile,
    IndexHeader,
    IndexLayout,
    index_file_names,
    is_empty,
    read_header,
    seconds_since,
)
from kourou.store.index.index_keys import KeyHashes
from kourou.store.index.index_log import LogCursor
from kourou.store.log.commitlog import CommitLog
from kourou.store.paths import INDEX
from kourou.store.tools.findings import Finding

_FINDINGS_MAX: Final = 10
"""Limit for one file; further findings would add no information."""
_READ_ENTRIES: Final = 8192
_READ_SLOTS: Final = 65_536


def check_index(
    disk: Disk, layout: IndexLayout, segment_bytes: int, log_end: int, *, is_complete: bool = False
) -> list[Finding]:
    """Check the files of the key index; a store without an index has no findings.

    Args:
        disk: holds the store.
        layout: of the index files.
        segment_bytes: size of a commit log segment.
        log_end: end of the log's valid records.
        is_complete: report keys without an entry, between the index's first and last record.

    Raises:
        OSError: a file cannot be read.
    """
    log_ = CommitLog(disk, segment_bytes)
    log_.segments.load()
    log_.start_at(log_end)
    check = _Check(disk, layout, log_, is_complete=is_complete)
    for name in disk.list(INDEX):
        if name not in index_file_names(disk):
            check.findings.append(
                Finding(f"{INDEX}/{name}", 0, "the name is not that of an index file")
            )
    for name in index_file_names(disk):
        check.file(name)
    return check.findings


class _Check:
    """One pass over the entries of all files, with the records of the log."""

    def __init__(
        self, disk: Disk, layout: IndexLayout, log_: CommitLog, *, is_complete: bool
    ) -> None:
        self.findings: list[Finding] = []
        self._disk = disk
        self._layout = layout
        self._log = log_
        self._is_complete = is_complete
        self._cursor = LogCursor(log_, log_.min_position)
        self._hashes = KeyHashes()
        self._record: LogRecord | None = None  # of the previous entry
        self._record_hashes: list[int] = []
        self._missing: list[int] = []  # hashes of that record without an entry so far
        self._end_offset = 0
        self._found_in_file = 0

    def file(self, name: str) -> None:
        """Check one file, after all files before it."""
        self._found_in_file = 0
        try:
            header = read_header(self._disk, name, self._layout)
        except CorruptRecordError as error:
            if not is_empty(self._disk, name):
                self._report(name, error.offset, error.reason)
            return
        newest: array[int] = array("i", bytes(SLOT_BYTES * self._layout.slots))
        self._check_entries(name, header, newest)
        self._check_slots(name, header, newest)

    def _check_entries(self, name: str, header: IndexHeader, newest: array[int]) -> None:
        file = IndexFile(self._disk, name, self._layout, header)
        for first in range(1, header.count, _READ_ENTRIES):
            number = min(_READ_ENTRIES, header.count - first)
            at = self._layout.entries_at + INDEX_ENTRY_BYTES * first
            data = self._disk.read(file.path, at, INDEX_ENTRY_BYTES * number)
            for index, entry in enumerate(INDEX_ENTRY.iter_unpack(data), first):
                key_hash, offset, seconds, previous = entry
                problem = self._problem(header, index, key_hash, offset, seconds)
                slot = key_hash % self._layout.slots
                if not problem and previous != newest[slot]:
                    problem = f"its previous entry is {previous}, must be {newest[slot]}"
                newest[slot] = index
                if problem:
                    self._report(name, at + INDEX_ENTRY_BYTES * (index - first), problem)
        if header.used_slots != sum(map(bool, newest)):
            self._report(
                name, 32, f"{header.used_slots} used slots, must be {sum(map(bool, newest))}"
            )

    def _check_slots(self, name: str, header: IndexHeader, newest: array[int]) -> None:
        path = IndexFile(self._disk, name, self._layout, header).path
        for first in range(0, self._layout.slots, _READ_SLOTS):
            expected = newest[first : first + _READ_SLOTS]
            at, size = HEADER_BYTES + SLOT_BYTES * first, SLOT_BYTES * len(expected)
            found = array("i", self._disk.read(path, at, size).ljust(size, b"\0"))
            if sys.byteorder == "little":
                found.byteswap()
            if found == expected:
                continue
            for slot, (entry, number) in enumerate(zip(found, expected, strict=True), first):
                if entry != number:
                    problem = f"slot {slot} names entry {entry}, must name {number}"
                    self._report(name, HEADER_BYTES + SLOT_BYTES * slot, problem)

    def _problem(
        self, header: IndexHeader, number: int, key_hash: int, offset: int, seconds: int
    ) -> str:
        """Return the problem of an entry; empty if it is correct."""
        if key_hash < 0 or offset < self._end_offset:
            return (
                f"entry {number} names log position {offset} after {self._end_offset}, or its key "
                f"hash {key_hash} is negative"
            )
        if offset < self._log.min_position:
            self._end_offset = offset
            return ""
        if offset >= self._log.written_position:
            return f"entry {number} names log position {offset}, after the end of the log"
        lost = ""
        if self._record is None or offset != self._record.start:
            lost = self._missing_before(offset)
            record = self._record_at(offset)
            if record is None:
                return f"entry {number} names log position {offset}, where no record begins"
            self._record, self._end_offset = record, offset
            self._record_hashes = self._hashes.of_record(record)
            self._missing = self._record_hashes.copy()
        if key_hash not in self._record_hashes:
            return f"entry {number} has the hash of a key that the record at {offset} lacks"
        if key_hash in self._missing:
            self._missing.remove(key_hash)
        if number > 1 and seconds != seconds_since(header.begin_at_ms, self._record.store_at_ms):
            return f"entry {number} has another time than its record at {offset}"
        return f"before entry {number}, {lost}" if lost else ""

    def _missing_before(self, offset: int) -> str:
        """Return a problem if a record from the previous entry's to this one lacks an entry."""
        if not self._is_complete or self._record is None:
            return ""
        at = self._record.start
        missing = self._missing
        while not missing and at < offset:
            following = self._record_at(at, skip=1)
            if following is None or following.start >= offset:
                return ""
            missing, at = self._hashes.of_record(following), following.start
        return f"keys of the record at {at} are missing"

    def _record_at(self, offset: int, *, skip: int = 0) -> LogRecord | None:
        """Return the record that begins at `offset`, or the `skip`-th after it."""
        self._cursor.seek(offset)
        record = self._next_record()
        for _ in range(skip):
            record = self._next_record()
        return record if record is not None and (skip or record.start == offset) else None

    def _next_record(self) -> LogRecord | None:
        end = self._log.written_position
        while self._cursor.position < end:
            self._cursor.read(end, may_block=True)
            records = self._cursor.next_records(end, 1)
            if records:
                return records[0]
        return None

    def _report(self, name: str, file_offset: int, problem: str) -> None:
        self._found_in_file += 1
        if self._found_in_file <= _FINDINGS_MAX:
            self.findings.append(Finding(f"{INDEX}/{name}", file_offset, problem))
