"""SendReceipt: what a producer knows of a message once its broker answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from typing import Final, cast

from kourou.model.queue import MessageQueue


class Durability(StrEnum):
    """What a message survives, as far as the broker said so.

    Kourou's brokers say it. RocketMQ's answer does not tell how the broker flushes, so from a Java
    broker it is UNKNOWN: DISK if that runs with flushDiskType=SYNC_FLUSH, else MEMORY.
    """

    DISK = "DISK"
    """Synced to the broker's disk: it survives the death of process and machine."""
    MEMORY = "MEMORY"
    """Handed to the operating system: it survives the process, not the machine."""
    REPLICATED = "REPLICATED"
    """Held by a replica too."""
    UNKNOWN = "UNKNOWN"
    """Stored; the broker does not tell how."""


class SendStatus(IntEnum):
    """The response codes with which a broker has stored the message."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    """Stored; the sync did not end in time and may still succeed."""
    SLAVE_NOT_AVAILABLE = 11
    """Stored; there is no replica, or it is too far behind."""
    FLUSH_SLAVE_TIMEOUT = 12
    """Stored; the replica did not confirm in time."""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Where a message is stored, and what that is worth.

    Attributes:
        msg_id: the unique id that the producer gave it; consumers see the same.
        offset_msg_id: the id that says where it is stored.
        queue: its queue.
        queue_offset: its place in the queue.
        durability: what it survives.
        status: SEND_OK, or what the broker could not complete.
        recall_handle: of a message with a time of its own, what `Producer.recall` takes it back by.
    """

    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    durability: Durability
    status: SendStatus = SendStatus.SEND_OK
    recall_handle: str | None = None


class _StoredReceipt:
    """A receipt while it is made.

    Setting the fields of what is not frozen yet, and then making it a `SendReceipt`, takes a third
    of the time of the constructor, which a producer has for each message.
    """

    __slots__ = tuple(one.name for one in fields(SendReceipt))

    def __init__(
        self,
        msg_id: str,
        offset_msg_id: str,
        queue: MessageQueue,
        queue_offset: int,
        durability: Durability,
    ) -> None:
        self.msg_id = msg_id
        self.offset_msg_id = offset_msg_id
        self.queue = queue
        self.queue_offset = queue_offset
        self.durability = durability
        self.status = _SEND_OK
        self.recall_handle = None
        self.__class__ = SendReceipt  # type: ignore[assignment]  # of the same slots


_SEND_OK: Final = SendStatus.SEND_OK


stored_receipt: Final = cast(
    "Callable[[str, str, MessageQueue, int, Durability], SendReceipt]", _StoredReceipt
)
"""Returns the receipt of a message that a broker has stored without any reservation: its fields are
those of `SendReceipt` but for the last two."""
