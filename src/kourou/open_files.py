"""Cache of open file descriptors for the files of one directory.

The number of open descriptors is bounded, because a store of 5,000 topics has 40,000 files. The
least recently used is closed first; one that another thread uses is closed after that use. Closing
a descriptor hides no writeback error: Linux reports it to the next descriptor that syncs the file.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kourou.file_locks import FILE_LOCKS


class OpenFile:
    """A descriptor with a count of its current users."""

    __slots__ = ("fd", "is_cached", "is_writable", "users")

    def __init__(self, fd: int, *, is_writable: bool) -> None:
        self.fd = fd
        self.is_writable = is_writable
        self.users = 1
        self.is_cached = True


class PinnedFile(NamedTuple):
    """A descriptor that stays open until `release` is called."""

    fd: int
    release: Callable[[], None]


class OpenFiles:
    """The open files of one directory, by name. Any thread may use it."""

    def __init__(self, path_of: Callable[[str], str], open_files_max: int) -> None:
        """Create an empty cache.

        Args:
            path_of: maps a name to the file's path.
            open_files_max: the most descriptors that stay open.
        """
        self._path_of = path_of
        self._open_files_max = open_files_max
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._mutex = threading.Lock()

    def acquire(self, name: str, *, for_writing: bool) -> OpenFile:
        """Return the open file, pinned until `release`; only `for_writing` creates a file."""
        with self._mutex:
            file = self._files.get(name)
            if file is not None and (file.is_writable or not for_writing):
                self._files.move_to_end(name)
                file.users += 1
                return file
            path = self._path_of(name)
            FILE_LOCKS.check_unlocked(path)
            flags = os.O_RDWR | os.O_CREAT if for_writing else os.O_RDONLY
            fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
            if file is not None:
                self._evict(name)
            file = self._files[name] = OpenFile(fd, is_writable=for_writing)
            if len(self._files) > self._open_files_max:
                self._evict(next(iter(self._files)))
            return file

    def release(self, file: OpenFile) -> None:
        with self._mutex:
            file.users -= 1
            if not file.users and not file.is_cached:
                os.close(file.fd)

    def pin(self, name: str) -> PinnedFile:
        """Return the file for a caller that keeps it open; opens it for reading if necessary."""
        file = self.acquire(name, for_writing=False)
        return PinnedFile(file.fd, partial(self.release, file))

    def drop(self, name: str) -> None:
        with self._mutex:
            if name in self._files:
                self._evict(name)

    def _evict(self, name: str) -> None:
        file = self._files.pop(name)
        file.is_cached = False
        if not file.users:
            os.close(file.fd)

    def close(self) -> None:
        """Close all descriptors; those in use are closed when their users release them."""
        with self._mutex:
            for name in list(self._files):
                self._evict(name)
