"""Exclusive file locks, between processes and within one process.

Source: DefaultMessageStore.start (the lock itself), apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable
from typing import Final

from kourou.errors import StoreLockedError

_LOCK_TEXT: Final = b"lock"
_FLOCK: Final = struct.Struct("qqihh" if sys.platform == "darwin" else "hhqqi4x")
"""C's `struct flock` of 64-bit systems: start, length, pid, type, whence on macOS; type and whence
come first on Linux."""


class FileLocks:
    """Registry of the lock files that this process holds.

    The lock is an fcntl record lock on byte 0, the same as Java's FileChannel.tryLock(0, 1, false).
    Such locks belong to the process: a second request in the same process would succeed as well,
    and closing *any* descriptor of the file releases the lock. Therefore every opening of a file
    asks this registry first.
    """

    def __init__(self) -> None:
        self._held: dict[str, object] = {}
        self._mutex = threading.Lock()

    def acquire(self, path: str) -> Callable[[], None]:
        """Lock byte 0 of the file; return a function that releases the lock.

        Raises:
            StoreLockedError: another process, or another holder in this process, has the lock.
            OSError: the file cannot be opened or written.
        """
        import fcntl  # noqa: PLC0415  # not on Windows, where clients import this module

        real = os.path.realpath(path)
        with self._mutex:
            if real in self._held:
                raise StoreLockedError(
                    f"{path} is locked by another store of this process: close that one first"
                )
            fd = os.open(real, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                os.pwrite(fd, _LOCK_TEXT, 0)
            except (BlockingIOError, PermissionError):  # POSIX allows EAGAIN and EACCES
                os.close(fd)
                raise StoreLockedError(
                    f"{path} is locked by another process: stop that broker, or use another store"
                ) from None
            except OSError:
                os.close(fd)
                raise
            holder = self._held[real] = object()

        def unlock() -> None:
            with self._mutex:
                if self._held.get(real) is holder:
                    del self._held[real]
                    os.close(fd)

        return unlock

    def is_locked(self, path: str) -> bool:
        """Tell whether a process, perhaps this one, holds the lock; takes no lock itself.

        False if the file does not exist or cannot be opened.
        """
        import fcntl  # noqa: PLC0415  # not on Windows, where clients import this module

        real = os.path.realpath(path)
        with self._mutex:
            if real in self._held:  # closing a descriptor of the file would release the lock
                return True
            try:
                fd = os.open(real, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
            try:
                answer = fcntl.fcntl(fd, fcntl.F_GETLK, _lock_query(fcntl.F_WRLCK))
            except OSError:  # the file system has no locks
                return False
            finally:
                os.close(fd)
        kinds = _FLOCK.unpack(answer)
        kind: int = kinds[3 if sys.platform == "darwin" else 0]
        return kind != fcntl.F_UNLCK

    def check_unlocked(self, path: str) -> None:
        """Raise StoreLockedError if opening and closing the file would release a held lock.

        Called before each opening of any file: only a file with the name of a lock is resolved.
        """
        name = path.rpartition("/")[2]
        held = [real for real in self._held if real.rpartition("/")[2] == name]
        if held and os.path.realpath(path) in held:
            raise StoreLockedError(f"{path} is a lock in use: opening it would release it")


def _lock_query(kind: int) -> bytes:
    """Return a `struct flock` for a lock of byte 0."""
    if sys.platform == "darwin":
        return _FLOCK.pack(0, 1, 0, kind, os.SEEK_SET)
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0)


FILE_LOCKS: Final = FileLocks()
"""One instance per process, because the operating system's locks belong to the process."""
