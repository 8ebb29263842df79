"""Groups and topics that the broker keeps for itself: clients neither consume nor commit there.

    group CID_RMQ_SYS_...    its offsets say how far the broker has come with its own records
    WAITING_TOPICS           records that wait for a time or for the end of a transaction; tools
                             read them as group TOOLS_CONSUMER

Without these rules a client could end open transactions by moving the broker's progress, or
consume messages that are not committed. They are no access control: whoever may connect may also
read as TOOLS_CONSUMER. Java's broker has none of them.
"""

from __future__ import annotations

from kourou.errors import NoPermissionError
from kourou.model.topic import TOOLS_GROUP, WAITING_TOPICS, is_system_group
from kourou.protocol.codes import ResponseCode
from kourou.protocol.message_layout import read_record


def why_reserved(group: str, topic: str) -> str | None:
    """Return why clients may not consume the topic as this group; None if they may."""
    if is_system_group(group):
        return f"group {group} is the broker's own: choose a name that does not begin so"
    if topic in WAITING_TOPICS and group != TOOLS_GROUP:
        return (
            f"topic {topic} holds what the broker delivers later: consume the topics that messages "
            f"are sent to; tools read it as group {TOOLS_GROUP}"
        )
    return None


def check_not_reserved(group: str, topic: str = "") -> None:
    """Refuse to change where the group stands in the topic.

    Raises:
        NoPermissionError: one of both is the broker's own.
    """
    reason = why_reserved(group, topic)
    if reason is not None:
        raise NoPermissionError(ResponseCode.NO_PERMISSION, reason)


def check_delivered(topic: str, physical_offset: int) -> None:
    """Refuse to give a message of this topic to consumers, by its place in the log.

    Raises:
        NoPermissionError: the message waits, and may never be delivered.
    """
    if topic in WAITING_TOPICS:
        raise NoPermissionError(
            ResponseCode.NO_PERMISSION,
            f"the message at byte {physical_offset} of the log is not delivered yet: it waits in "
            f"topic {topic}",
        )


def topic_of(record: bytes) -> str:
    """Return the topic of a record of the log.

    Raises:
        MalformedMessageError: it is none.
    """
    return read_record(record, check_crc=False).topic
