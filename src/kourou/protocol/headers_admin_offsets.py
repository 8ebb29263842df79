"""Headers of administration of offsets: codes 220 to 223, 303, 308 and 314.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long
from kourou.protocol.headers_send import RpcHeader, TopicHeader


@dataclass(slots=True)
class ResetOffsetRequestHeader(TopicHeader):
    """INVOKE_BROKER_TO_RESET_OFFSET (222), and RESET_CONSUMER_CLIENT_OFFSET (220) to clients.

    Attributes:
        timestamp: epoch milliseconds of the message to go on with; negative, the end of the queue.
        queue_id: negative for all queues.
        offset: with a queue, the queue offset to go on with; it takes the place of the time.
        is_force: also where the group would go forward.
    """

    topic: str
    group: str
    timestamp: Long
    is_force: bool
    queue_id: Int = -1
    offset: Long | None = None


@dataclass(slots=True)
class GetConsumerStatusRequestHeader(TopicHeader):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), and 221 to clients; a body answers.

    Attributes:
        client_addr: a client id, despite its name; empty or None asks all clients of the group.
    """

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(slots=True)
class CloneGroupOffsetRequestHeader(RpcHeader):
    """CLONE_GROUP_OFFSET (314): give one group the offsets of another.

    Attributes:
        topic: None for all topics of the source.
        offline: carried, without effect.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@dataclass(slots=True)
class QueryCorrectionOffsetHeader(TopicHeader):
    """QUERY_CORRECTION_OFFSET (308): the least offset of a topic's groups; a body answers.

    Attributes:
        compare_group: queues where this group is not behind are left out.
        filter_groups: groups that do not count, joined by commas.
    """

    topic: str
    compare_group: str
    filter_groups: str | None = None


@dataclass(slots=True)
class QueryConsumeTimeSpanRequestHeader(TopicHeader):
    """QUERY_CONSUME_TIME_SPAN (303): how old each queue is and a group in it; a body answers."""

    topic: str
    group: str
