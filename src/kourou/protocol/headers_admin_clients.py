"""Headers of administration around clients: codes 203, 204, 300, 307, 309, 328, 343 and 345.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kourou.protocol.fields import Int
from kourou.protocol.headers_send import RpcHeader, TopicHeader


@dataclass(slots=True)
class GetConsumerConnectionListRequestHeader(RpcHeader):
    """GET_CONSUMER_CONNECTION_LIST (203): who of a group is connected; a body answers."""

    consumer_group: str


@dataclass(slots=True)
class GetProducerConnectionListRequestHeader(RpcHeader):
    """GET_PRODUCER_CONNECTION_LIST (204): who sends for a group; a body answers."""

    producer_group: str


@dataclass(slots=True)
class GetAllProducerInfoRequestHeader:
    """GET_ALL_PRODUCER_INFO (328): all producers of the broker; a body answers."""


@dataclass(slots=True)
class QueryTopicConsumeByWhoRequestHeader(TopicHeader):
    """QUERY_TOPIC_CONSUME_BY_WHO (300): the groups that consume a topic; a body answers."""

    topic: str


@dataclass(slots=True)
class GetConsumerRunningInfoRequestHeader(RpcHeader):
    """GET_CONSUMER_RUNNING_INFO (307), to the broker and on to the client; a body answers.

    Attributes:
        jstack_enable: with the stacks of the client's threads.
    """

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(slots=True)
class ConsumeMessageDirectlyResultRequestHeader(TopicHeader):
    """CONSUME_MESSAGE_DIRECTLY (309): hand one message to a client's listener; a body answers.

    The broker adds the last three, and the message as the request's body, when it passes the
    request on.

    Attributes:
        msg_id: the offset message id.
        message_broker_name: `brokerName` on the wire: where the message is stored.
    """

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    topic: str | None = None
    message_broker_name: str | None = field(default=None, metadata={"wire": "brokerName"})
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


@dataclass(slots=True)
class QueryTopicsByConsumerRequestHeader(RpcHeader):
    """QUERY_TOPICS_BY_CONSUMER (343): the topics that a group consumes; a body answers."""

    group: str


@dataclass(slots=True)
class QuerySubscriptionByConsumerRequestHeader(TopicHeader):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345): what of a topic a group consumes; a body answers."""

    group: str
    topic: str | None = None
