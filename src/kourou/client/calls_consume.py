"""Requests of consumers: one coroutine sends one request to one broker, without retries.

All raise TransportError if no answer arrives and RemoteError if the broker refuses. Docstrings list
only further errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kourou.client.pull_result import PullResult, read_pull_result
from kourou.errors import (
    MalformedBodyError,
    QueryNotFoundError,
    RequestNotSupportedError,
)
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import TAG_EXPRESSION, SubscriptionData
from kourou.model.sysflag import (
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)
from kourou.protocol.clients import (
    CheckClientConfig,
    GetConsumerListByGroupRequestHeader,
    HeartbeatData,
    HeartbeatRequestHeader,
    UnregisterClientRequestHeader,
    decode_consumer_list,
    encode_check_client_config,
    encode_heartbeat,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.offsets import (
    TOPIC_BEGIN_FIELD,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    parse_topic_begin,
)
from kourou.protocol.pulling import PullMessageRequestHeader
from kourou.protocol.queue_assignment import (
    LockBatch,
    MessageQueueAssignment,
    QueryAssignment,
    decode_assignments,
    decode_locked_queues,
    encode_lock_batch,
    encode_query_assignment,
)
from kourou.protocol.sending import REASON_FIELD, ConsumerSendMsgBackRequestHeader
from kourou.remoting.pool import ConnectionPool

FILTERS_SINCE_VERSION: Final = 232
"""First version of brokers that filter by properties: V4_1_0_SNAPSHOT in MQVersion.java."""
_FILTERS_OFF: Final = "does not support consumer to filter message"
"""Part of a broker's remark if filters by properties are disabled there, a permanent failure."""


async def pull(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    subscription: SubscriptionData,
    max_messages: int,
    max_bytes: int,
    timeout_s: float,
    suspend_ms: int | None = None,
    commit_offset: int | None = None,
    is_registered: bool = False,
    is_lite: bool = False,
    topic_begin: int | None = None,
) -> PullResult:
    """Pull messages of a queue, starting at `offset`.

    Args:
        pool: the client's connections.
        address: the broker's address.
        group: the consumer group.
        queue: the queue.
        offset: the queue offset of the first message.
        subscription: the filter.
        max_messages: maximum number of messages.
        max_bytes: maximum size in bytes; brokers also have a limit of their own.
        timeout_s: timeout of the request; it must include `suspend_ms`.
        suspend_ms: how long the broker may hold the request until a message arrives; None: the
            broker answers at once.
        commit_offset: an offset to commit by the same request; None: nothing is committed.
        is_registered: the broker has the subscription from a heartbeat; otherwise the request
            carries it.
        is_lite: the pull is for `poll`; brokers process and count these separately.
        topic_begin: identifies the topic, see `TOPIC_BEGIN_FIELD`; None: the broker does not check
            whether the topic was deleted and created again.

    Raises:
        RemoteError: the broker refused. A pull without messages is no error, but a status of the
            result.
    """
    flags = 0
    if commit_offset is not None:
        flags |= PULL_COMMIT_OFFSET
    if suspend_ms is not None:
        flags |= PULL_SUSPEND
    if not is_registered:
        flags |= PULL_SUBSCRIPTION
    if is_lite:
        flags |= PULL_LITE
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=max_messages,
        sys_flag=flags,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=suspend_ms or 0,
        sub_version=0 if is_lite else subscription.sub_version,
        subscription=None if is_registered else subscription.sub_string,
        expression_type=subscription.expression_type,
        max_msg_bytes=max_bytes,
        broker_name=queue.broker_name,
    )
    code = RequestCode.LITE_PULL_MESSAGE if is_lite else RequestCode.PULL_MESSAGE
    command = request(code, header)
    _set_topic_begin(command, topic_begin)
    answer = await pool.request(address, command, timeout_s)
    _check_filter(answer, subscription, address)
    return read_pull_result(answer, queue, subscription, offset, pool.namespace)


class CommittedOffset(NamedTuple):
    """Committed offset of a group in a queue.

    Attributes:
        offset: the next queue offset to consume; None if the group has committed none.
        topic_begin: identifies the topic, see `TOPIC_BEGIN_FIELD`; None if the broker does not
            report it, as RocketMQ's brokers.
    """

    offset: int | None
    topic_begin: int | None


async def query_offset(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    zero_if_new: bool,
    timeout_s: float,
) -> CommittedOffset:
    """Return the committed queue offset.

    If none is committed and `zero_if_new` is True, a broker answers 0 for a queue that begins at
    offset 0 and is still in memory, so that a new group consumes such a queue from its beginning.
    """
    header = QueryConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, zero_if_new, broker_name=queue.broker_name
    )
    answer = await pool.request(
        address, request(RequestCode.QUERY_CONSUMER_OFFSET, header), timeout_s
    )
    try:
        raise_for_response(answer)
    except QueryNotFoundError:
        offset = None
    else:
        offset = answer.header(QueryConsumerOffsetResponseHeader).offset
    return CommittedOffset(offset, parse_topic_begin(answer.ext_fields))


async def update_offset(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    timeout_s: float,
    topic_begin: int | None = None,
) -> None:
    """Commit `offset`: all messages below it are consumed.

    Raises:
        TopicNotFoundError: the topic does not exist, or is not the one that `topic_begin`
            identifies.
    """
    header = UpdateConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, offset, broker_name=queue.broker_name
    )
    command = request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    _set_topic_begin(command, topic_begin)
    raise_for_response(await pool.request(address, command, timeout_s))


def _set_topic_begin(command: RemotingCommand, topic_begin: int | None) -> None:
    if topic_begin is not None:
        command.ext_fields[TOPIC_BEGIN_FIELD] = str(topic_begin)


async def min_offset(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float
) -> int:
    """Return the smallest queue offset stored."""
    header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id, broker_name=queue.broker_name)
    answer = await pool.request(address, request(RequestCode.GET_MIN_OFFSET, header), timeout_s)
    raise_for_response(answer)
    return answer.header(GetMinOffsetResponseHeader).offset


async def max_offset(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float
) -> int:
    """Return the queue offset that the next message will have."""
    header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id, broker_name=queue.broker_name)
    answer = await pool.request(address, request(RequestCode.GET_MAX_OFFSET, header), timeout_s)
    raise_for_response(answer)
    return answer.header(GetMaxOffsetResponseHeader).offset


async def search_offset(
    pool: ConnectionPool,
    address: str,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    upper: bool = False,
    timeout_s: float,
) -> int:
    """Return the queue offset of the first message stored at `timestamp_ms` or later.

    With `upper`, return the offset of the last message stored at that time or earlier.
    """
    header = SearchOffsetRequestHeader(
        queue.topic,
        queue.queue_id,
        timestamp_ms,
        "UPPER" if upper else "LOWER",
        broker_name=queue.broker_name,
    )
    command = request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
    answer = await pool.request(address, command, timeout_s)
    raise_for_response(answer)
    return answer.header(SearchOffsetResponseHeader).offset


async def consumer_ids(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float
) -> list[str]:
    """Return the client ids of the group's live members.

    A broker answers with an error of code 1 if there are none.

    Raises:
        MalformedBodyError: the answer is an empty list.
    """
    header = GetConsumerListByGroupRequestHeader(group)
    command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    answer = await pool.request(address, command, timeout_s)
    raise_for_response(answer)
    ids = decode_consumer_list(answer.body)
    if not ids:
        raise MalformedBodyError(f"{address} lists no member of group {group}")
    return ids


async def assigned_queues(
    pool: ConnectionPool, address: str, query: QueryAssignment, *, timeout_s: float
) -> tuple[MessageQueueAssignment, ...] | None:
    """Return the queues that the broker assigns to the client; None if it cannot assign any."""
    body = encode_query_assignment(query)
    command = request(RequestCode.QUERY_ASSIGNMENT, body=body)
    answer = await pool.request(address, command, timeout_s)
    raise_for_response(answer)
    return decode_assignments(answer.body).message_queue_assignments


async def check_client(
    pool: ConnectionPool,
    address: str,
    client_id: str,
    group: str,
    subscription: SubscriptionData,
    *,
    timeout_s: float,
) -> None:
    """Check that the broker can serve the subscription.

    Raises:
        RemoteError: it cannot; a `RequestNotSupportedError` if the broker is too old or its filters
            are disabled.
    """
    body = encode_check_client_config(CheckClientConfig(client_id, group, subscription))
    command = request(RequestCode.CHECK_CLIENT_CONFIG, body=body)
    answer = await pool.request(address, command, timeout_s)
    _check_filter(answer, subscription, address)
    raise_for_response(answer)


def _check_filter(answer: RemotingCommand, subscription: SubscriptionData, address: str) -> None:
    """Raise if the broker cannot filter by properties; its answers would be wrong.

    Raises:
        RequestNotSupportedError: the broker is too old, or its filters are disabled.
    """
    if subscription.expression_type == TAG_EXPRESSION:
        return
    if answer.version < FILTERS_SINCE_VERSION:
        raise RequestNotSupportedError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"broker {address} of version {answer.version} is older than 4.1 "
            f"({FILTERS_SINCE_VERSION}) and would parse {subscription.expression_type} as tags: "
            "upgrade it, or subscribe by tags",
        )
    if answer.code == ResponseCode.SYSTEM_ERROR and _FILTERS_OFF in str(answer.remark):
        raise RequestNotSupportedError(
            ResponseCode.SYSTEM_ERROR,
            f"{answer.remark}: switch on enablePropertyFilter of broker {address} "
            f"(kourou broker set {address} enablePropertyFilter=true)",
        )


async def lock_queues(
    pool: ConnectionPool,
    address: str,
    group: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    *,
    timeout_s: float,
) -> set[MessageQueue]:
    """Lock queues of one broker for this client, or renew its locks; return the locked queues."""
    body = encode_lock_batch(LockBatch(group, client_id, tuple(queues)))
    answer = await pool.request(address, request(RequestCode.LOCK_BATCH_MQ, body=body), timeout_s)
    raise_for_response(answer)
    return set(decode_locked_queues(answer.body).queues)


async def unlock_queues(
    pool: ConnectionPool,
    address: str,
    group: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    *,
    timeout_s: float,
) -> None:
    """Release the locks that this client holds of queues of one broker."""
    body = encode_lock_batch(LockBatch(group, client_id, tuple(queues)))
    command = request(RequestCode.UNLOCK_BATCH_MQ, body=body)
    raise_for_response(await pool.request(address, command, timeout_s))


async def send_back(
    pool: ConnectionPool,
    address: str,
    group: str,
    message: MessageExt,
    *,
    delay_level: int,
    max_reconsume_times: int | None,
    timeout_s: float,
    reason: str | None = None,
) -> None:
    """Send a failed message back: the broker stores it again, for a later redelivery.

    Returns when the copy is as durable as a message that was sent.

    Args:
        pool: the client's connections.
        address: the master of the broker that holds the message.
        group: the consumer group.
        message: as pulled.
        delay_level: 0: the broker chooses the level; negative: the message becomes a dead letter
            at once.
        max_reconsume_times: number of redeliveries after which the message becomes a dead letter;
            None: the broker's setting of the group.
        timeout_s: timeout of the request; after a timeout the copy may have been stored.
        reason: why the delivery failed, in one line; Kourou's brokers store it with a dead letter.
    """
    header = ConsumerSendMsgBackRequestHeader(
        message.physical_offset,
        group,
        delay_level,
        origin_msg_id=message.msg_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
        broker_name=message.broker_name or None,
    )
    command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    if reason is not None:
        command.ext_fields[REASON_FIELD] = reason
    raise_for_response(await pool.request(address, command, timeout_s))


async def heartbeat(
    pool: ConnectionPool, address: str, data: HeartbeatData, *, timeout_s: float
) -> None:
    """Send a heartbeat, which registers this client and its subscriptions at a broker."""
    command = request(RequestCode.HEART_BEAT, HeartbeatRequestHeader(), encode_heartbeat(data))
    raise_for_response(await pool.request(address, command, timeout_s))


async def unregister(
    pool: ConnectionPool,
    address: str,
    client_id: str,
    *,
    producer_group: str | None,
    consumer_group: str | None,
    timeout_s: float,
) -> None:
    """Unregister this client from a broker."""
    header = UnregisterClientRequestHeader(client_id, producer_group, consumer_group)
    command = request(RequestCode.UNREGISTER_CLIENT, header)
    raise_for_response(await pool.request(address, command, timeout_s))
