"""Groups and topics reserved for the broker: clients may neither consume nor commit offsets there.

    group CID_RMQ_SYS_...    its offsets are the broker's progress in its own records
    PENDING_TOPICS           records that wait for a time or for the end of a transaction; tools
                             read them as group TOOLS_CONSUMER

Without these rules a client could end open transactions by moving the broker's progress, or
consume messages that are not committed. The rules are no access control: any client that can
connect can also read as TOOLS_CONSUMER. Java's broker has no such rules.
"""

from __future__ import annotations

from kourou.errors import NoPermissionError
from kourou.model.topic import PENDING_TOPICS, TOOLS_GROUP, is_system_group
from kourou.protocol.codes import ResponseCode
from kourou.protocol.record.read import read_record


def reserved_reason(group: str, topic: str) -> str | None:
    """Return why clients may not consume the topic as this group; None if they may."""
    if is_system_group(group):
        return f"group {group} is reserved for the broker: choose a name without its prefix"
    if topic in PENDING_TOPICS and group != TOOLS_GROUP:
        return (
            f"topic {topic} holds messages that the broker delivers later: consume the topics that "
            f"they are sent to; tools read it as group {TOOLS_GROUP}"
        )
    return None


def check_not_reserved(group: str, topic: str = "") -> None:
    """Check that clients may change the group's offsets in the topic.

    Raises:
        NoPermissionError: the group or the topic is reserved.
    """
    reason = reserved_reason(group, topic)
    if reason is not None:
        raise NoPermissionError(ResponseCode.NO_PERMISSION, reason)


def check_delivered(topic: str, physical_offset: int) -> None:
    """Check that a message of this topic may be read by its physical offset.

    Raises:
        NoPermissionError: the topic is one of `PENDING_TOPICS`: the message is not delivered yet,
            and may never be.
    """
    if topic in PENDING_TOPICS:
        raise NoPermissionError(
            ResponseCode.NO_PERMISSION,
            f"the message at byte {physical_offset} of the log is not delivered yet: it waits in "
            f"topic {topic}",
        )


def topic_of(record: bytes) -> str:
    """Return the topic of a record of the log.

    Raises:
        MalformedMessageError: the bytes are no record.
    """
    return read_record(record, check_crc=False).topic
