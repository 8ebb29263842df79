"""One put on its way through the group commit: its result, who waits for it, what bounds them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from kourou.broker.config import BrokerConfig
from kourou.protocol.codes import ResponseCode
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
    TOPIC_REFUSED = auto()
    """Nothing stored: the topic is being deleted, or its deletion failed. Others are taken."""
    SERVICE_NOT_AVAILABLE = auto()
    """Not acknowledged, and never will be: the store takes no writes, or a write or sync failed.
    After a failed sync, a restart may find the message or not."""


_SETTLED: Final = frozenset({PutStatus.OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.MESSAGE_ILLEGAL})

CODES: Final = {
    PutStatus.OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.TOPIC_REFUSED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}
"""What clients are answered."""


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

    @property
    def is_settled(self) -> bool:
        """Whether trying again would change nothing: it is stored, or never can be."""
        return self.status in _SETTLED


Done = Callable[[PutResult], None]


class Waiting(Protocol):
    """Records that were taken and are not safe yet, and who is told what becomes of them.

    Attributes:
        shares: how many bytes count against the limit of which owner: a producer's connection.
            What the broker itself stores has none.
        waits_for_sync: `stored` only when they are synced, else when they are written.
        deadline_s: loop time at which FLUSH_DISK_TIMEOUT is told.
        puts: how many puts they are.
        size: bytes of all records.
        end: the log position just behind the last one.
    """

    @property
    def shares(self) -> Sequence[tuple[Hashable, int]]: ...

    @property
    def waits_for_sync(self) -> bool: ...

    @property
    def deadline_s(self) -> float: ...

    @property
    def puts(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def end(self) -> int: ...

    def stored(self) -> None:
        """They are as durable as promised. Of these three, only the first call counts."""

    def late(self, reason: str) -> None:
        """They are in the log, but the sync did not end in time."""

    def answer(self, result: PutResult) -> None:
        """They are not acknowledged."""


@dataclass(slots=True, eq=False)
class WaitingPut:
    """One put; see `Waiting`."""

    done: Done | None
    """None once it was called."""
    owner: Hashable | None
    waits_for_sync: bool
    deadline_s: float
    appended: Sequence[Appended] = ()
    size: int = 0
    puts: int = 1

    @property
    def shares(self) -> Sequence[tuple[Hashable, int]]:
        """All of it is its owner's."""
        return () if self.owner is None else ((self.owner, self.size),)

    @property
    def end(self) -> int:
        """The log position just behind its last record."""
        return self.appended[-1].end

    def stored(self) -> None:
        """Call `done` with OK, unless it was called before."""
        if self.done is not None:
            self.answer(PutResult(PutStatus.OK, self.appended))

    def late(self, reason: str) -> None:
        """Call `done` with FLUSH_DISK_TIMEOUT, unless it was called before."""
        self.answer(PutResult(PutStatus.FLUSH_DISK_TIMEOUT, self.appended, reason))

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

    def add(self, puts: Waiting) -> None:
        self.size += puts.size
        self._count += puts.puts
        by_owner = self._by_owner
        for owner, size in puts.shares:
            by_owner[owner] = by_owner.get(owner, 0) + size

    def remove(self, puts: Waiting) -> None:
        self.size -= puts.size
        self._count -= puts.puts
        by_owner = self._by_owner
        for owner, size in puts.shares:
            left = by_owner[owner] - size
            if left:
                by_owner[owner] = left
            else:
                del by_owner[owner]

    def has_room(self, owner: Hashable, size: int, puts: int) -> bool:
        """Tell whether so many more puts of the owner are allowed, of `size` bytes together."""
        config = self._config
        return (
            self._count + puts <= config.pending_requests_max
            and self.size + size <= config.pending_bytes_max
            and self._by_owner.get(owner, 0) + size <= config.pending_connection_bytes_max
        )

    def has_room_for_any(self, size: int, puts: int) -> bool:
        """Tell whether so many more puts are allowed, whoever owns which of them.

        False near a limit also for some that are: nobody is taken to own more than there is.
        """
        config, total = self._config, self.size + size
        return (
            self._count + puts <= config.pending_requests_max
            and total <= config.pending_bytes_max
            and total <= config.pending_connection_bytes_max
        )

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
