"""Headers for the administration of offsets: codes 220 to 223, 303, 308 and 314.

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
        timestamp: store time of the message to continue with, in epoch milliseconds; a negative
            one stands for the end of the queue.
        queue_id: negative for all queues.
        offset: the queue offset to continue with; with a queue id, it overrides `timestamp`.
        is_force: reset also if the group would skip messages.
    """

    topic: str
    group: str
    timestamp: Long
    is_force: bool
    queue_id: Int = -1
    offset: Long | None = None


@dataclass(slots=True)
class GetConsumerStatusRequestHeader(TopicHeader):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), and 221 to clients; has a response body.

    Attributes:
        client_addr: a client id, despite its name; empty or None for all clients of the group.
    """

    topic: str
    group: str
    client_addr: str | None = None


@dataclass(slots=True)
class CloneGroupOffsetRequestHeader(RpcHeader):
    """CLONE_GROUP_OFFSET (314): copy the offsets of one group to another.

    Attributes:
        topic: None for all topics of the source group.
        offline: sent, without effect.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@dataclass(slots=True)
class QueryCorrectionOffsetHeader(TopicHeader):
    """QUERY_CORRECTION_OFFSET (308): the smallest offsets of a topic's groups; has a response body.

    Attributes:
        compare_group: queues in which this group is not behind are omitted.
        filter_groups: groups to ignore, joined by commas.
    """

    topic: str
    compare_group: str
    filter_groups: str | None = None


@dataclass(slots=True)
class QueryConsumeTimeSpanRequestHeader(TopicHeader):
    """QUERY_CONSUME_TIME_SPAN (303): ages of a topic's queues and of a group's progress in them.

    The response has a body.
    """

    topic: str
    group: str
