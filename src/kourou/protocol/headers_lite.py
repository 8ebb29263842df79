"""Headers of lite topics: codes 200070, 200071, 200073 and 200075 to 200079.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long
from kourou.protocol.headers_send import RpcHeader


@dataclass(slots=True)
class PopLiteMessageRequestHeader(RpcHeader):
    """POP_LITE_MESSAGE (200070): pop from the lite topics that the client subscribed to.

    Attributes:
        topic: the parent topic.
        invisible_time: milliseconds; `poll_time` too, from `born_time`, epoch milliseconds.
    """

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: Int
    invisible_time: Long
    poll_time: Long
    born_time: Long
    attempt_id: str | None = None


@dataclass(slots=True)
class PopLiteMessageResponseHeader:
    """As `PopMessageResponseHeader`, without how many messages are left."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True)
class LiteSubscriptionCtlRequestHeader(RpcHeader):
    """LITE_SUBSCRIPTION_CTL (200071): what counts is in the body."""


@dataclass(slots=True)
class NotifyUnsubscribeLiteRequestHeader(RpcHeader):
    """NOTIFY_UNSUBSCRIBE_LITE (200073), broker to client, one-way: another one has it now."""

    lite_topic: str
    consumer_group: str
    client_id: str


@dataclass(slots=True)
class GetParentTopicInfoRequestHeader:
    """GET_PARENT_TOPIC_INFO (200075); a body answers."""

    topic: str


@dataclass(slots=True)
class GetLiteTopicInfoRequestHeader:
    """GET_LITE_TOPIC_INFO (200076); a body answers."""

    parent_topic: str | None = None
    lite_topic: str | None = None


@dataclass(slots=True)
class GetLiteClientInfoRequestHeader:
    """GET_LITE_CLIENT_INFO (200077): at most `max_count` of a client's topics; a body answers."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    max_count: Int = 1000


@dataclass(slots=True)
class GetLiteGroupInfoRequestHeader:
    """GET_LITE_GROUP_INFO (200078): one lite topic, or the `top_k` farthest behind; a body answers.

    Attributes:
        lite_topic: empty or None for all.
    """

    group: str
    lite_topic: str | None = None
    top_k: Int = 0


@dataclass(slots=True)
class TriggerLiteDispatchRequestHeader:
    """TRIGGER_LITE_DISPATCH (200079): look again what a group's clients have to read."""

    group: str
    client_id: str | None = None
