"""Whether the store takes writes: closed, read-only after a failure, or short of space.

The fast path asks `may_write`, a plain attribute; the reason is looked for only when it is False.
"""

from __future__ import annotations

import logging

from kourou.disk import Disk
from kourou.errors import ClosedError, StoreFullError, StoreReadOnlyError

log = logging.getLogger(__name__)

_CHECK_BYTES = 16 * 1024 * 1024


class WriteGuard:
    """Keeps the reasons against writing.

    Attributes:
        may_write: no reason is known.
        read_only_reason: why the store takes no write until it is opened anew; None if it does.
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
        """Raise if there is a reason against writing; a full disk is looked at again.

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
                "start again; reads go on"
            )
        if not self.may_write:
            self.look_at_space()
            if not self.may_write:
                raise self.full_error()

    def look_at_space(self) -> None:
        """Ask how much space is left."""
        self._unchecked_bytes = 0
        self._free = self._disk.free_bytes()
        is_full = self._free < self._needed
        if is_full and not self._is_full:
            log.error("store.filled free_bytes=%d needed_bytes=%d", self._free, self._needed)
        elif self._is_full and not is_full:
            log.info("store.emptied free_bytes=%d needed_bytes=%d", self._free, self._needed)
        self._is_full = is_full
        self._update()

    def wrote(self, size: int) -> None:
        """Note bytes written, so that space is looked at once in a while."""
        self._unchecked_bytes += size
        if self._unchecked_bytes >= _CHECK_BYTES:
            self.look_at_space()

    def queues_flushed(self, error: OSError | None) -> None:
        """Take no more writes while the queues' entries do not fit on the disk: they pile up."""
        if error is not None and not self._are_queues_stuck:
            log.error("consumequeue.write_failed path=%s error=%s", self._disk.root, error)
        self._are_queues_stuck = error is not None
        self._update()

    def full_error(self) -> StoreFullError:
        return StoreFullError(self._disk.root, self._free, self._needed)

    def set_read_only(self, reason: str) -> None:
        """Take no more writes until the store is opened anew; the first reason stays."""
        if self.read_only_reason is None:
            log.error("store.became_read_only path=%s reason=%s", self._disk.root, reason)
            self.read_only_reason = reason
        self._update()

    def close(self) -> None:
        """Take no more writes: the store is closed."""
        self._is_closed = True
        self._update()

    def _update(self) -> None:
        self.may_write = not (
            self._is_closed
            or self._is_full
            or self._are_queues_stuck
            or self.read_only_reason is not None
        )
