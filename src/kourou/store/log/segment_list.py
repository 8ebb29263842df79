"""The fixed-size files that make up one log: a commit log, or one consume queue.

Each is named by the log's byte at which it begins and is created at its full size, sparse, so that
appending never changes a file's size: a sync need not write it.

Source: MappedFileQueue.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging

from kourou.disk import Disk
from kourou.errors import StoreConfigError
from kourou.store.paths import file_name, parse_file_name

log = logging.getLogger(__name__)


class SegmentList:
    """Files that follow one another without a gap, from byte `first` to byte `end` of the log.

    Args:
        disk: where they are.
        directory: which directory holds them; it may hold nothing else with such a name.
        file_bytes: the size of each.
    """

    __slots__ = ("_disk", "directory", "end", "file_bytes", "first")

    def __init__(self, disk: Disk, directory: str, file_bytes: int) -> None:
        self._disk = disk
        self.directory = directory
        self.file_bytes = file_bytes
        self.first = 0
        self.end = 0

    def load(self) -> list[int]:
        """Take up the files that are there.

        Returns:
            The starts of files behind a gap, which are no part of the list.

        Raises:
            StoreConfigError: a file does not begin at a multiple of the file size.
        """
        starts = [
            start
            for name in self._disk.list(self.directory)
            if (start := parse_file_name(name)) is not None
        ]
        for start in starts:
            if start % self.file_bytes:
                raise StoreConfigError(
                    f"{self.directory}/{file_name(start)} does not begin at a multiple of "
                    f"{self.file_bytes}: the store was made with another file size"
                )
        self.first = self.end = starts[0] if starts else 0
        for index, start in enumerate(starts):
            if start != self.end:
                return starts[index:]
            self.end += self.file_bytes
        return []

    def starts(self) -> range:
        """Return the byte of the log at which each file begins."""
        return range(self.first, self.end, self.file_bytes)

    def name(self, position: int) -> str:
        """Return the name of the file that holds byte `position` of the log."""
        return f"{self.directory}/{position - position % self.file_bytes:020d}"

    def create(self, start: int) -> None:
        """Add the next file, or the first one, which may begin anywhere.

        Raises:
            OSError: the list is unchanged, and no file of a wrong size is left.
        """
        if self.first == self.end:
            self.first = self.end = start
        assert start == self.end, f"{self.directory}: {start} leaves a gap after {self.end}"
        name = self.name(start)
        try:
            self._disk.truncate(name, 0)  # whatever was there is no part of the list
            self._disk.truncate(name, self.file_bytes)
        except OSError:
            self._unlink(start)
            raise
        self.end += self.file_bytes

    def cut(self, position: int) -> list[str]:
        """Remove all that lies at or behind byte `position` of the log.

        Later files go, and the rest of the one that holds the position becomes zeros, so that
        nothing old can be taken for what belongs there. Nothing is synced.

        Returns:
            The names of files that remain and were changed, at most one.
        """
        while self.end > self.first and self.end - self.file_bytes >= position:
            start = self.end - self.file_bytes
            self._unlink(start)
            self.end = start
        if not self.first < position < self.end:
            return []
        name = self.name(position)
        self._disk.truncate(name, position % self.file_bytes)
        self._disk.truncate(name, self.file_bytes)
        return [name]

    def hide_first(self, count: int) -> list[int]:
        """Let the list begin behind its oldest files, which are the caller's to unlink.

        Returns:
            Where they begin, oldest first. The last file always stays.
        """
        hidden = list(self.starts()[: max(0, min(count, len(self.starts()) - 1))])
        self.first += len(hidden) * self.file_bytes
        return hidden

    def show_first(self, starts: list[int]) -> None:
        """Take back files that were hidden and are still there: the last ones of those."""
        assert not starts or starts[-1] + self.file_bytes == self.first, self.directory
        self.first -= len(starts) * self.file_bytes

    def remove(self, starts: list[int]) -> None:
        """Remove files behind a gap, last first, so that a crash leaves no new gap."""
        for start in reversed(starts):
            self._unlink(start)

    def _unlink(self, start: int) -> None:
        name = self.name(start)
        if self._disk.exists(name):
            self._disk.unlink(name)
            log.info("segment.removed name=%s", name)
