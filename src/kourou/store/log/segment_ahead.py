"""The next segment of the log, made and filled with zeros while the one before it is written.

A sync of a sparse file also has to write where its new blocks are, and waits for what others write
to the same journal; one of a file that has its blocks writes nothing but the data. Reserving blocks
(fallocate) gains nothing, because that they hold data now has to be noted as well. Figures:
`bench/allocation.py`.

    step        where              what it does                       a crash after it leaves
    made        any thread         an empty segment of its full size  the same: cut off by recovery
    fill_some   any thread         zeros where zeros are read         the same
    claim       the store's        ends the filling, whole or not     the same
    (written)   the store's        the log's first record goes there  a segment as any other

Zeros are never written over a record: both `claim` and each write of zeros hold the mutex. The last
sync of zeros may end after that, and be the one that learns that a record did not reach the device:
the kernel tells only one sync of a file. So a sync of the log asks `check_synced` first.

Source: for what it is good for AllocateMappedFileService.java, DefaultMappedFile.warmMappedFile,
apache/rocketmq 5.5.0, which does that with two segments and writes through a mapping.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Final

from kourou.disk import Disk
from kourou.store.paths import COMMITLOG

log = logging.getLogger(__name__)

_WRITE_BYTES: Final = 256 * 1024
"""Zeros of one write: about 0.1 ms, which is how long `claim` may have to wait."""
_WRITES_PER_SYNC: Final = 4
"""A longer sync would hold up the log's own."""


class SegmentAhead:
    """One segment that no record is in yet.

    Args:
        disk: where it is.
        name: of its file.
        start: the byte of the log at which it begins.
        size: its bytes.
        mutex: held for moments, by the thread that fills and by the store's.
        sync_mutex: held by the thread that fills while it syncs.
    """

    def __init__(
        self,
        disk: Disk,
        name: str,
        start: int,
        size: int,
        *,
        mutex: AbstractContextManager[object],
        sync_mutex: AbstractContextManager[object],
    ) -> None:
        self.start = start
        self._disk = disk
        self._name = name
        self._size = size
        self._mutex = mutex
        self._sync_mutex = sync_mutex
        self._sync_error: OSError | None = None
        self._filled = 0
        self._is_made = False
        self._is_ended = False
        self._is_claimed = False

    def fill_some(self) -> bool:
        """Make the file, or write some zeros and sync them; on any thread.

        Returns:
            Whether there is more to do.

        Raises:
            OSError: call `discard`.
        """
        for _ in range(_WRITES_PER_SYNC):
            with self._mutex:
                if self._is_ended:
                    return False
                self._make_or_write()
            if self._filled == self._size:
                break
        with self._sync_mutex:
            try:
                self._disk.sync(self._name)
            except FileNotFoundError:
                return False  # discarded meanwhile
            except OSError as error:
                self._sync_error = error
                raise
        return self._filled < self._size

    def check_synced(self) -> None:
        """Raise what a sync of zeros did, which may have been about records; on any thread.

        Raises:
            OSError: bytes of the segment may never become durable.
        """
        with self._sync_mutex:
            if self._sync_error is not None:
                raise self._sync_error

    def _make_or_write(self) -> None:
        if not self._is_made:
            self._disk.truncate(self._name, 0)  # whatever was there is no part of the log
            self._disk.truncate(self._name, self._size)
            self._is_made = True
            return
        size = min(_WRITE_BYTES, self._size - self._filled)
        self._disk.write(self._name, self._filled, [bytes(size)])
        self._filled += size

    def end(self) -> None:
        """Let the file be as it is: zeros to its end, written or not."""
        with self._mutex:
            self._is_ended = True

    def claim(self) -> bool:
        """End the filling; return whether the file is there, of its full size and without data."""
        with self._mutex:
            self._is_ended = True
            self._is_claimed = self._is_made
            return self._is_claimed

    def discard(self) -> None:
        """Remove the file, unless it was claimed; after that nothing writes to it.

        Raises:
            OSError: it is still there, or may come back: recovery cuts it off.
        """
        with self._mutex:
            self._is_ended = True
            if self._is_claimed:
                return
            self._is_made = False
            if not self._disk.exists(self._name):
                return
            self._disk.unlink(self._name)
        self._disk.sync_directory(COMMITLOG)
