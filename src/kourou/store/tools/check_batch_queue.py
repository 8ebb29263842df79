"""Checks one batch consume queue while the commit log is read from its first record on.

Entries are consecutive, one per record, and contain the queue offset of the record's first message
and the number of its messages.
"""

from __future__ import annotations

from collections.abc import Iterator

from kourou.disk import Disk
from kourou.store.formats import BATCH_ENTRY, BATCH_ENTRY_BYTES, QueueEntry
from kourou.store.log.segment_list import SegmentList
from kourou.store.tools.check_queue import LogDamage
from kourou.store.tools.findings import Finding

_READ_ENTRIES = 512
_FINDINGS_MAX = 20


class BatchQueueCheck:
    """Compares the entries of one batch queue with its records, in log order.

    Args:
        disk: holds the queue's files.
        segments: the queue's files; may be empty.
        log_first: first position of the commit log; entries of older records may still exist.
    """

    def __init__(self, disk: Disk, segments: SegmentList, log_first: int) -> None:
        self._disk = disk
        self._segments = segments
        self._log_first = log_first
        self._next = -1  # number of the next entry; -1 before the first record
        self._next_offset = 0  # queue offset of the next message
        self._findings: list[Finding] = []
        self._findings_left_out = 0

    def check_record(
        self,
        queue_offset: int,
        entry: QueueEntry,
        store_at_ms: int,
        count: int,
        log_damage: LogDamage,
    ) -> None:
        """Check the entry of the queue's next record, which has `count` messages."""
        if self._next < 0 or queue_offset == 0:
            self._next = self._find_first(entry.physical_offset)
        else:
            self._skip_damaged(log_damage)
            if queue_offset != self._next_offset:
                self._report(
                    f"the next record in the log has offset {queue_offset}, not {self._next_offset}"
                )
        wanted = (*entry, store_at_ms, queue_offset, count)
        found = self._entry(self._next)
        if found is None or found[:6] != wanted:
            text = "nothing" if found is None else str(found[:6])
            self._report(f"the entry is {text}, must be {wanted}")
        self._next += 1
        self._next_offset = queue_offset + count

    def finish(self, log_damage: LogDamage, *, is_live: bool) -> list[Finding]:
        """Check the queue after its last record; return the findings."""
        if not is_live:
            if self._next < 0:
                self._next = self._find_first(self._log_first)
            self._skip_damaged(log_damage)
            if self._entry(self._next) is not None:
                self._report("this entry and later ones have no record")
        if self._findings_left_out:
            last = self._findings[-1]
            text = f"and {self._findings_left_out} more problems of this queue"
            self._findings.append(Finding(last.file, last.offset, text))
        return self._findings

    def _find_first(self, physical_offset: int) -> int:
        """Return the number of the first entry at or after a log position."""
        number = self._segments.first // BATCH_ENTRY_BYTES
        for fields in self._entries():
            if fields[1] <= 0 or fields[0] >= physical_offset:
                break
            number += 1
        return number

    def _skip_damaged(self, log_damage: LogDamage) -> None:
        """Skip the entries of damaged records; report each."""
        while log_damage.has_damage and (found := self._entry(self._next)) is not None:
            damage = log_damage.damage_at(found[0])
            if damage is None:
                return
            self._report(
                f"the batch cannot be read: the log is damaged at position {damage.position}"
            )
            self._next += 1
            self._next_offset = found[4] + found[5]

    def _entries(self) -> Iterator[tuple[int, ...]]:
        step = _READ_ENTRIES * BATCH_ENTRY_BYTES
        for start in self._segments.starts():
            at = 0
            while data := self._read(start, at, step):
                yield from BATCH_ENTRY.iter_unpack(
                    data[: len(data) - len(data) % BATCH_ENTRY_BYTES]
                )
                at += step

    def _entry(self, number: int) -> tuple[int, ...] | None:
        """Return the fields of an entry; None if there is none."""
        position = number * BATCH_ENTRY_BYTES
        if not self._segments.first <= position < self._segments.end:
            return None
        start = position - position % self._segments.file_bytes
        data = self._read(start, position - start, BATCH_ENTRY_BYTES)
        if len(data) < BATCH_ENTRY_BYTES or not any(data):
            return None
        return BATCH_ENTRY.unpack(data)

    def _read(self, start: int, at: int, size: int) -> bytes:
        try:
            rest = self._segments.file_bytes - at
            return self._disk.read(self._segments.name(start), at, min(size, rest))
        except OSError:
            return b""

    def _report(self, problem: str) -> None:
        if len(self._findings) >= _FINDINGS_MAX:
            self._findings_left_out += 1
            return
        position = max(0, self._next) * BATCH_ENTRY_BYTES
        name, at = self._segments.name(position), position % self._segments.file_bytes
        self._findings.append(Finding(name, at, f"offset {self._next_offset}: {problem}"))
