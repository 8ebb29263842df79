"""Checks one consume queue while the commit log is read from its first record on."""

from __future__ import annotations

from typing import Protocol

from kourou.disk import Disk
from kourou.store.formats import BLANK_ENTRY_SIZE, ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.log.log_scan import used_bytes
from kourou.store.log.log_walk import LogPiece
from kourou.store.log.segment_list import SegmentList
from kourou.store.queues.queue_extension import is_address
from kourou.store.tools.check_extension import UnitCheck
from kourou.store.tools.findings import Finding

_READ_ENTRIES = 512
_FINDINGS_MAX = 20
_JUMP_MAX = 100_000
_NOTHING = QueueEntry(0, 0, 0)


class LogDamage(Protocol):
    """The damage of the log up to the position that the pass over it has reached."""

    @property
    def has_damage(self) -> bool:
        """Tell whether there is any."""

    def damage_at(self, position: int) -> LogPiece | None:
        """Return the damage that contains the position."""


class QueueCheck:
    """Compares the entries of one queue with its records, in log order.

    Args:
        disk: holds the queue's files.
        segments: the queue's files; may be empty.
        log_first: first position of the commit log; entries of older records may still exist.
        units: checks extension units, which entries may name instead of a tags code; None if the
            queue has none.
    """

    def __init__(
        self, disk: Disk, segments: SegmentList, log_first: int, units: UnitCheck | None = None
    ) -> None:
        self._disk = disk
        self._units = units
        self._segments = segments
        self._log_first = log_first
        self._next: int | None = None  # offset of the next record; None before the first one
        self._buffer = b""
        self._buffer_at = 0  # queue offset of the first entry in the buffer
        self._findings: list[Finding] = []
        self._findings_left_out = 0

    def check_record(
        self, queue_offset: int, entry: QueueEntry, log_damage: LogDamage, *, is_code_known: bool
    ) -> None:
        """Check the entry of the queue's next record."""
        if self._next is None or queue_offset == 0:
            # Offset 0: the topic was created again. The entries of the deleted one are unknown.
            self._findings.clear()
            self._check_before(queue_offset, log_damage)
        elif queue_offset != self._next and not self._is_damaged(queue_offset, log_damage):
            self._report(
                queue_offset,
                f"the next record in the log has offset {queue_offset}, not {self._next}",
            )
        self._next = queue_offset + 1
        found = self._entry(queue_offset)
        address = found.tags_code
        units = self._units if is_address(address) else None
        if units is not None or not is_code_known:
            found = found._replace(tags_code=entry.tags_code)
        if units is not None and found == entry:
            code = entry.tags_code if is_code_known else None
            self._add_finding(units.find(queue_offset, address, code))
        elif found != entry:
            self._report(queue_offset, f"the entry is {tuple(found)}, must be {tuple(entry)}")

    def _is_damaged(self, queue_offset: int, log_damage: LogDamage) -> bool:
        """Tell whether the missing records before `queue_offset` are damaged; report each."""
        start = self._next
        if start is None or not log_damage.has_damage or not 0 < queue_offset - start < _JUMP_MAX:
            return False
        for offset in range(start, queue_offset):
            damage = log_damage.damage_at(self._entry(offset).physical_offset)
            if damage is None:
                self._report(offset, "the record is missing, and its entry names no damaged bytes")
            else:
                self._report_damaged(offset, damage)
        return True

    def finish(self, log_damage: LogDamage, *, is_live: bool) -> list[Finding]:
        """Check the queue after its last record; return the findings."""
        if not is_live:
            if self._next is None:
                self._next = self._check_before(self._end, log_damage)
            elif log_damage.has_damage:
                self._skip_damaged(log_damage)
            self._check_behind(self._next)
        if self._findings_left_out:
            last = self._findings[-1]
            text = f"and {self._findings_left_out} more problems of this queue"
            self._findings.append(Finding(last.file, last.offset, text))
        return self._findings

    def _skip_damaged(self, log_damage: LogDamage) -> None:
        """Skip the entries of damaged records at the queue's end; report each."""
        assert self._next is not None
        while (entry := self._entry(self._next)).size > 0 and self._next < self._end:
            damage = log_damage.damage_at(entry.physical_offset)
            if damage is None:
                return
            self._report_damaged(self._next, damage)
            self._next += 1

    def _check_behind(self, queue_offset: int) -> None:
        """Check that there are no entries from the offset on."""
        position = max(queue_offset * ENTRY_BYTES, self._segments.first)
        while position < self._segments.end:
            if self._used_bytes(position):
                self._report(position // ENTRY_BYTES, "entries from this offset on have no record")
                return
            position += self._segments.file_bytes - position % self._segments.file_bytes

    def _used_bytes(self, position: int) -> int:
        try:
            return used_bytes(self._disk, self._segments, position)
        except OSError:
            return 0  # reported with the names and sizes

    @property
    def _end(self) -> int:
        return self._segments.end // ENTRY_BYTES

    def _check_before(self, stop: int, log_damage: LogDamage) -> int:
        """Check the entries below `stop`, whose records must be older than the log.

        Returns:
            The first offset whose entry is not such an entry.
        """
        last = -1
        for offset in range(self._segments.first // ENTRY_BYTES, min(stop, self._end)):
            entry = self._entry(offset)
            if entry.size == BLANK_ENTRY_SIZE and entry.physical_offset == 0:
                continue
            damage = log_damage.damage_at(entry.physical_offset) if entry.size > 0 else None
            if damage is not None:
                self._report_damaged(offset, damage)
            elif not (entry.size > 0 and last < entry.physical_offset < self._log_first):
                if stop < self._end:
                    self._report(offset, f"the entry {tuple(entry)} names no record of this queue")
                return offset
            last = entry.physical_offset
        return min(stop, self._end)

    def _entry(self, queue_offset: int) -> QueueEntry:
        """Return the entry at the offset; zeros outside the files."""
        at = queue_offset - self._buffer_at
        if not 0 <= at < len(self._buffer) // ENTRY_BYTES:
            self._read(queue_offset)
            at = 0
        if not self._buffer:
            return _NOTHING
        return QueueEntry._make(ENTRY.unpack_from(self._buffer, at * ENTRY_BYTES))

    def _read(self, queue_offset: int) -> None:
        position = queue_offset * ENTRY_BYTES
        self._buffer, self._buffer_at = b"", queue_offset
        if not self._segments.first <= position < self._segments.end:
            return
        try:
            data = self._disk.read(
                self._segments.name(position),
                position % self._segments.file_bytes,
                _READ_ENTRIES * ENTRY_BYTES,
            )
        except OSError:
            return  # a missing or unreadable file counts as empty
        self._buffer = data[: len(data) - len(data) % ENTRY_BYTES]

    def _report_damaged(self, queue_offset: int, damage: LogPiece) -> None:
        text = f"the message cannot be read: the log is damaged at position {damage.position}"
        self._report(queue_offset, text)

    def _report(self, queue_offset: int, problem: str) -> None:
        position = queue_offset * ENTRY_BYTES
        name, at = self._segments.name(position), position % self._segments.file_bytes
        self._add_finding(Finding(name, at, f"offset {queue_offset}: {problem}"))

    def _add_finding(self, finding: Finding | None) -> None:
        if finding is None:
            return
        if len(self._findings) >= _FINDINGS_MAX:
            self._findings_left_out += 1
        else:
            self._findings.append(finding)
