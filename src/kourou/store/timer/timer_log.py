"""The timer log: a unit for each message that waits, appended as they come; slots are its chains.

It is derived from the timer topic: what a crash takes of it is appended again.

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
"""Of one file of a new log, as in Java."""
_READ_BYTES: Final = 64 * 1024


class TimerLog:
    """Appends units and reads them back.

    Attributes:
        segments: its files.
        position: where the next unit goes, if it fits there.
    """

    def __init__(self, disk: Disk, file_bytes: int, *, keeps_all: bool = False) -> None:
        """Take up the files that are there, whose size counts more than the one that is asked for.

        Args:
            disk: the store's.
            file_bytes: of a file.
            keeps_all: remove nothing: files behind a gap are left alone.

        Raises:
            StoreConfigError: the files have different sizes, or names that do not fit them.
        """
        self._disk = disk
        self.segments = SegmentList(disk, TIMER_LOG, _size_there(disk) or file_bytes)
        behind_gap = self.segments.load()
        if not keeps_all:
            self.segments.remove(behind_gap)
        self.position = self.segments.first
        self._kept: list[bytes] = []  # appended at `_kept_at` and not in the file yet
        self._kept_at = self.position
        self._durable_end = self.segments.end
        self._unsynced: set[str] = set()

    def start_at(self, position: int) -> None:
        """Go on at `position`; what is behind is to be cut off by `cut`."""
        self.position = self._kept_at = position

    def next_position(self) -> int:
        """Return where the next unit will begin."""
        step = self.segments.file_bytes
        left = step - self.position % step
        return self.position if left >= UNIT_BYTES + BLANK.size else self.position + left

    def append(self, unit: TimerUnit) -> int:
        """Append a unit in memory and return where it begins; `write` brings it to the file.

        Raises:
            OSError: a new file was needed and could not be made; nothing was appended.
        """
        position = self.next_position()
        if position != self.position:
            self._kept.append(BLANK.pack(position - self.position, 0, BLANK_KIND))
            self.position = position  # not added again, should what follows fail
        if position >= self.segments.end:
            self._begin_file(position)
        self._kept.append(encode_unit(unit))
        self.position = position + UNIT_BYTES
        return position

    def _begin_file(self, position: int) -> None:
        self.write()
        if self.segments.first == self.segments.end:
            self._disk.make_directory(TIMER_LOG)
        self.segments.create(position)
        self._kept_at = position

    def write(self) -> None:
        """Write what was appended; a kill of this process leaves it then.

        Raises:
            OSError: some of it may be there; the next call writes all of it again.
        """
        if self._kept:
            name = self.segments.name(self._kept_at)
            self._unsynced.add(name)
            self._disk.write(name, self._kept_at % self.segments.file_bytes, self._kept)
            self._kept = []
        self._kept_at = self.position

    def take_unsynced(self) -> tuple[list[str], list[str]]:
        """Return files, and directories, that a sync must cover to make all written durable."""
        files, self._unsynced = sorted(self._unsynced), set()
        directories = [TIMER_LOG, ""] if self.segments.end != self._durable_end else []
        self._durable_end = self.segments.end
        return files, directories

    def not_synced(self, files: list[str], directories: list[str]) -> None:
        """Count what `take_unsynced` gave as unsynced again."""
        self._unsynced.update(name for name in files if self._disk.exists(name))
        if directories:
            self._durable_end = -1

    def cut(self, position: int) -> None:
        """Remove what lies at or behind `position`, durably.

        Raises:
            OSError: some of it may still be there.
        """
        for name in self.segments.cut(position):
            self._disk.sync(name)
        if self._disk.exists(TIMER_LOG):
            self._disk.sync_directory(TIMER_LOG)
        self._durable_end = self.segments.end
        self.start_at(max(position, self.segments.first))

    def unit(self, position: int) -> TimerUnit | None:
        """Return the unit that begins at a byte of the log; None if there is none."""
        if not self.segments.first <= position < self.segments.end:
            return None
        data = self._disk.read(
            self.segments.name(position), position % self.segments.file_bytes, UNIT_BYTES
        )
        return decode_unit(data)

    def chain(self, last: int) -> Iterator[tuple[int, TimerUnit]]:
        """Return the units of a slot with their places, last first; on any thread.

        What was appended must have been written.

        Raises:
            CorruptRecordError: there is no unit where one should be.
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
                    name, position % self.segments.file_bytes, "there is no unit of a timer"
                )
            yield position, unit
            position = unit.previous

    def _window(self, position: int) -> tuple[int, bytes]:
        """Return bytes that end behind the unit at `position`, and where they begin."""
        if not self.segments.first <= position < self.segments.end:
            return position, b""
        step = self.segments.file_bytes
        file_start = position - position % step
        start = max(file_start, position + UNIT_BYTES - _READ_BYTES)
        name = self.segments.name(position)
        return start, self._disk.read(name, start - file_start, position + UNIT_BYTES - start)

    def scan(self, position: int) -> Iterator[tuple[int, TimerUnit]]:
        """Return the units from a byte of the log on, to where there is none.

        Afterwards `position` is the log's own, if the caller starts there.
        """
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
        """Return all units of a slot that are whole, however its chain is torn."""
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
        """Unlink the oldest files whose last unit is of a record that is gone; return how many.

        Args:
            is_gone: tells whether the record at a byte of the commit log was removed.
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


def _size_there(disk: Disk) -> int:
    """Return the size of the files that are there; 0 if there are none.

    A crash leaves files without a size, whose directory entries were durable before they were.
    """
    names = [name for name in disk.list(TIMER_LOG) if parse_file_name(name) is not None]
    sizes = {disk.size(f"{TIMER_LOG}/{name}") for name in names} - {0}
    if len(sizes) > 1:
        raise StoreConfigError(
            f"{TIMER_LOG}: its files have sizes {sorted(sizes)}, and must have one; "
            "`kourou store rebuild` makes them anew"
        )
    return next(iter(sizes), 0)
