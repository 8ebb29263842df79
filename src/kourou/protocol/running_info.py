"""Requests that a broker relays to a consumer: its running info, and consuming one message.

Source: ConsumerRunningInfo.java, ProcessQueueInfo.java, PopProcessQueueInfo.java,
ConsumeStatus.java, ConsumeMessageDirectlyResult.java, CMResult.java, and the header classes of the
same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import RequestCode
from kourou.protocol.fields import Int, RpcHeader, TopicHeader
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import TEXTS, record_functions
from kourou.protocol.request_spec import MESSAGE_BYTES_MAX, MESSAGE_CODEC, BodyCodec, RequestSpec


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


class ConsumeResult(StrEnum):
    """Result of consuming one message; the values and their order are those of the wire."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo:
    """A consumer's process queue; offsets are queue offsets, times are in epoch milliseconds.

    Attributes:
        commit_offset: offset of the next message to consume.
        cached_msg_min_offset: smallest offset of the pulled, unconsumed messages; 0 without any.
        transaction_msg_count: messages that an ordered listener is handling.
        locked: the consumer holds the broker's lock on the queue.
        dropped: the queue was revoked.
    """

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(default=0, metadata={"wire": "cachedMsgSizeInMiB"})
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = field(default=False, metadata={"wire": "droped"})
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class PopProcessQueueInfo:
    """A pop consumer's state of one queue."""

    wait_ack_count: int = 0
    dropped: bool = field(default=False, metadata={"wire": "droped"})
    last_pop_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStatus:
    """Consumption of a topic over the last minutes: times in milliseconds, rates per second."""

    pull_rt: float = field(default=0.0, metadata={"wire": "pullRT"})
    pull_tps: float = field(default=0.0, metadata={"wire": "pullTPS"})
    consume_rt: float = field(default=0.0, metadata={"wire": "consumeRT"})
    consume_ok_tps: float = field(default=0.0, metadata={"wire": "consumeOKTPS"})
    consume_failed_tps: float = field(default=0.0, metadata={"wire": "consumeFailedTPS"})
    consume_failed_msgs: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo:
    """State of a running consumer.

    Attributes:
        properties: such as `PROP_CONSUME_TYPE`, and its configuration.
        subscriptions: sorted by topic and expression, like Java's set.
        statuses: by topic.
        user_info: values added by the program.
        jstack: the stacks of its threads, if requested.
    """

    properties: Mapping[str, str] = field(default_factory=dict, metadata={"codec": TEXTS})
    subscriptions: Sequence[SubscriptionData] = field(
        default=(), metadata={"wire": "subscriptionSet"}
    )
    queues: Mapping[MessageQueue, ProcessQueueInfo] = field(
        default_factory=dict, metadata={"wire": "mqTable"}
    )
    pop_queues: Mapping[MessageQueue, PopProcessQueueInfo] = field(
        default_factory=dict, metadata={"wire": "mqPopTable"}
    )
    statuses: Mapping[str, ConsumeStatus] = field(
        default_factory=dict, metadata={"wire": "statusTable"}
    )
    user_info: Mapping[str, str] = field(
        default_factory=dict, metadata={"wire": "userConsumerInfo", "codec": TEXTS}
    )
    jstack: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeMessageDirectlyResult:
    """Result of consuming one message on request.

    Attributes:
        order: whether the listener is ordered.
        auto_commit: whether an ordered listener commits automatically.
        spent_time_ms: duration of the listener call in milliseconds.
    """

    consume_result: ConsumeResult = ConsumeResult.SUCCESS
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_ms: int = field(default=0, metadata={"wire": "spentTimeMills"})


decode_consumer_running_info, encode_consumer_running_info = record_functions(
    ConsumerRunningInfo, "running info", bare_keys_bytes_max=FRAME_SIZE_MAX
)

decode_consume_directly_result, encode_consume_directly_result = record_functions(
    ConsumeMessageDirectlyResult, "result of consuming"
)


SPECS: Final = (
    RequestSpec(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        GetConsumerRunningInfoRequestHeader,
        response_body=BodyCodec(decode_consumer_running_info, encode_consumer_running_info),
    ),
    RequestSpec(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        ConsumeMessageDirectlyResultRequestHeader,
        request_body=MESSAGE_CODEC,
        response_body=BodyCodec(decode_consume_directly_result, encode_consume_directly_result),
        body_bytes_max=MESSAGE_BYTES_MAX,
    ),
)
