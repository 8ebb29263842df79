"""SendReceipt: what a producer knows of a message once its broker answered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

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
    """

    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    durability: Durability
    status: SendStatus = SendStatus.SEND_OK
