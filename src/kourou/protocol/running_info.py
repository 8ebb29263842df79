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
from kourou.protocol.clients import subscription_from_json, subscription_to_json
from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import Int, RpcHeader, TopicHeader
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_values import (
    Json,
    as_object,
    get_boolean,
    get_enum,
    get_integer,
    get_list,
    get_number,
    get_object,
    get_optional_text,
    get_text_map,
    items_by_queue,
)
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
    cached_msg_size_in_mib: int = 0
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class PopProcessQueueInfo:
    """A pop consumer's state of one queue."""

    wait_ack_count: int = 0
    dropped: bool = False
    last_pop_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStatus:
    """Consumption of a topic over the last minutes: times in milliseconds, rates per second."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
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

    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: Sequence[SubscriptionData] = ()
    queues: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    pop_queues: Mapping[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
    statuses: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    user_info: Mapping[str, str] = field(default_factory=dict)
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
    spent_time_ms: int = 0


def encode_consumer_running_info(info: ConsumerRunningInfo) -> bytes:
    """Return the response body of GET_CONSUMER_RUNNING_INFO (307)."""
    return dumps(
        {
            "jstack": info.jstack,
            "mqPopTable": {
                queue: {
                    "droped": pop_queue.dropped,
                    "lastPopTimestamp": pop_queue.last_pop_timestamp,
                    "waitAckCount": pop_queue.wait_ack_count,
                }
                for queue, pop_queue in info.pop_queues.items()
            },
            "mqTable": {
                queue: _process_queue(process_queue) for queue, process_queue in info.queues.items()
            },
            "properties": dict(info.properties),
            "statusTable": {topic: _status(status) for topic, status in info.statuses.items()},
            "subscriptionSet": [
                subscription_to_json(subscription) for subscription in info.subscriptions
            ],
            "userConsumerInfo": dict(info.user_info),
        }
    )


def decode_consumer_running_info(body: bytes) -> ConsumerRunningInfo:
    """Return the running info decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "running info")
    return ConsumerRunningInfo(
        get_text_map(data, "properties"),
        tuple(
            subscription_from_json(as_object(subscription, "subscriptionSet"))
            for subscription in get_list(data, "subscriptionSet")
        ),
        {
            queue: _process_queue_from_json(as_object(value, "mqTable"))
            for queue, value in items_by_queue(get_object(data, "mqTable"))
        },
        {
            queue: _pop_process_queue_from_json(as_object(value, "mqPopTable"))
            for queue, value in items_by_queue(get_object(data, "mqPopTable"))
        },
        {
            topic: _status_from_json(as_object(value, "statusTable"))
            for topic, value in get_object(data, "statusTable").items()
        },
        get_text_map(data, "userConsumerInfo"),
        get_optional_text(data, "jstack"),
    )


def encode_consume_directly_result(result: ConsumeMessageDirectlyResult) -> bytes:
    """Return the response body of CONSUME_MESSAGE_DIRECTLY (309)."""
    return dumps(
        {
            "autoCommit": result.auto_commit,
            "consumeResult": result.consume_result.value,
            "order": result.order,
            "remark": result.remark,
            "spentTimeMills": result.spent_time_ms,
        }
    )


def decode_consume_directly_result(body: bytes) -> ConsumeMessageDirectlyResult:
    """Return the result decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body), "result of consuming")
    return ConsumeMessageDirectlyResult(
        get_enum(data, "consumeResult", ConsumeResult.SUCCESS),
        get_boolean(data, "order"),
        get_boolean(data, "autoCommit", default=True),
        get_optional_text(data, "remark"),
        get_integer(data, "spentTimeMills"),
    )


def _process_queue(info: ProcessQueueInfo) -> dict[str, object]:
    return {
        "cachedMsgCount": info.cached_msg_count,
        "cachedMsgMaxOffset": info.cached_msg_max_offset,
        "cachedMsgMinOffset": info.cached_msg_min_offset,
        "cachedMsgSizeInMiB": info.cached_msg_size_in_mib,
        "commitOffset": info.commit_offset,
        "droped": info.dropped,
        "lastConsumeTimestamp": info.last_consume_timestamp,
        "lastLockTimestamp": info.last_lock_timestamp,
        "lastPullTimestamp": info.last_pull_timestamp,
        "locked": info.locked,
        "transactionMsgCount": info.transaction_msg_count,
        "transactionMsgMaxOffset": info.transaction_msg_max_offset,
        "transactionMsgMinOffset": info.transaction_msg_min_offset,
        "tryUnlockTimes": info.try_unlock_times,
    }


def _process_queue_from_json(data: Json) -> ProcessQueueInfo:
    return ProcessQueueInfo(
        get_integer(data, "commitOffset"),
        get_integer(data, "cachedMsgMinOffset"),
        get_integer(data, "cachedMsgMaxOffset"),
        get_integer(data, "cachedMsgCount"),
        get_integer(data, "cachedMsgSizeInMiB"),
        get_integer(data, "transactionMsgMinOffset"),
        get_integer(data, "transactionMsgMaxOffset"),
        get_integer(data, "transactionMsgCount"),
        get_boolean(data, "locked"),
        get_integer(data, "tryUnlockTimes"),
        get_integer(data, "lastLockTimestamp"),
        get_boolean(data, "droped"),
        get_integer(data, "lastPullTimestamp"),
        get_integer(data, "lastConsumeTimestamp"),
    )


def _pop_process_queue_from_json(data: Json) -> PopProcessQueueInfo:
    return PopProcessQueueInfo(
        get_integer(data, "waitAckCount"),
        get_boolean(data, "droped"),
        get_integer(data, "lastPopTimestamp"),
    )


def _status(status: ConsumeStatus) -> dict[str, object]:
    return {
        "consumeFailedMsgs": status.consume_failed_msgs,
        "consumeFailedTPS": float(status.consume_failed_tps),
        "consumeOKTPS": float(status.consume_ok_tps),
        "consumeRT": float(status.consume_rt),
        "pullRT": float(status.pull_rt),
        "pullTPS": float(status.pull_tps),
    }


def _status_from_json(data: Json) -> ConsumeStatus:
    return ConsumeStatus(
        get_number(data, "pullRT"),
        get_number(data, "pullTPS"),
        get_number(data, "consumeRT"),
        get_number(data, "consumeOKTPS"),
        get_number(data, "consumeFailedTPS"),
        get_integer(data, "consumeFailedMsgs"),
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
