"""Exclusive file locks, between processes and within one process.

Source: DefaultMessageStore.start (the lock itself), apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from kourou.errors import StoreLockedError

_LOCK_TEXT: Final = b"lock"


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

    def check_unlocked(self, path: str) -> None:
        """Raise StoreLockedError if opening and closing the file would release a held lock.

        Called before each opening of any file: only a file with the name of a lock is resolved.
        """
        name = path.rpartition("/")[2]
        held = [real for real in self._held if real.rpartition("/")[2] == name]
        if held and os.path.realpath(path) in held:
            raise StoreLockedError(f"{path} is a lock in use: opening it would release it")


FILE_LOCKS: Final = FileLocks()
"""One instance per process, because the operating system's locks belong to the process."""
