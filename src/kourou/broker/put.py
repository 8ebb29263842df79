"""One put on its way through the group commit: its result, who waits for it, what bounds them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from kourou.broker.config import BrokerConfig
from kourou.store.message_store import Appended

log = logging.getLogger(__name__)


class PutStatus(Enum):
    """What became of the messages of one put."""

    OK = auto()
    """Stored, as durably as the flush mode says."""
    FLUSH_DISK_TIMEOUT = auto()
    """Stored in the log, but the sync did not end in time; it may still succeed."""
    BUSY = auto()
    """Nothing stored: as many bytes or messages as allowed are waiting already."""
    MESSAGE_ILLEGAL = auto()
    """Nothing stored: the record would break a limit of the layout."""
    SERVICE_NOT_AVAILABLE = auto()
    """Not acknowledged, and never will be: the store takes no writes, or a write or sync failed.
    After a failed sync, a restart may find the message or not."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """What a put reports.

    Attributes:
        appended: a place for each message, in order; empty unless the status is OK or
            FLUSH_DISK_TIMEOUT.
        reason: why it was refused; empty when it was not.
    """

    status: PutStatus
    appended: Sequence[Appended] = ()
    reason: str = ""


Done = Callable[[PutResult], None]


@dataclass(slots=True, eq=False)
class WaitingPut:
    """One put that was taken and is not safe yet."""

    done: Done | None
    """None once it was called."""
    owner: Hashable | None
    """The producer's connection; None for what the broker itself stores."""
    waits_for_sync: bool
    deadline_s: float
    """Loop time at which it is answered FLUSH_DISK_TIMEOUT."""
    appended: Sequence[Appended] = ()
    size: int = 0
    """Bytes of all its records."""

    @property
    def end(self) -> int:
        """The log position just behind its last record."""
        return self.appended[-1].end

    def answer(self, result: PutResult) -> None:
        """Call `done`, unless it was called before."""
        done, self.done = self.done, None
        if done is None:
            return
        try:
            done(result)
        except Exception:  # one producer's reply must not keep the others from theirs
            log.exception("put.reply_failed")


class PendingPuts:
    """Counts what was appended and is not safe yet, in all and by owner."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._count = 0
        self._by_owner: dict[Hashable, int] = {}
        self.size = 0
        """Bytes of all of them."""

    def __len__(self) -> int:
        return self._count

    def add(self, put: WaitingPut) -> None:
        self.size += put.size
        self._count += 1
        if put.owner is not None:
            self._by_owner[put.owner] = self._by_owner.get(put.owner, 0) + put.size

    def remove(self, put: WaitingPut) -> None:
        self.size -= put.size
        self._count -= 1
        if put.owner is None:
            return
        self._by_owner[put.owner] -= put.size
        if not self._by_owner[put.owner]:
            del self._by_owner[put.owner]

    def limit_reached(self, size: int, owner: Hashable | None) -> str:
        """Return which limit `size` more bytes of `owner` would break; empty if none."""
        config = self._config
        owned = self._by_owner.get(owner, 0)
        if self._count >= config.pending_requests_max:
            return f"{self._count} sends wait for the disk, limit {config.pending_requests_max}"
        if self.size + size > config.pending_bytes_max:
            return f"{self.size} bytes wait for the disk, limit {config.pending_bytes_max}"
        if owned + size > config.pending_connection_bytes_max and owner is not None:
            return (
                f"{owned} bytes of this connection wait for the disk, limit "
                f"{config.pending_connection_bytes_max}"
            )
        return ""
