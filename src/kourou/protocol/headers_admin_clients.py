"""Headers for the administration of clients: codes 203, 204, 300, 307, 309, 328, 343 and 345.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kourou.protocol.fields import Int
from kourou.protocol.headers_send import RpcHeader, TopicHeader


@dataclass(slots=True)
class GetConsumerConnectionListRequestHeader(RpcHeader):
    """GET_CONSUMER_CONNECTION_LIST (203): a group's connected members; has a response body."""

    consumer_group: str


@dataclass(slots=True)
class GetProducerConnectionListRequestHeader(RpcHeader):
    """GET_PRODUCER_CONNECTION_LIST (204): a group's connected producers; has a response body."""

    producer_group: str


@dataclass(slots=True)
class GetAllProducerInfoRequestHeader:
    """GET_ALL_PRODUCER_INFO (328): all producers of the broker; has a response body."""


@dataclass(slots=True)
class QueryTopicConsumeByWhoRequestHeader(TopicHeader):
    """QUERY_TOPIC_CONSUME_BY_WHO (300): the groups that consume a topic; has a response body."""

    topic: str


@dataclass(slots=True)
class GetConsumerRunningInfoRequestHeader(RpcHeader):
    """GET_CONSUMER_RUNNING_INFO (307), relayed by the broker to the client; has a response body.

    Attributes:
        jstack_enable: the response includes the stacks of the client's threads.
    """

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(slots=True)
class ConsumeMessageDirectlyResultRequestHeader(TopicHeader):
    """CONSUME_MESSAGE_DIRECTLY (309): a client's listener consumes one message.

    It has a response body. When the broker relays the request to the client, it sets the last three
    fields and adds the message as the body.

    Attributes:
        msg_id: the offset message id.
        message_broker_name: the broker that stores the message; `brokerName` on the wire.
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
    """QUERY_TOPICS_BY_CONSUMER (343): the topics that a group consumes; has a response body."""

    group: str


@dataclass(slots=True)
class QuerySubscriptionByConsumerRequestHeader(TopicHeader):
    """QUERY_SUBSCRIPTION_BY_CONSUMER (345): a group's subscription; has a response body."""

    group: str
    topic: str | None = None
