"""The fixed-size segment files of one log: of the commit log, or of one consume queue.

Each file is named by the byte of the log at which it begins. It is created at its full size,
sparse, so that appends never change its size and a sync need not write the inode.

Source: MappedFileQueue.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging

from kourou.disk import Disk
from kourou.errors import StoreConfigError
from kourou.store.paths import file_name, parse_file_name

log = logging.getLogger(__name__)


class SegmentList:
    """Consecutive files without a gap, from byte `first` to byte `end` of the log.

    Args:
        disk: the disk that holds them.
        directory: their directory; all files in it whose names are 20 digits are segments.
        file_bytes: the size of each file.
    """

    __slots__ = ("_disk", "directory", "end", "file_bytes", "first")

    def __init__(self, disk: Disk, directory: str, file_bytes: int) -> None:
        self._disk = disk
        self.directory = directory
        self.file_bytes = file_bytes
        self.first = 0
        self.end = 0

    def load(self) -> list[int]:
        """Load the existing files.

        Returns:
            The starts of files after a gap, which are not part of the list.

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
                    f"{self.file_bytes}: the store was created with another file size"
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
            OSError: the list is unchanged, and no file of a wrong size remains.
        """
        if self.first == self.end:
            self.first = self.end = start
        assert start == self.end, f"{self.directory}: {start} leaves a gap after {self.end}"
        name = self.name(start)
        try:
            self._disk.truncate(name, 0)  # an existing file is not part of the list
            self._disk.truncate(name, self.file_bytes)
        except OSError:
            self._unlink(start)
            raise
        self.end += self.file_bytes

    def truncate(self, position: int) -> list[str]:
        """Remove all data at or after byte `position` of the log.

        Later files are removed, and the rest of the file that contains the position becomes zeros,
        so that no old data can be mistaken for new. Nothing is synced.

        Returns:
            The names of the changed files that remain, at most one.
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
        """Drop the oldest files from the list; the caller must unlink them.

        Returns:
            The start of each dropped file, oldest first. The last file is never dropped.
        """
        hidden = list(self.starts()[: max(0, min(count, len(self.starts()) - 1))])
        self.first += len(hidden) * self.file_bytes
        return hidden

    def show_first(self, starts: list[int]) -> None:
        """Add hidden files that still exist to the list again: the newest ones of those hidden."""
        assert not starts or starts[-1] + self.file_bytes == self.first, self.directory
        self.first -= len(starts) * self.file_bytes

    def remove(self, starts: list[int]) -> None:
        """Remove files after a gap, last first, so that a crash leaves no new gap."""
        for start in reversed(starts):
            self._unlink(start)

    def _unlink(self, start: int) -> None:
        name = self.name(start)
        if self._disk.exists(name):
            self._disk.unlink(name)
            log.info("segment.removed name=%s", name)
