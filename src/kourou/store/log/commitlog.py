"""The commit log: all records of all topics, one after another; queues and index derive from it.

A record passes three states. One position for each state tells how far the log has reached it:

    appended_position   in memory, with its position in the log assigned
    written_position    in the files: survives a kill of the process
    synced_position     on the device: survives a power cut

If the next record and the 8 bytes of a blank do not fit into the rest of a segment, a blank fills
the rest, and the record goes to the start of the next segment.

Source: CommitLog.java, DefaultAppendMessageCallback.doAppend, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.errors import InvalidMessageError
from kourou.protocol.record.layout import BLANK_BYTES, encode_blank
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import COMMITLOG

ZEROS: Final = bytes(512 * 1024)
"""The most zeros of one write. The bytes are never modified, so they take no memory."""

SMALL_BYTES: Final = 64 * 1024
"""The largest sync for which zeros pay. With 128 KiB, a broker that received 64 messages of 1 KB a
read accepted a twentieth fewer."""

_LEAST_AHEAD: Final = len(ZEROS) // 2


class LogMark(NamedTuple):
    """A point among the appends that are not written yet."""

    position: int
    runs: int
    buffers: int


class CommitLog:
    """Appends records in memory, writes them with one call per segment, and reads.

    Args:
        disk: the disk that holds the segments.
        segment_bytes: the size of each segment.
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
        # Appends since the last write: (position, consecutive buffers from there), one item for
        # each segment. Appends extend the last item.
        self._runs: list[tuple[int, list[bytes | memoryview]]] = [(0, [])]
        self._run = self._runs[0][1]
        self._segment_end = segment_bytes  # of the segment that holds appended_position

    @property
    def min_position(self) -> int:
        """The byte at which the oldest segment begins."""
        return self.segments.first

    def start_at(self, position: int) -> None:
        """Set the end of the log that recovery found; everything below is durable."""
        self.appended_position = self.written_position = self.synced_position = position
        self._durable_end = self.segments.end
        self._zeros.reset(position)
        self._start_run(position)

    def position_for(self, size: int) -> int:
        """Return the position for a record of `size` bytes, or for a batch that must not be split.

        Raises:
            InvalidMessageError: it does not fit into a segment.
        """
        position = self.appended_position
        if position + size + BLANK_BYTES <= self._segment_end:
            return position
        if size + BLANK_BYTES > self._segment_bytes:
            raise InvalidMessageError(
                f"the record has {size} bytes; a commit log segment holds at most "
                f"{self._segment_bytes - BLANK_BYTES}"
            )
        return self._segment_end

    def add(self, position: int, record: bytes | memoryview) -> None:
        """Append one or more records at the position that `position_for` returned for it."""
        if position != self.appended_position:
            self._run.append(encode_blank(self._segment_end - self.appended_position))
            self._start_run(position, keep=True)
        self._run.append(record)
        self.appended_position = position + len(record)

    def add_blank(self) -> None:
        """Append a blank up to the end of the segment; the next record begins the next one."""
        self._run.append(encode_blank(self._segment_end - self.appended_position))
        self.appended_position = self._segment_end
        self._start_run(self._segment_end, keep=True)

    def begin_at(self, position: int) -> None:
        """Let the empty log begin at the start of another segment.

        Raises:
            OSError: a file without records could not be removed.
        """
        self.segments.truncate(self.segments.first)
        self.start_at(position)

    def begin_run(self) -> tuple[int, list[bytes | memoryview]]:
        """Return the limit and the list of buffers for direct appends of records.

        The first record belongs at `appended_position`; none may end after the limit. Afterwards
        the caller must call `end_run`.
        """
        return self._segment_end - BLANK_BYTES, self._run

    def end_run(self, position: int) -> None:
        """Accept the records up to `position` as appended."""
        self.appended_position = position

    def mark(self) -> LogMark:
        """Return a mark, with which `roll_back` drops later appends."""
        return LogMark(self.appended_position, len(self._runs), len(self._run))

    def roll_back(self, mark: LogMark) -> None:
        """Drop the appends since the mark; nothing must have been written since."""
        del self._runs[mark.runs :]
        run_position, self._run = self._runs[-1]
        del self._run[mark.buffers :]
        self.appended_position = mark.position
        self._segment_end = self.segment_end(run_position)

    def write(self) -> None:
        """Write all records appended since the last write, with one call per segment.

        Raises:
            OSError: a part may be in the files: call `undo`.
        """
        for position, buffers in self._runs:
            if not buffers:
                continue
            if position >= self.segments.end:
                self.segments.create(position)
            self._disk.write(self.segments.name(position), position % self._segment_bytes, buffers)
        self.written_position = self.appended_position
        self._start_run(self.written_position)

    def fill_ahead(self) -> None:
        """Write zeros after the written records, if due.

        Raises:
            OSError: a part may be in the file, which is harmless.
        """
        start, size = self._zeros.next_zeros(self.written_position)
        if size:
            name = self.segments.name(start)
            self._disk.write(name, start % self._segment_bytes, [memoryview(ZEROS)[:size]])

    def undo(self) -> None:
        """Undo all appends since the last successful write, in memory and in the files.

        The files are synced, so that no crash can restore an undone record after a record that
        replaced it.

        Raises:
            OSError: the appends are removed from memory; the files may still hold a part of them.
        """
        self.appended_position = self.written_position
        self._start_run(self.written_position)
        self._zeros.reset(self.written_position)
        end_before = self.segments.end
        for name in self.segments.truncate(self.written_position):
            self._disk.sync(name)
        if self.segments.end != end_before:
            self._disk.sync_directory(COMMITLOG)
            self._durable_end = self.segments.end

    def drop_appends(self) -> None:
        """Undo all appends since the last write, none of which reached a file."""
        self.appended_position = self.written_position
        self._start_run(self.written_position)

    def unsynced_files(self) -> tuple[str, ...]:
        """Return the segments with bytes between the synced and the written position."""
        if self.synced_position == self.written_position:
            return ()
        step = self._segment_bytes
        first = self.synced_position - self.synced_position % step
        return tuple(self.segments.name(at) for at in range(first, self.written_position, step))

    def unsynced_directories(self) -> tuple[str, ...]:
        """Return the log's directory if it has a new segment since its last sync."""
        return (COMMITLOG,) if self.segments.end > self._durable_end else ()

    def synced(self, position: int) -> None:
        """Record that everything below `position` is durable."""
        if position > self.synced_position:
            self._zeros.synced(position - self.synced_position)
            self.synced_position = position
            self._durable_end = max(self._durable_end, self.segment_end(position - 1))

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes of one segment; fewer at the end of the log. Thread-safe.

        Raises:
            FileNotFoundError: the segment does not exist or was removed.
        """
        return self._disk.read(self.segments.name(position), position % self._segment_bytes, size)

    def read_resident(self, position: int, size: int) -> bytes | None:
        """Return what `read` would, or None if that might wait for the device."""
        return self._disk.read_resident(
            self.segments.name(position), position % self._segment_bytes, size
        )

    def view_resident(self, position: int, size: int) -> memoryview | None:
        """Return a view of bytes of one segment, not to be stored; see `Disk.view_resident`."""
        return self._disk.view_resident(
            self.segments.name(position), position % self._segment_bytes, size
        )

    def file_offset(self, position: int) -> int:
        """Return the offset of the position within its segment."""
        return position % self._segment_bytes

    def segment_end(self, position: int) -> int:
        """Return the end position of the segment that contains `position`."""
        return position - position % self._segment_bytes + self._segment_bytes

    def _start_run(self, position: int, *, keep: bool = False) -> None:
        self._run = []
        if keep:
            self._runs.append((position, self._run))
        else:
            self._runs = [(position, self._run)]
        self._segment_end = self.segment_end(position)


class ZerosAhead:
    """Decides when and where to write zeros ahead of the records, so that a sync writes only these.

    A sync of data written into a hole also writes the metadata of the new blocks and waits for the
    file system's journal, which other writers share. A sync of data that replaced zeros writes only
    the data. Reserving blocks (fallocate) does not help, because the file system must then record
    that the blocks are in use. So some writes of records also write zeros, which the same sync
    makes durable:

        | segment  records | zeros      | hole             |
                           ^ written    ^ zeros end

    Half a MiB at once takes 0.1 ms to write and doubles the bytes written to the device. It
    increases the rate of syncs of 1 to 64 KB by a factor of 1.1 to 1.8, and that of 160 KB syncs
    not at all: if syncs exceed `SMALL_BYTES`, no zeros are written. In a whole broker the gain is a
    tenth, because sends wait for more than the sync. Figures: `bench/allocation.py`.

    Everything runs on the store's thread, and the zeros begin after the written records, so they
    can never overwrite a record. Zeros that a crash leaves read the same as the hole they fill.

    Source: DefaultMappedFile.warmMappedFile, apache/rocketmq 5.5.0, for the purpose; Java fills
    whole segments, through a mapping.

    Args:
        segment_bytes: the size of each segment.
    """

    __slots__ = ("_end", "_segment_bytes", "_synced_bytes")

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._end = 0
        self._synced_bytes = 0

    def reset(self, position: int) -> None:
        """Assume a hole from `position` on."""
        self._end = position

    def synced(self, size: int) -> None:
        """Record how many bytes of records the last sync made durable."""
        self._synced_bytes = size

    def next_zeros(self, written: int) -> tuple[int, int]:
        """Return the position and number of the zeros to write, all in one segment; often 0.

        They count as written from now on.

        Args:
            written: the end of the records, of which at least one is in the segment.
        """
        if self._end - written >= _LEAST_AHEAD or self._synced_bytes > SMALL_BYTES:
            return written, 0
        start = max(self._end, written)
        last = written - 1
        segment_end = last - last % self._segment_bytes + self._segment_bytes
        size = min(len(ZEROS), segment_end - start)
        if size <= 0:
            return written, 0
        self._end = start + size
        return start, size
