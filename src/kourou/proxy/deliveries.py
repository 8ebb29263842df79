"""Requests to brokers about messages that were popped: acknowledge, hide, make a dead letter.

Source: ConsumerProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Final

from kourou.client import calls_pop
from kourou.client.pop_result import PoppedMessage
from kourou.errors import KourouError
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.popping.headers import BatchAck
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.protocol.sending import ConsumerSendMsgBackRequestHeader
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.pb import v2
from kourou.proxy.receipts import OffsetsByCheckpoint, send_back_offset
from kourou.proxy.status import error_status, ok
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

_SPREAD_MAX: Final = 4_096
_DEAD_LETTER_AT_ONCE: Final = -1


class Deliveries:
    """Ends or prolongs deliveries of messages."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._tasks: set[asyncio.Task[None]] = set()

    async def ack(
        self, pool: ConnectionPool, topic: str, group: str, receipt: ReceiptHandle
    ) -> None:
        """Acknowledge one message.

        Raises:
            KourouError: the broker did not.
        """
        await self._cluster.at_broker(
            topic, receipt.broker_name, lambda at: _ack(pool, at, topic, group, receipt)
        )

    async def ack_all(
        self,
        pool: ConnectionPool,
        topic: str,
        group: str,
        broker: str,
        receipts: list[ReceiptHandle],
    ) -> v2.Status:
        """Acknowledge messages of one broker; return the status for all of them."""

        def ack_batch(address: str, acks: list[BatchAck]) -> Awaitable[None]:
            return calls_pop.ack_batch(pool, address, broker, acks, timeout_s=REQUEST_TIMEOUT_S)

        try:
            requests: list[list[BatchAck]] = []
            if len(receipts) > 1:
                requests = batch_requests(topic, group, _by_checkpoint(receipts))
            for acks in requests:
                await self._cluster.at_broker(topic, broker, partial(ack_batch, acks=acks))
            if not requests:
                for receipt in receipts:
                    await self.ack(pool, topic, group, receipt)
        except KourouError as error:
            return error_status(error)
        return ok()

    async def change(
        self,
        pool: ConnectionPool,
        topic: str,
        group: str,
        receipt: ReceiptHandle,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> ReceiptHandle:
        """Make a message visible after `invisible_ms`; return its new receipt.

        Args:
            pool: connections of the client.
            topic: of the delivery, not its retry topic.
            group: of the delivery.
            receipt: of the message.
            invisible_ms: from now on.
            suspend: the message was not handled: its delivery does not count as an attempt.

        Raises:
            KourouError: the broker did not.
        """

        def change(address: str) -> Awaitable[ReceiptHandle]:
            return calls_pop.change_receipt(
                pool,
                address,
                group,
                receipt.real_topic(topic, group),
                receipt,
                receipt.offset or 0,
                invisible_ms,
                is_counted=not suspend,
                timeout_s=REQUEST_TIMEOUT_S,
            )

        return await self._cluster.at_broker(topic, receipt.broker_name, change)

    async def dead_letter(
        self,
        pool: ConnectionPool,
        topic: str,
        group: str,
        message_id: str,
        receipt: ReceiptHandle,
    ) -> None:
        """Make a message a dead letter of its group, and acknowledge it.

        A failed ack is only logged: clients repeat a failed call, and each time would make another
        dead letter.

        Raises:
            KourouError: the broker did not make it a dead letter.
        """
        header = ConsumerSendMsgBackRequestHeader(
            send_back_offset(receipt),
            group,
            _DEAD_LETTER_AT_ONCE,
            origin_msg_id=message_id,
            origin_topic=topic,
            max_reconsume_times=0,
            broker_name=receipt.broker_name,
        )

        async def send_back(address: str) -> None:
            command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
            raise_for_response(await pool.request(address, command, REQUEST_TIMEOUT_S))

        await self._cluster.at_broker(topic, receipt.broker_name, send_back)
        await self.attempt(self.ack(pool, topic, group, receipt))

    async def attempt(self, request_made: Awaitable[object]) -> None:
        """Await a request whose failure only delays what it does until the next delivery."""
        try:
            await request_made
        except KourouError as error:
            log.warning("popped_message.not_ended reason=%s", error)

    def start(self, request_made: Awaitable[object]) -> None:
        """Attempt a request without waiting for it."""
        task = asyncio.create_task(self.attempt(request_made))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for the requests that were started."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=REQUEST_TIMEOUT_S)


def receipt_of(one: PoppedMessage) -> ReceiptHandle:
    """Return the receipt of a popped message."""
    return one.receipt._replace(commit_log_offset=one.physical_offset)


async def _ack(
    pool: ConnectionPool, address: str, topic: str, group: str, receipt: ReceiptHandle
) -> None:
    await calls_pop.ack_receipt(
        pool,
        address,
        group,
        receipt.real_topic(topic, group),
        receipt._replace(commit_log_offset=None),  # the broker does not need it
        receipt.offset or 0,
        timeout_s=REQUEST_TIMEOUT_S,
    )


def batch_requests(topic: str, group: str, offsets: OffsetsByCheckpoint) -> list[list[BatchAck]]:
    """Return the requests that acknowledge messages of one broker, an entry for each checkpoint.

    Empty if a message must be acknowledged alone: of an ordered pop, or far from its start.
    """
    acks: list[BatchAck] = []
    for checkpoint, found in offsets.items():
        start = checkpoint.start_offset
        if checkpoint.is_ordered or min(found) < start or max(found) - start >= _SPREAD_MAX:
            return []
        bits = 0
        for offset in found:
            bits |= 1 << offset - start
        acks.append(calls_pop.batch_ack(checkpoint, topic, group, bits))
    return list(calls_pop.requests_of(acks))


def _by_checkpoint(receipts: Iterable[ReceiptHandle]) -> OffsetsByCheckpoint:
    found: OffsetsByCheckpoint = defaultdict(list)
    for receipt in receipts:
        checkpoint = receipt._replace(offset=None, commit_log_offset=None)
        found[checkpoint].append(receipt.offset or 0)
    return found
