"""Timer log: one unit per scheduled message in order of arrival; a slot's units form a chain.

It is derived from the timer topic: units lost in a crash are appended again.

Source: TimerLog.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kourou.disk import Disk
from kourou.errors import CorruptRecordError, StoreConfigError
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import parse_file_name
from kourou.store.timer.layouts import (
    BLANK,
    BLANK_KIND,
    UNIT_BYTES,
    TimerUnit,
    decode_unit,
    encode_unit,
    is_blank,
)

TIMER_LOG: Final = "timerlog"
LOG_FILE_BYTES: Final = 100 * 1024 * 1024
"""Size of a file of a new log, as in Java."""
_READ_BYTES: Final = 64 * 1024


class TimerLog:
    """Appends units and reads them back.

    Attributes:
        segments: the log's files.
        position: end of the log; a unit that does not fit there is appended to the next file.
    """

    def __init__(self, disk: Disk, file_bytes: int, *, keeps_files_after_gap: bool = False) -> None:
        """Open the existing files.

        Args:
            disk: holds the store.
            file_bytes: size of a file; the size of existing files takes precedence.
            keeps_files_after_gap: do not remove files after a gap.

        Raises:
            StoreConfigError: the files have different sizes, or names that do not match the size.
        """
        self._disk = disk
        self.segments = SegmentList(disk, TIMER_LOG, _existing_size(disk) or file_bytes)
        behind_gap = self.segments.load()
        if not keeps_files_after_gap:
            self.segments.remove(behind_gap)
            self._complete_empty_files()
        self.position = self.segments.first
        self._unwritten: list[bytes] = []  # unwritten units and blanks, from `_unwritten_at` on
        self._unwritten_at = self.position
        self._durable_end = self.segments.end
        self._unsynced: set[str] = set()

    def _complete_empty_files(self) -> None:
        """Give empty files their size: a crash, or a failing disk, left them."""
        for start in self.segments.starts():
            name = self.segments.name(start)
            if not self._disk.size(name):
                self._disk.truncate(name, self.segments.file_bytes)

    def start_at(self, position: int) -> None:
        """Set the end of the log to `position`; call `truncate` to remove later units."""
        self.position = self._unwritten_at = position

    def next_position(self) -> int:
        """Return the position of the next unit."""
        step = self.segments.file_bytes
        left = step - self.position % step
        return self.position if left >= UNIT_BYTES + BLANK.size else self.position + left

    def append(self, unit: TimerUnit) -> int:
        """Append a unit in memory and return its position; `write` writes it to the file.

        Raises:
            OSError: a new file could not be created; no unit was appended.
        """
        position = self.next_position()
        if position != self.position:
            self._unwritten.append(BLANK.pack(position - self.position, 0, BLANK_KIND))
            self.position = position  # now, so that a retry after a failure adds no second blank
        if position >= self.segments.end:
            self._begin_file(position)
        self._unwritten.append(encode_unit(unit))
        self.position = position + UNIT_BYTES
        return position

    def _begin_file(self, position: int) -> None:
        self.write()
        if self.segments.first == self.segments.end:
            self._disk.make_directory(TIMER_LOG)
        self.segments.create(position)
        self._unwritten_at = position

    def write(self) -> None:
        """Write appended units, which then survive a kill of this process.

        Raises:
            OSError: some may be written; the next call writes all of them again.
        """
        if self._unwritten:
            name = self.segments.name(self._unwritten_at)
            self._unsynced.add(name)
            self._disk.write(name, self._unwritten_at % self.segments.file_bytes, self._unwritten)
            self._unwritten = []
        self._unwritten_at = self.position

    @property
    def written_end(self) -> int:
        """The position of the first unit that is only in memory; the end if all are written."""
        return self._unwritten_at

    def take_unsynced(self) -> tuple[list[str], list[str]]:
        """Return the files and directories to sync so that all written units are durable."""
        files, self._unsynced = sorted(self._unsynced), set()
        directories = [TIMER_LOG, ""] if self.segments.end != self._durable_end else []
        self._durable_end = self.segments.end
        return files, directories

    def mark_unsynced(self, files: list[str], directories: list[str]) -> None:
        """Mark files and directories from `take_unsynced` as unsynced again."""
        self._unsynced.update(name for name in files if self._disk.exists(name))
        if directories:
            self._durable_end = -1

    def truncate(self, position: int) -> None:
        """Truncate the log at `position`, durably.

        Raises:
            OSError: some later units may remain.
        """
        for name in self.segments.truncate(position):
            self._disk.sync(name)
        if self._disk.exists(TIMER_LOG):
            self._disk.sync_directory(TIMER_LOG)
        self._durable_end = self.segments.end
        self.start_at(max(position, self.segments.first))

    def unit(self, position: int) -> TimerUnit | None:
        """Return the unit at a position of the log; None if there is none."""
        if not self.segments.first <= position < self.segments.end:
            return None
        data = self._disk.read(
            self.segments.name(position), position % self.segments.file_bytes, UNIT_BYTES
        )
        return decode_unit(data)

    def chain(self, last: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield positions and units of a slot, last first; runs on any thread.

        Its units must have been written; see `written_end`.

        Raises:
            CorruptRecordError: the chain leads to a position without a valid unit.
        """
        buffer, start, position = b"", 0, last
        while position >= 0:
            at = position - start
            if not 0 <= at <= len(buffer) - UNIT_BYTES:
                start, buffer = self._window(position)
                at = position - start
            unit = decode_unit(buffer, at) if at >= 0 else None
            if unit is None or unit.previous >= position:
                name = self.segments.name(position)
                raise CorruptRecordError(
                    name, position % self.segments.file_bytes, "no valid timer unit"
                )
            yield position, unit
            position = unit.previous

    def _window(self, position: int) -> tuple[int, bytes]:
        """Return the start position and the bytes of a window that ends with the unit there."""
        if not self.segments.first <= position < self.segments.end:
            return position, b""
        step = self.segments.file_bytes
        file_start = position - position % step
        start = max(file_start, position + UNIT_BYTES - _READ_BYTES)
        name = self.segments.name(position)
        return start, self._disk.read(name, start - file_start, position + UNIT_BYTES - start)

    def scan(self, position: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield positions and units from `position` on, up to the first position without a unit."""
        while position < self.segments.end:
            step = self.segments.file_bytes
            offset = position % step
            wanted = min(step - offset, _READ_BYTES - _READ_BYTES % UNIT_BYTES)
            data = self._disk.read(self.segments.name(position), offset, wanted)
            at = 0
            while (unit := decode_unit(data, at)) is not None:
                yield position + at, unit
                at += UNIT_BYTES
            position += at
            if at + UNIT_BYTES <= len(data) or at == 0:
                if not is_blank(data, at):
                    return
                position += step - position % step

    def units_of(self, second: int) -> Iterator[tuple[int, TimerUnit]]:
        """Yield positions and all valid units of a slot by a scan, if its chain is broken."""
        step = self.segments.file_bytes
        for start in self.segments.starts():
            name = self.segments.name(start)
            size = step - step % UNIT_BYTES
            for offset in range(0, size, _READ_BYTES // UNIT_BYTES * UNIT_BYTES):
                data = self._disk.read(name, offset, _READ_BYTES // UNIT_BYTES * UNIT_BYTES)
                for at in range(0, len(data) - UNIT_BYTES + 1, UNIT_BYTES):
                    unit = decode_unit(data, at)
                    position = start + offset + at
                    if unit is not None and unit.second == second and position < self.position:
                        yield position, unit

    def remove_before(self, is_gone: Callable[[int], bool]) -> int:
        """Remove the oldest files whose last unit's record has expired; return their number.

        Args:
            is_gone: tells whether the record at a commit log position was removed.
        """
        step, count = self.segments.file_bytes, 0
        last_at = (step - BLANK.size - UNIT_BYTES) // UNIT_BYTES * UNIT_BYTES
        for start in list(self.segments.starts())[:-1]:
            unit = self.unit(start + last_at)
            if unit is not None and not is_gone(unit.physical_offset):
                break
            count += 1
        for start in self.segments.hide_first(count):
            self._disk.unlink(self.segments.name(start))
        return count


def _existing_size(disk: Disk) -> int:
    """Return the size of the existing files; 0 if there are none.

    Empty files are ignored: a crash leaves them, if the directory entry was durable first.
    """
    names = [name for name in disk.list(TIMER_LOG) if parse_file_name(name) is not None]
    sizes = {disk.size(f"{TIMER_LOG}/{name}") for name in names} - {0}
    if len(sizes) > 1:
        raise StoreConfigError(
            f"the files of {TIMER_LOG} must all have one size, and have {sorted(sizes)} bytes; "
            "`kourou store rebuild` rebuilds them"
        )
    return next(iter(sizes), 0)
