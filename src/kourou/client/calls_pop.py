"""Requests of pop consumers: one coroutine sends one request to one broker, without retries.

All raise TransportError if no answer arrives and RemoteError if the broker refuses. Topics and
groups are plain names; the names of retry topics are made of qualified ones, as brokers have them.
The requests carry a born time of 0: the broker then counts the wait by its own clock.

Source: MQClientAPIImpl.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from kourou.client.pop_result import PoppedMessage, PopResult, read_pop_result
from kourou.model.namespace import with_namespace
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.json_records import encode_record
from kourou.protocol.popping.headers import (
    AckMessageRequestHeader,
    BatchAck,
    BatchAckMessages,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
)
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.remoting.pool import ConnectionPool

ALL_QUEUES: Final = -1
"""Queue id of requests for all queues of a topic."""

MESSAGES_MAX: Final = 32
"""Most messages of one pop; brokers refuse more."""

_BATCH_BYTES_MAX: Final = 48 * 1024
"""Estimated size of one batch of acknowledgements; brokers refuse bodies above 64 KiB."""
_OFFSETS_AT: Final = ReceiptHandle._fields.index("offset")
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
    """
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
    )
    answer = await pool.request(address, request(RequestCode.POP_MESSAGE, header), timeout_s)
    now_s = asyncio.get_running_loop().time()
    return read_pop_result(answer, broker_name, subscription, pool.namespace, now_s)


async def wait_for_messages(
    pool: ConnectionPool,
    address: str,
    group: str,
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
    )
    answer = await pool.request(address, request(RequestCode.NOTIFICATION, header), timeout_s)
    raise_for_response(answer)
    return answer.header(NotificationResponseHeader).has_msg


async def ack(
    pool: ConnectionPool, address: str, group: str, message: PoppedMessage, *, timeout_s: float
) -> None:
    """Acknowledge one message."""
    receipt = message.receipt
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=_stored_topic(pool, group, message),
        queue_id=receipt.queue_id,
        extra_info=receipt.encode(),
        offset=_offset_of(message),
    )
    command = request(RequestCode.ACK_MESSAGE, header)
    raise_for_response(await pool.request(address, command, timeout_s))


async def ack_batch(
    pool: ConnectionPool, address: str, broker_name: str, acks: Iterable[BatchAck], timeout_s: float
) -> None:
    """Acknowledge messages of one broker; `acks` is an element of `batches_of`."""
    body = encode_record(BatchAckMessages(broker_name, tuple(acks)))
    command = request(RequestCode.BATCH_ACK_MESSAGE, body=body)
    raise_for_response(await pool.request(address, command, timeout_s))


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
    receipt, offset = message.receipt, _offset_of(message)
    header = ChangeInvisibleTimeRequestHeader(
        consumer_group=group,
        topic=_stored_topic(pool, group, message),
        queue_id=receipt.queue_id,
        extra_info=receipt.encode(),
        offset=offset,
        invisible_time=invisible_ms,
        suspend=not is_counted,
    )
    command = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    answer = await pool.request(address, command, timeout_s)
    raise_for_response(answer)
    changed = answer.header(ChangeInvisibleTimeResponseHeader)
    message.receipt = ReceiptHandle(
        offset,
        changed.pop_time,
        changed.invisible_time,
        changed.revive_qid,
        receipt.kind,
        receipt.broker_name,
        receipt.queue_id,
        offset,
    )
    message.visible_at_s = asyncio.get_running_loop().time() + invisible_ms / 1000


def batches_of(
    pool: ConnectionPool, group: str, messages: Iterable[PoppedMessage]
) -> Iterator[list[BatchAck]]:
    """Yield batches that acknowledge messages of one broker, each small enough for one request."""
    receipts: dict[tuple[object, ...], tuple[str, ReceiptHandle]] = {}
    bits: dict[tuple[object, ...], int] = {}
    for message in messages:
        receipt = message.receipt
        # Receipts of one checkpoint differ only in their last fields, the offsets of the message.
        key: tuple[object, ...] = message.topic, *receipt[:_OFFSETS_AT]
        receipts.setdefault(key, (message.topic, receipt))
        bits[key] = bits.get(key, 0) | 1 << (_offset_of(message) - receipt.start_offset)
    batch: list[BatchAck] = []
    size = 0
    group_name = with_namespace(pool.namespace, group)
    for key, (topic, receipt) in receipts.items():
        ack = _batch_ack(receipt, with_namespace(pool.namespace, topic), group_name, bits[key])
        ack_size = _ACK_BYTES + len(ack.topic) + len(group_name) + len(ack.bits) * 4 // 3
        if batch and size + ack_size > _BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(ack)
        size += ack_size
    if batch:
        yield batch


def fits_batch(message: PoppedMessage) -> bool:
    """Return whether a message can be acknowledged in a batch, else by `ack` only."""
    return 0 <= _offset_of(message) - message.receipt.start_offset < _SPREAD_MAX


def _batch_ack(receipt: ReceiptHandle, topic: str, group: str, bits: int) -> BatchAck:
    return BatchAck(
        group,
        topic,
        receipt.kind,
        receipt.start_offset,
        receipt.queue_id,
        receipt.revive_queue,
        receipt.pop_time_ms,
        receipt.invisible_ms,
        bits.to_bytes((bits.bit_length() + 7) // 8, "little"),
    )


def _offset_of(message: PoppedMessage) -> int:
    offset = message.receipt.offset
    return message.queue_offset if offset is None else offset


def _stored_topic(pool: ConnectionPool, group: str, message: PoppedMessage) -> str:
    """Return the qualified name of the topic that holds the message."""
    topic = with_namespace(pool.namespace, message.topic)
    return message.receipt.real_topic(topic, with_namespace(pool.namespace, group))
