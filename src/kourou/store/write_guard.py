"""Write guard: refuses writes to a store that is closed, read-only or short of space.

The fast path reads `may_write`, a plain attribute, and determines the reason only when it is False.
"""

from __future__ import annotations

import logging

from kourou.disk import Disk
from kourou.errors import ClosedError, StoreFullError, StoreReadOnlyError

log = logging.getLogger(__name__)

_CHECK_BYTES = 16 * 1024 * 1024


class WriteGuard:
    """Tracks the reasons for which a store refuses writes.

    Attributes:
        may_write: whether the store accepts writes.
        read_only_reason: the failure since which the store is read-only until it is reopened; None
            if it is not.
    """

    def __init__(self, disk: Disk, free_bytes_needed: int) -> None:
        self._disk = disk
        self._needed = free_bytes_needed
        self._free = 0
        self._is_full = False
        self._are_queues_stuck = False
        self._is_closed = False
        self._unchecked_bytes = 0
        self.read_only_reason: str | None = None
        self.may_write = True

    def check(self) -> None:
        """Raise if the store refuses writes; a full disk is checked again first.

        Raises:
            ClosedError: the store is closed.
            StoreReadOnlyError: a write or a sync failed.
            StoreFullError: too little space is left.
        """
        if self._is_closed:
            raise ClosedError(f"the store {self._disk.root} is closed")
        if self.read_only_reason is not None:
            raise StoreReadOnlyError(
                f"{self._disk.root} is read-only: {self.read_only_reason}; repair the disk and "
                "start again; reads still work"
            )
        if not self.may_write:
            self.check_space()
            if not self.may_write:
                raise self.full_error()

    def check_space(self) -> None:
        """Check the free space of the file system."""
        self._unchecked_bytes = 0
        self._free = self._disk.free_bytes()
        is_full = self._free < self._needed
        if is_full and not self._is_full:
            log.error("store.filled free_bytes=%d needed_bytes=%d", self._free, self._needed)
        elif self._is_full and not is_full:
            log.info("store.emptied free_bytes=%d needed_bytes=%d", self._free, self._needed)
        self._is_full = is_full
        self._update()

    def count_written(self, size: int) -> None:
        """Count bytes written; check the free space after every 16 MiB."""
        self._unchecked_bytes += size
        if self._unchecked_bytes >= _CHECK_BYTES:
            self.check_space()

    def queues_flushed(self, error: OSError | None) -> None:
        """Record the result of a flush; after an error refuse writes until a flush succeeds.

        Entries that cannot be written accumulate in memory.
        """
        if error is not None and not self._are_queues_stuck:
            log.error("consumequeue.write_failed path=%s error=%s", self._disk.root, error)
        self._are_queues_stuck = error is not None
        self._update()

    def full_error(self) -> StoreFullError:
        return StoreFullError(self._disk.root, self._free, self._needed)

    def set_read_only(self, reason: str) -> None:
        """Refuse writes until the store is reopened; only the first reason is kept."""
        if self.read_only_reason is None:
            log.error("store.became_read_only path=%s reason=%s", self._disk.root, reason)
            self.read_only_reason = reason
        self._update()

    def close(self) -> None:
        """Refuse writes from now on: the store is closed."""
        self._is_closed = True
        self._update()

    def _update(self) -> None:
        self.may_write = not (
            self._is_closed
            or self._is_full
            or self._are_queues_stuck
            or self.read_only_reason is not None
        )
