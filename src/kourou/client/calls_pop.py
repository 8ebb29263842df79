"""Requests of pop consumers: one coroutine sends one request to one broker, without retries.

All raise TransportError if no answer arrives and RemoteError if the broker refuses. Topics and
groups are plain names; the names of retry topics are made of qualified ones, as brokers have them.
The requests carry a born time of 0: the broker then counts the wait by its own clock.

Source: MQClientAPIImpl.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kourou.client.pop_result import PoppedMessage, PopResult, popped_offset, read_pop_result
from kourou.model.namespace import with_namespace
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.popping.headers import (
    AckMessageRequestHeader,
    BatchAck,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    encode_batch_acks,
)
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.remoting.pool import ConnectionPool

ALL_QUEUES: Final = -1
"""Queue id of requests for all queues of a topic."""

MESSAGES_MAX: Final = 32
"""Most messages of one pop; brokers refuse more."""

_BATCH_BYTES_MAX: Final = 48 * 1024
"""Estimated size of one batch of acknowledgements; brokers refuse bodies above 64 KiB."""
_ACK_BYTES: Final = 256
"""Estimated size of one entry, without its names and bits."""
_SPREAD_MAX: Final = 65_536
"""Largest distance of an offset from its start offset that is sent as a bit."""


async def pop(
    pool: ConnectionPool,
    address: str,
    group: str,
    broker_name: str,
    *,
    queue_id: int = ALL_QUEUES,
    subscription: SubscriptionData,
    max_messages: int,
    invisible_ms: int,
    wait_ms: int,
    init_mode: int,
    attempt_id: str | None,
    timeout_s: float,
    decompress: bool = True,
) -> PopResult:
    """Receive messages of a topic; no other client gets them for `invisible_ms`.

    Args:
        pool: the client's connections.
        address: the broker's address.
        group: the consumer group.
        broker_name: the broker.
        queue_id: the queue to read; by default all.
        subscription: topic and filter.
        max_messages: 1 to `MESSAGES_MAX`.
        invisible_ms: time in ms until messages that are not acknowledged become visible again.
        wait_ms: how long the broker may hold the request until a message arrives.
        init_mode: start position of a new group: 0 the oldest message, 1 the end.
        attempt_id: for an ordered pop; a repeated pop with the same id gets the same messages.
            None: the pop is not ordered.
        timeout_s: timeout of the request; it must include `wait_ms`.
        decompress: whether to decompress bodies.
    """
    command = pop_command(
        group, broker_name, queue_id=queue_id, subscription=subscription, max_messages=max_messages,
        invisible_ms=invisible_ms, wait_ms=wait_ms, init_mode=init_mode, attempt_id=attempt_id,
    )  # fmt: skip
    answer = await pool.request(address, command, timeout_s)
    now_s = asyncio.get_running_loop().time()
    return read_pop_result(
        answer, broker_name, subscription, pool.namespace, now_s, decompress=decompress
    )


def pop_command(
    group: str,
    broker_name: str,
    *,
    queue_id: int = ALL_QUEUES,
    subscription: SubscriptionData,
    max_messages: int,
    invisible_ms: int,
    wait_ms: int,
    init_mode: int,
    attempt_id: str | None,
) -> RemotingCommand:
    """Return the request of a pop; the arguments are those of `pop`."""
    header = PopMessageRequestHeader(
        consumer_group=group,
        topic=subscription.topic,
        queue_id=queue_id,
        max_msg_nums=max_messages,
        invisible_time=invisible_ms,
        poll_time=wait_ms,
        born_time=0,
        init_mode=init_mode,
        exp_type=subscription.expression_type,
        exp=subscription.sub_string,
        order=attempt_id is not None,
        attempt_id=attempt_id,
        broker_name=broker_name,
    )
    return request(RequestCode.POP_MESSAGE, header)


async def wait_for_messages(
    pool: ConnectionPool,
    address: str,
    group: str,
    broker_name: str,
    *,
    subscription: SubscriptionData,
    wait_ms: int,
    is_ordered: bool,
    timeout_s: float,
) -> bool:
    """Return whether a pop would get messages, as soon as it would; False after `wait_ms`."""
    header = NotificationRequestHeader(
        consumer_group=group,
        topic=subscription.topic,
        queue_id=ALL_QUEUES,
        poll_time=wait_ms,
        born_time=0,
        order=is_ordered,
        exp_type=subscription.expression_type,
        exp=subscription.sub_string,
        broker_name=broker_name,
    )
    answer = await pool.request(address, request(RequestCode.NOTIFICATION, header), timeout_s)
    raise_for_response(answer)
    return answer.header(NotificationResponseHeader).has_msg


async def ack(
    pool: ConnectionPool, address: str, group: str, message: PoppedMessage, *, timeout_s: float
) -> None:
    """Acknowledge one message."""
    topic = _stored_topic(pool, group, message)
    offset = popped_offset(message)
    await ack_receipt(pool, address, group, topic, message.receipt, offset, timeout_s=timeout_s)


async def ack_receipt(
    pool: ConnectionPool,
    address: str,
    group: str,
    topic: str,
    receipt: ReceiptHandle,
    offset: int,
    *,
    timeout_s: float,
) -> None:
    """Acknowledge the message with a receipt and a queue offset.

    `topic` holds the message; see `ReceiptHandle.real_topic`.
    """
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=receipt.queue_id,
        extra_info=receipt.encode(),
        offset=offset,
        broker_name=receipt.broker_name,
    )
    command = request(RequestCode.ACK_MESSAGE, header)
    raise_for_response(await pool.request(address, command, timeout_s))


async def ack_batch(
    pool: ConnectionPool,
    address: str,
    broker_name: str,
    acks: Sequence[BatchAck],
    *,
    timeout_s: float,
) -> None:
    """Acknowledge messages of one broker; `acks` is an element of `requests_of`."""
    command = ack_batch_command(broker_name, acks)
    raise_for_response(await pool.request(address, command, timeout_s))


def ack_batch_command(broker_name: str, acks: Sequence[BatchAck]) -> RemotingCommand:
    """Return the request of `ack_batch`."""
    return request(RequestCode.BATCH_ACK_MESSAGE, body=encode_batch_acks(broker_name, acks))


async def change_invisible(
    pool: ConnectionPool,
    address: str,
    group: str,
    message: PoppedMessage,
    invisible_ms: int,
    *,
    is_counted: bool = True,
    timeout_s: float,
) -> None:
    """Make a message visible again `invisible_ms` from now; replaces its receipt handle.

    Without `is_counted`, the redelivery does not count, if the broker is RocketMQ 5.5 or Kourou.
    """
    message.receipt = await change_receipt(
        pool,
        address,
        group,
        _stored_topic(pool, group, message),
        message.receipt,
        popped_offset(message),
        invisible_ms,
        is_counted=is_counted,
        timeout_s=timeout_s,
    )
    message.visible_at_s = asyncio.get_running_loop().time() + invisible_ms / 1000


async def change_receipt(
    pool: ConnectionPool,
    address: str,
    group: str,
    topic: str,
    receipt: ReceiptHandle,
    offset: int,
    invisible_ms: int,
    *,
    is_counted: bool = True,
    timeout_s: float,
) -> ReceiptHandle:
    """Make the message with a receipt and a queue offset visible again `invisible_ms` from now.

    Returns its new receipt. `topic` and `is_counted` are as in `ack_receipt`, `change_invisible`.
    """
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=receipt.queue_id,
        extra_info=receipt.encode(),
        offset=offset,
        invisible_time=invisible_ms,
        suspend=not is_counted,
        broker_name=receipt.broker_name,
    )
    command = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    answer = await pool.request(address, command, timeout_s)
    raise_for_response(answer)
    changed = answer.header(ChangeInvisibleTimeResponseHeader)
    return receipt.changed(offset, changed.pop_time, changed.invisible_time, changed.revive_qid)


class BrokerAcks(NamedTuple):
    """Messages to acknowledge at one broker, and what acknowledges them in batches.

    Attributes:
        messages: the messages.
        acks: one for all messages of a queue that were popped together.
    """

    messages: list[PoppedMessage]
    acks: list[BatchAck]


def acks_by_broker(
    namespace: str, group: str, messages: Iterable[PoppedMessage]
) -> tuple[dict[str, BrokerAcks], list[PoppedMessage]]:
    """Return what acknowledges messages, and those for which only `ack` does.

    Args:
        namespace: the client's namespace, or empty.
        group: the consumer group.
        messages: as received.
    """
    by_broker: dict[str, BrokerAcks] = {}
    single: list[PoppedMessage] = []
    # Receipts of one checkpoint differ only in their last fields, the offsets of the message.
    bits_by_key: dict[tuple[str, ReceiptHandle], list[int]] = {}
    last: ReceiptHandle | None = None
    start, bits = 0, [0]
    batched: list[PoppedMessage] = []
    for message in messages:
        checkpoint = message.checkpoint
        if checkpoint is not last:  # mostly, the messages of a checkpoint follow each other
            last, start = checkpoint, checkpoint.start_offset
            key = message.topic, checkpoint._replace(offset=None, commit_log_offset=None)
            bits = bits_by_key.setdefault(key, [0])
            batched = by_broker.setdefault(checkpoint.broker_name, BrokerAcks([], [])).messages
        at = popped_offset(message) - start
        if 0 <= at < _SPREAD_MAX:
            bits[0] |= 1 << at
            batched.append(message)
        else:
            single.append(message)
    group_name = with_namespace(namespace, group)
    for (topic, checkpoint), (acknowledged,) in bits_by_key.items():
        if acknowledged:
            topic_name = with_namespace(namespace, topic)
            ack = batch_ack(checkpoint, topic_name, group_name, acknowledged)
            by_broker[checkpoint.broker_name].acks.append(ack)
    return {name: of_one for name, of_one in by_broker.items() if of_one.acks}, single


def requests_of(acks: Iterable[BatchAck]) -> Iterator[list[BatchAck]]:
    """Yield acknowledgements of one broker in parts, each small enough for one request."""
    part: list[BatchAck] = []
    size = 0
    for ack in acks:
        ack_size = _ACK_BYTES + len(ack.topic) + len(ack.consumer_group) + len(ack.bits) * 4 // 3
        if part and size + ack_size > _BATCH_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(ack)
        size += ack_size
    if part:
        yield part


def batch_ack(checkpoint: ReceiptHandle, topic: str, group: str, bits: int) -> BatchAck:
    """Return what acknowledges messages of one checkpoint, for a request of `requests_of`.

    Args:
        checkpoint: the receipt of any of them; its own offset does not count.
        topic: the topic that was popped, not its retry topic.
        group: the consumer group.
        bits: bit n: the message n offsets after the checkpoint's start.
    """
    return BatchAck(
        group,
        topic,
        checkpoint.kind,
        checkpoint.start_offset,
        checkpoint.queue_id,
        checkpoint.revive_queue,
        checkpoint.pop_time_ms,
        checkpoint.invisible_ms,
        bits.to_bytes((bits.bit_length() + 7) // 8, "little"),
    )


def _stored_topic(pool: ConnectionPool, group: str, message: PoppedMessage) -> str:
    """Return the qualified name of the topic that holds the message."""
    topic = with_namespace(pool.namespace, message.topic)
    return message.receipt.real_topic(topic, with_namespace(pool.namespace, group))
