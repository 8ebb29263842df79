"""Puts in the group commit: results, pending puts, and their limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from kourou.broker.config import BrokerConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.record.encode import RecordDraft
from kourou.store.message_store import AppendedRecord

log = logging.getLogger(__name__)


class PutStatus(Enum):
    """Result of a put for its messages."""

    OK = auto()
    """Stored, as durably as the flush mode promises."""
    FLUSH_DISK_TIMEOUT = auto()
    """Written to the log, but the sync did not end in time; it may still succeed."""
    FLUSH_SLAVE_TIMEOUT = auto()
    """Stored here, but not on as many slaves as configured in time; they may still copy it."""
    IN_SYNC_REPLICAS_NOT_ENOUGH = auto()
    """Nothing stored: fewer replicas than `minInSyncReplicas` are in sync."""
    BUSY = auto()
    """Nothing stored: a limit of pending bytes or puts is reached."""
    MESSAGE_ILLEGAL = auto()
    """Nothing stored: the record would exceed a limit of the layout."""
    TOPIC_REFUSED = auto()
    """Nothing stored: the topic is being deleted, or its deletion failed. Other topics are not
    affected."""
    SERVICE_NOT_AVAILABLE = auto()
    """Not acknowledged: the store refuses writes, or a write or sync failed. After a failed sync, a
    restart may or may not recover the message."""


_SETTLED: Final = frozenset(
    {
        PutStatus.OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.MESSAGE_ILLEGAL,
    }
)

CODES: Final = {
    PutStatus.OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    PutStatus.BUSY: ResponseCode.SYSTEM_BUSY,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.TOPIC_REFUSED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
}
"""Response code for each status."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """Result of a put.

    Attributes:
        status: whether the messages are stored.
        appended: position and queue offset of each message, in order; empty unless the status is
            OK, FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT.
        reason: the reason of any status other than OK; empty for OK.
    """

    status: PutStatus
    appended: Sequence[AppendedRecord] = ()
    reason: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether a retry would be useless: the messages are stored, or can never be."""
        return self.status in _SETTLED


Done = Callable[[PutResult], None]


class Puts(Protocol):
    """Stores messages that the broker delivers: in its log, or at other brokers."""

    def put(
        self, drafts: Sequence[RecordDraft], now_ms: int, done: Done, *, answers_late: bool = True
    ) -> None:
        """Store messages; see `GroupCommit.put`."""


DeliveryQueue = Callable[[str, int], int | None]
"""Returns the queue for a message that is due, by its topic and queue; see `Topics`."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The place to which messages that are due go.

    Attributes:
        puts: stores them.
        delivery_queue: finds their queues.
    """

    puts: Puts
    delivery_queue: DeliveryQueue


class Waiter(Protocol):
    """One or more puts whose records are appended and not stored yet, and their callbacks.

    Attributes:
        owner_sizes: pairs of owner and bytes that count against the owner's limit. An owner is a
            producer's connection; records that the broker itself stores have none.
        waits_for_sync: whether `stored` is called when the records are synced, else when they are
            written.
        waits_for_copies: whether it is then called only when enough slaves have the records, or
            `late`, if the broker is configured so. In controller mode, records of the broker itself
            wait for that as well, without a time-out.
        deadline_s: loop time at which `late` is called.
        puts: number of puts.
        size: bytes of all records.
        end: the log position just after the last record.
    """

    @property
    def owner_sizes(self) -> Sequence[tuple[Hashable, int]]: ...

    @property
    def waits_for_sync(self) -> bool: ...

    @property
    def waits_for_copies(self) -> bool: ...

    @property
    def deadline_s(self) -> float: ...

    @property
    def puts(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def end(self) -> int: ...

    def stored(self) -> None:
        """Report that the records are stored. Of these three calls only the first has an effect."""

    def late(self, status: PutStatus, reason: str) -> None:
        """Report that the records are written, but not synced, or not copied, in time."""

    def answer(self, result: PutResult) -> None:
        """Report that the records are refused, with `result`."""


@dataclass(slots=True, eq=False)
class PutWaiter:
    """One put; see `Waiter`."""

    done: Done | None
    """None after it was called."""
    owner: Hashable | None
    waits_for_sync: bool
    deadline_s: float
    answers_late: bool = True
    """Whether a late sync is reported; if not, its end is."""
    waits_for_copies: bool = False
    appended: Sequence[AppendedRecord] = ()
    size: int = 0
    puts: int = 1

    @property
    def owner_sizes(self) -> Sequence[tuple[Hashable, int]]:
        """All bytes count against its owner."""
        return () if self.owner is None else ((self.owner, self.size),)

    @property
    def end(self) -> int:
        """The log position just after its last record."""
        return self.appended[-1].end

    def stored(self) -> None:
        """Call `done` with OK, unless it was called before."""
        if self.done is not None:
            self.answer(PutResult(PutStatus.OK, self.appended))

    def late(self, status: PutStatus, reason: str) -> None:
        """Call `done` with the status, unless it was called or waits for the sync's end."""
        if self.answers_late:
            self.answer(PutResult(status, self.appended, reason))

    def answer(self, result: PutResult) -> None:
        """Call `done`, unless it was called before."""
        done, self.done = self.done, None
        if done is None:
            return
        try:
            done(result)
        except Exception:  # must not prevent the replies to other producers
            log.exception("put.reply_failed")


class PendingPuts:
    """Counts pending puts and their bytes, in total and by owner."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._count = 0
        self._by_owner: dict[Hashable, int] = {}
        self.size = 0
        """Bytes of all pending puts."""

    def __len__(self) -> int:
        return self._count

    def add(self, puts: Waiter) -> None:
        self.size += puts.size
        self._count += puts.puts
        by_owner = self._by_owner
        for owner, size in puts.owner_sizes:
            by_owner[owner] = by_owner.get(owner, 0) + size

    def remove(self, puts: Waiter) -> None:
        self.size -= puts.size
        self._count -= puts.puts
        by_owner = self._by_owner
        for owner, size in puts.owner_sizes:
            left = by_owner[owner] - size
            if left:
                by_owner[owner] = left
            else:
                del by_owner[owner]

    def has_room(self, owner: Hashable, size: int, puts: int) -> bool:
        """Return whether `puts` more puts of the owner, of `size` bytes in total, are allowed."""
        config = self._config
        return (
            self._count + puts <= config.pending_requests_max
            and self.size + size <= config.pending_bytes_max
            and self._by_owner.get(owner, 0) + size <= config.pending_connection_bytes_max
        )

    def has_room_for_any(self, size: int, puts: int) -> bool:
        """Return whether these puts are allowed whatever their owners.

        The limit per owner is compared with the bytes of all owners. So the result may be False
        although `has_room` would be True.
        """
        config, total = self._config, self.size + size
        return (
            self._count + puts <= config.pending_requests_max
            and total <= config.pending_bytes_max
            and total <= config.pending_connection_bytes_max
        )

    def limit_reached(self, size: int, owner: Hashable | None) -> str:
        """Return the reason if `size` more bytes of `owner` exceed a limit; empty if not."""
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
