"""The commit log: all records of all topics, one after another; the truth of the store.

A record takes these steps, and a position tells how far each has come:

    appended_position   in memory, its place in the log decided
    written_position    in the files, so that it survives a kill of this process
    synced_position     on the device, so that it survives a power cut

Where the next record and the 8 bytes of a blank do not fit into the rest of a segment, the blank
goes there and the record to the start of the next one.

Source: CommitLog.java, DefaultAppendMessageCallback.doAppend, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import NamedTuple

from kourou.disk import Disk
from kourou.errors import InvalidMessageError
from kourou.store.formats import BLANK_BYTES, encode_blank
from kourou.store.log.segment_list import SegmentList
from kourou.store.log.zeros_ahead import ZEROS, ZerosAhead
from kourou.store.paths import COMMITLOG


class LogMark(NamedTuple):
    """A point among the appends that are not written yet."""

    position: int
    runs: int
    buffers: int


class CommitLog:
    """Appends in memory, writes what was appended in one call a segment, and reads.

    Args:
        disk: where the segments are.
        segment_bytes: the size of each.
    """

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self.segments = SegmentList(disk, COMMITLOG, segment_bytes)
        self.appended_position = 0
        self.written_position = 0
        self.synced_position = 0
        self._zeros = ZerosAhead(segment_bytes)
        self._durable_end = 0  # the names of segments that begin below are synced
        # Appends since the last write: (position, buffers that follow one another from there),
        # one for each segment they go to. The last one grows.
        self._runs: list[tuple[int, list[bytes]]] = [(0, [])]
        self._run = self._runs[0][1]
        self._segment_end = segment_bytes  # of the segment that holds appended_position

    @property
    def min_position(self) -> int:
        """The byte at which the oldest segment begins."""
        return self.segments.first

    def start_at(self, position: int) -> None:
        """Go on at `position`, below which everything is durable; recovery found it."""
        self.appended_position = self.written_position = self.synced_position = position
        self._durable_end = self.segments.end
        self._zeros.forget(position)
        self._begin_run(position)

    def place(self, size: int) -> int:
        """Return where a record of `size` bytes goes, or a batch that must not be parted.

        Raises:
            InvalidMessageError: it would not fit into any segment.
        """
        position = self.appended_position
        if position + size + BLANK_BYTES <= self._segment_end:
            return position
        if size + BLANK_BYTES > self._segment_bytes:
            raise InvalidMessageError(
                f"record of {size} bytes, at most {self._segment_bytes - BLANK_BYTES} fit into a "
                "commit log segment"
            )
        return self._segment_end

    def add(self, position: int, record: bytes) -> None:
        """Append the record at the position that `place` gave for it."""
        if position != self.appended_position:
            self._run.append(encode_blank(self._segment_end - self.appended_position))
            self._begin_run(position, keep=True)
        self._run.append(record)
        self.appended_position = position + len(record)

    def run(self) -> tuple[int, list[bytes]]:
        """Return the buffers that records may be put into by hand, and their limit.

        The first one belongs at `appended_position`; none may end behind the limit. Then call
        `end_run`.
        """
        return self._segment_end - BLANK_BYTES, self._run

    def end_run(self, position: int) -> None:
        """Take the records up to `position` as appended."""
        self.appended_position = position

    def mark(self) -> LogMark:
        """Return what `back_to` takes to drop the appends from here on."""
        return LogMark(self.appended_position, len(self._runs), len(self._run))

    def back_to(self, mark: LogMark) -> None:
        """Drop the appends since the mark; nothing must have been written since."""
        del self._runs[mark.runs :]
        run_position, self._run = self._runs[-1]
        del self._run[mark.buffers :]
        self.appended_position = mark.position
        self._segment_end = self.segment_end(run_position)

    def write(self) -> None:
        """Write all that was appended since the last write: one call for each segment.

        Raises:
            OSError: some of it may be in the files: call `undo`.
        """
        for position, buffers in self._runs:
            if not buffers:
                continue
            if position >= self.segments.end:
                self.segments.create(position)
            self._disk.write(self.segments.name(position), position % self._segment_bytes, buffers)
        self.written_position = self.appended_position
        self._begin_run(self.written_position)

    def fill_ahead(self) -> None:
        """Write some zeros behind what is written, if it is time for that.

        Raises:
            OSError: some of them may be there, which does no harm.
        """
        start, size = self._zeros.take(self.written_position)
        if size:
            name = self.segments.name(start)
            self._disk.write(name, start % self._segment_bytes, [memoryview(ZEROS)[:size]])

    def undo(self) -> None:
        """Take back all appends since the last write that succeeded, in memory and in the files.

        The files are synced, so that no crash brings back a record that was taken back and would
        stand behind one that takes its place.

        Raises:
            OSError: the appends are gone from memory; the files may hold something of them.
        """
        self.appended_position = self.written_position
        self._begin_run(self.written_position)
        self._zeros.forget(self.written_position)
        end_before = self.segments.end
        for name in self.segments.cut(self.written_position):
            self._disk.sync(name)
        if self.segments.end != end_before:
            self._disk.sync_directory(COMMITLOG)
            self._durable_end = self.segments.end

    def drop_appends(self) -> None:
        """Take back all appends since the last write, none of which reached a file."""
        self.appended_position = self.written_position
        self._begin_run(self.written_position)

    def unsynced_files(self) -> tuple[str, ...]:
        """Return the segments that hold bytes between the synced and the written position."""
        if self.synced_position == self.written_position:
            return ()
        step = self._segment_bytes
        first = self.synced_position - self.synced_position % step
        return tuple(self.segments.name(at) for at in range(first, self.written_position, step))

    def unsynced_directories(self) -> tuple[str, ...]:
        """Return the log's directory if a segment was created that its last sync did not cover."""
        return (COMMITLOG,) if self.segments.end > self._durable_end else ()

    def synced(self, position: int) -> None:
        """Note that everything below `position` is durable."""
        if position > self.synced_position:
            self._zeros.synced(position - self.synced_position)
            self.synced_position = position
            self._durable_end = max(self._durable_end, self.segment_end(position - 1))

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes of one segment; fewer where the log ends. Thread-safe.

        Raises:
            FileNotFoundError: the segment is not there, or no longer.
        """
        return self._disk.read(self.segments.name(position), position % self._segment_bytes, size)

    def read_resident(self, position: int, size: int) -> bytes | None:
        """Return what `read` would, or None if that might wait for the device."""
        return self._disk.read_resident(
            self.segments.name(position), position % self._segment_bytes, size
        )

    def view_resident(self, position: int, size: int) -> memoryview | None:
        """Return bytes of one segment where they are in memory, not to be kept; see `Disk`."""
        return self._disk.view_resident(
            self.segments.name(position), position % self._segment_bytes, size
        )

    def file_offset(self, position: int) -> int:
        """Return which byte of its segment the position is."""
        return position % self._segment_bytes

    def segment_end(self, position: int) -> int:
        """Return where the segment that holds `position` ends."""
        return position - position % self._segment_bytes + self._segment_bytes

    def _begin_run(self, position: int, *, keep: bool = False) -> None:
        self._run = []
        if keep:
            self._runs.append((position, self._run))
        else:
            self._runs = [(position, self._run)]
        self._segment_end = self.segment_end(position)
