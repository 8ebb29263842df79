"""Calls of consumers that end or prolong deliveries.

AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue.

Source: AckMessageActivity.java, ChangeInvisibleDurationActivity.java,
ForwardMessageToDLQActivity.java, apache/rocketmq 5.5.0, and recorded calls.
"""

from __future__ import annotations

from kourou.errors import KourouError
from kourou.http2.calls import Call
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.proxy.checks import CallLimits, check_group, check_invisible, check_topic
from kourou.proxy.clients import ClientTable, required_client
from kourou.proxy.cluster import Cluster
from kourou.proxy.deliveries import Deliveries
from kourou.proxy.held_messages import HeldMessages
from kourou.proxy.metadata import CallContext
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.proxy.receipts import check_not_expired, read_handle
from kourou.proxy.renewals import HeldMessage
from kourou.proxy.status import combined_status, error_status, ok, response_status
from kourou.proxy.times import duration_ms
from kourou.remoting.pool import ConnectionPool


class ReceiptCalls:
    """Serves the calls with receipt handles."""

    def __init__(
        self,
        cluster: Cluster,
        clients: ClientTable,
        limits: CallLimits,
        deliveries: Deliveries,
        held: HeldMessages,
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._limits = limits
        self._deliveries = deliveries
        self._held = held

    async def ack(
        self, _: Call, context: CallContext, asked: v2.AckMessageRequest
    ) -> v2.AckMessageResponse:
        """Acknowledge messages; several of one broker by one request."""
        check_topic(asked.topic.name)
        check_group(asked.group.name)
        statuses: list[v2.Status | None] = [None] * len(asked.entries)
        receipts: dict[int, ReceiptHandle] = {}
        taken: dict[int, HeldMessage | None] = {}
        for at, entry in enumerate(asked.entries):
            try:
                receipts[at], taken[at] = await self._current(context, asked.group.name, entry)
            except KourouError as error:
                statuses[at] = error_status(error)
        topic, group = asked.topic.name, asked.group.name
        pool = self._pool(context)
        for broker in {receipt.broker_name for receipt in receipts.values()}:
            of_broker = {at: one for at, one in receipts.items() if one.broker_name == broker}
            outcome = await self._deliveries.ack_all(
                pool, topic, group, broker, list(of_broker.values())
            )
            for at in of_broker:
                statuses[at] = outcome
                if outcome.code != Code.OK:
                    self._held.put_back(taken[at])
        entries = [
            v2.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=outcome
            )
            for entry, outcome in zip(asked.entries, statuses, strict=True)
        ]
        codes = [entry.status.code for entry in entries]
        return v2.AckMessageResponse(
            status=combined_status(codes, "ack message result is empty"), entries=entries
        )

    async def _current(
        self, context: CallContext, group: str, entry: v2.AckMessageEntry
    ) -> tuple[ReceiptHandle, HeldMessage | None]:
        """Return the present receipt of a message: that of its last renewal, if it has one."""
        message_id, receipt = entry.message_id, read_handle(entry.receipt_handle)
        held = None
        if not self._held.take_unrenewed(context.client_id, group, message_id, receipt):
            held = await self._held.take(context, group, message_id, receipt)
        receipt = receipt if held is None else held.receipt
        check_not_expired(receipt, self._cluster.now_ms())
        return receipt, held

    async def change_invisible(
        self, _: Call, context: CallContext, asked: v2.ChangeInvisibleDurationRequest
    ) -> v2.ChangeInvisibleDurationResponse:
        """Make a message visible at another time; it is renewed no more."""
        check_topic(asked.topic.name)
        check_group(asked.group.name)
        invisible_ms = duration_ms(asked.invisible_duration)
        check_invisible(invisible_ms, self._limits)
        receipt = read_handle(asked.receipt_handle)
        held = await self._held.take(context, asked.group.name, asked.message_id, receipt)
        receipt = receipt if held is None else held.receipt
        check_not_expired(receipt, self._cluster.now_ms())
        with self._held.put_back_after_failure(held):
            changed = await self._deliveries.change(
                self._pool(context),
                asked.topic.name,
                asked.group.name,
                receipt,
                invisible_ms,
                suspend=asked.suspend,
            )
        return v2.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed.encode())

    async def forward_to_dead_letters(
        self,
        _: Call,
        context: CallContext,
        asked: v2.ForwardMessageToDeadLetterQueueRequest,
    ) -> v2.ForwardMessageToDeadLetterQueueResponse:
        """Make a message a dead letter of its group."""
        check_topic(asked.topic.name)
        check_group(asked.group.name)
        receipt = read_handle(asked.receipt_handle)
        held = await self._held.take(context, asked.group.name, asked.message_id, receipt)
        with self._held.put_back_after_failure(held):
            await self._deliveries.dead_letter(
                required_client(self._clients, context).pool,
                asked.topic.name,
                asked.group.name,
                asked.message_id,
                receipt if held is None else held.receipt,
            )
        return v2.ForwardMessageToDeadLetterQueueResponse(
            status=response_status(ResponseCode.SUCCESS, None)
        )

    def _pool(self, context: CallContext) -> ConnectionPool:
        client = self._clients.get(context.client_id)
        return self._cluster.pool if client is None else client.pool
