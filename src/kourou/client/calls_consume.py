"""The requests of consuming, one coroutine each: one request to one broker, tried once.

All raise TransportError when no answer comes and RemoteError when the broker refuses; what else
they raise is said where it is.
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
from kourou.protocol.bodies import (
    CheckClientConfig,
    HeartbeatData,
    LockBatch,
    MessageQueueAssignment,
    QueryAssignment,
    decode_assignments,
    decode_consumer_list,
    decode_locked_queues,
    encode_check_client_config,
    encode_heartbeat,
    encode_lock_batch,
    encode_query_assignment,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.headers_consume import (
    TOPIC_BEGIN_FIELD,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    HeartbeatRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    topic_begin_of,
)
from kourou.protocol.headers_send import REASON_FIELD, ConsumerSendMsgBackRequestHeader
from kourou.remoting.check import raise_for_response
from kourou.remoting.pool import ConnectionPool

_FILTERS_SINCE_VERSION: Final = 232
"""Of brokers that know filters by properties: V4_1_0_SNAPSHOT of MQVersion.java."""
_FILTERS_OFF: Final = "does not support consumer to filter message"
"""In the remark of brokers that have them switched off, which is no passing trouble."""


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
    """Ask a broker for the messages of a queue from `offset` on.

    Args:
        pool: the client's connections.
        address: the broker's.
        group: the consumer group.
        queue: the queue.
        offset: the first queue offset wanted.
        subscription: the messages wanted.
        max_messages: at most so many.
        max_bytes: at most so much, in bytes; brokers have a limit of their own.
        timeout_s: for the answer, `suspend_ms` included.
        suspend_ms: how long the broker may hold the request until a message comes; None: not.
        commit_offset: committed on the way; None: nothing is.
        is_registered: the broker knows the subscription by a heartbeat; else it is sent along.
        is_lite: a pull on behalf of `poll`, which brokers serve and count apart.
        topic_begin: the topic that is meant, see `TOPIC_BEGIN_FIELD`; None: the broker is not
            asked whether it was made again.

    Raises:
        RemoteError: refused; "nothing there" is a status of the result, not an error.
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
    _mean(command, topic_begin)
    answer = await pool.request(address, command, timeout_s)
    _check_filter(answer, subscription, address)
    return read_pull_result(answer, queue, subscription, offset, pool.namespace)


class CommittedOffset(NamedTuple):
    """How far a group is in a queue.

    Attributes:
        offset: the next queue offset to consume; None if it never committed there.
        topic_begin: the topic that this is of, see `TOPIC_BEGIN_FIELD`; None if the broker does
            not tell, as RocketMQ's.
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

    With `zero_if_new`, a broker answers 0 in place of none for a queue that begins at 0 and is
    still in memory: a group that starts with the queue then misses nothing of it.
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
    return CommittedOffset(offset, topic_begin_of(answer.ext_fields))


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
    """Commit `offset`: everything below it is done.

    Raises:
        TopicNotFoundError: the topic does not exist, or not the one that `topic_begin` means.
    """
    header = UpdateConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, offset, broker_name=queue.broker_name
    )
    command = request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    _mean(command, topic_begin)
    raise_for_response(await pool.request(address, command, timeout_s))


def _mean(command: RemotingCommand, topic_begin: int | None) -> None:
    if topic_begin is not None:
        command.ext_fields[TOPIC_BEGIN_FIELD] = str(topic_begin)


async def min_offset(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float
) -> int:
    """Return the oldest queue offset stored."""
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

    With `upper`, of the last message stored at that time or before.
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
    """Return the client ids of the group's live members; none is an error of code 1."""
    header = GetConsumerListByGroupRequestHeader(group)
    command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    answer = await pool.request(address, command, timeout_s)
    raise_for_response(answer)
    ids = decode_consumer_list(answer.body)
    if not ids:
        raise MalformedBodyError(f"{address} lists no member of group {group}")
    return ids


async def assigned_queues(
    pool: ConnectionPool, address: str, asked: QueryAssignment, *, timeout_s: float
) -> tuple[MessageQueueAssignment, ...] | None:
    """Return the queues that the broker gives the client; None if it has nothing to go by."""
    body = encode_query_assignment(asked)
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
    """Ask whether the broker can serve the subscription.

    Raises:
        RemoteError: it cannot; `RequestNotSupportedError` if it is too old.
    """
    body = encode_check_client_config(CheckClientConfig(client_id, group, subscription))
    command = request(RequestCode.CHECK_CLIENT_CONFIG, body=body)
    answer = await pool.request(address, command, timeout_s)
    _check_filter(answer, subscription, address)
    raise_for_response(answer)


def _check_filter(answer: RemotingCommand, subscription: SubscriptionData, address: str) -> None:
    """Refuse the answer of a broker that cannot filter by properties: it would never be right."""
    if subscription.expression_type == TAG_EXPRESSION:
        return
    if answer.version < _FILTERS_SINCE_VERSION:
        raise RequestNotSupportedError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"broker {address} of version {answer.version} is older than 4.1 "
            f"({_FILTERS_SINCE_VERSION}) and takes {subscription.expression_type} for tags: "
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
    """Lock queues of one broker for this client, or for longer; return those that are its own."""
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
    """Give up the locks of queues of one broker, as far as this client holds them."""
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
    """Give a failed message back: the broker stores it again, for a later delivery.

    Returns when it is stored as durably as a message sent.

    Args:
        pool: the client's connections.
        address: the master's of the broker that holds the message.
        group: the consumer group.
        message: as pulled.
        delay_level: 0: the broker's own order of delays; negative: dead letter at once.
        max_reconsume_times: after so many deliveries again it becomes a dead letter; None: after
            as many as the broker has for the group.
        timeout_s: for the answer; after a timeout it may be stored.
        reason: why it failed, in one line; brokers of ours keep it with a dead letter.
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
    """Tell a broker that this client lives, and what it wants."""
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
    """Tell a broker that this client leaves."""
    header = UnregisterClientRequestHeader(client_id, producer_group, consumer_group)
    command = request(RequestCode.UNREGISTER_CLIENT, header)
    raise_for_response(await pool.request(address, command, timeout_s))
