"""SendReceipt: the result of a send, from the broker's answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from typing import Final, cast

from kourou.model.queue import MessageQueue


class Durability(StrEnum):
    """Failures that a stored message survives, as reported by the broker.

    Kourou's brokers report it. The answer of RocketMQ's brokers does not contain the flush mode, so
    their value is UNKNOWN: in fact DISK with flushDiskType=SYNC_FLUSH, else MEMORY.
    """

    DISK = "DISK"
    """Synced to the broker's disk: survives a crash of the process and of the machine."""
    MEMORY = "MEMORY"
    """Written to the operating system: survives a crash of the process, but not of the machine."""
    REPLICATED = "REPLICATED"
    """Stored by every member of the in-sync set, at least two: no failover loses it."""
    UNKNOWN = "UNKNOWN"
    """Stored; the broker does not report the durability."""


class SendStatus(IntEnum):
    """Response codes of answers to a send whose message is stored."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    """Stored; the sync did not end in time and may still succeed."""
    SLAVE_NOT_AVAILABLE = 11
    """Stored; there is no replica, or it lags too far behind."""
    FLUSH_SLAVE_TIMEOUT = 12
    """Stored; the replica did not confirm in time."""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Result of a send: where the message is stored, and how durably.

    Attributes:
        msg_id: the unique id set by the producer; consumers see the same id.
        offset_msg_id: the id that contains the broker's address and the position in its log.
        queue: the queue that has the message.
        queue_offset: the message's offset in the queue.
        durability: the failures that the message survives.
        status: SEND_OK, or the step that the broker could not complete.
        recall_handle: identifies a scheduled message for `Producer.recall`; None for others.
        copies: number of brokers that have the message, if it is REPLICATED; else None.
    """

    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    durability: Durability
    status: SendStatus = SendStatus.SEND_OK
    recall_handle: str | None = None
    copies: int | None = None


class _StoredReceipt:
    """A receipt under construction.

    Setting fields of a class that is not frozen and then changing the class to `SendReceipt` takes
    a third of the time of that constructor. A producer spends this time for each message.
    """

    __slots__ = tuple(one.name for one in fields(SendReceipt))

    def __init__(
        self,
        msg_id: str,
        offset_msg_id: str,
        queue: MessageQueue,
        queue_offset: int,
        durability: Durability,
        copies: int | None = None,
    ) -> None:
        self.msg_id = msg_id
        self.offset_msg_id = offset_msg_id
        self.queue = queue
        self.queue_offset = queue_offset
        self.durability = durability
        self.status = _SEND_OK
        self.recall_handle = None
        self.copies = copies
        self.__class__ = SendReceipt  # type: ignore[assignment]  # it has the same slots


_SEND_OK: Final = SendStatus.SEND_OK


stored_receipt: Final = cast(
    "Callable[[str, str, MessageQueue, int, Durability, int | None], SendReceipt]", _StoredReceipt
)
"""Returns the receipt of a send with status SEND_OK and no recall handle; the arguments are the
other fields of `SendReceipt`, in their order."""

COPIES: Final = {str(number): number for number in range(2, 256)}
"""Numbers of copies that an answer may name."""
