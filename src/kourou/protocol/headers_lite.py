"""Headers for lite topics: codes 200070, 200071, 200073 and 200075 to 200079.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long
from kourou.protocol.headers_send import RpcHeader


@dataclass(slots=True)
class PopLiteMessageRequestHeader(RpcHeader):
    """POP_LITE_MESSAGE (200070): pop from the lite topics to which the client subscribed.

    Attributes:
        topic: the parent topic.
        invisible_time: in milliseconds.
        poll_time: longest time to hold the request, in milliseconds from `born_time`.
        born_time: in epoch milliseconds.
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
    """Like `PopMessageResponseHeader`, without the number of remaining messages."""

    pop_time: Long
    invisible_time: Long
    revive_qid: Int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True)
class LiteSubscriptionCtlRequestHeader(RpcHeader):
    """LITE_SUBSCRIPTION_CTL (200071); the subscriptions are in the body."""


@dataclass(slots=True)
class NotifyUnsubscribeLiteRequestHeader(RpcHeader):
    """NOTIFY_UNSUBSCRIBE_LITE (200073), broker to client, one-way: another client subscribed."""

    lite_topic: str
    consumer_group: str
    client_id: str


@dataclass(slots=True)
class GetParentTopicInfoRequestHeader:
    """GET_PARENT_TOPIC_INFO (200075); has a response body."""

    topic: str


@dataclass(slots=True)
class GetLiteTopicInfoRequestHeader:
    """GET_LITE_TOPIC_INFO (200076); has a response body."""

    parent_topic: str | None = None
    lite_topic: str | None = None


@dataclass(slots=True)
class GetLiteClientInfoRequestHeader:
    """GET_LITE_CLIENT_INFO (200077): up to `max_count` topics of a client; has a response body."""

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    max_count: Int = 1000


@dataclass(slots=True)
class GetLiteGroupInfoRequestHeader:
    """GET_LITE_GROUP_INFO (200078): lag in one lite topic, or the `top_k` largest lags.

    It has a response body.

    Attributes:
        lite_topic: empty or None for all lite topics.
    """

    group: str
    lite_topic: str | None = None
    top_k: Int = 0


@dataclass(slots=True)
class TriggerLiteDispatchRequestHeader:
    """TRIGGER_LITE_DISPATCH (200079): check again for messages for a group's clients."""

    group: str
    client_id: str | None = None
