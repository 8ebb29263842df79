"""ReceiveMessage: pops messages for consumers.

A receive pops with the consumer's own connection. If its call is over when the broker answers, or
ends before all messages are written, the messages become visible again after a second.

Source: ReceiveMessageActivity.java, ConsumerProcessor.java, apache/rocketmq 5.5.0, and recorded
calls.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from typing import Final

from kourou.client import calls_pop
from kourou.client.pop_result import PoppedMessage, PopResult, popped_offset
from kourou.errors import KourouError, TransportError
from kourou.http2.calls import Call
from kourou.model.group import SubscriptionGroup
from kourou.proxy.checks import CallLimits, check_group, check_invisible, check_topic, polling_ms
from kourou.proxy.clients import ClientTable, ProxyClient, required_client
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.deliveries import Deliveries, receipt_of
from kourou.proxy.filters import subscription_of
from kourou.proxy.held_messages import HeldMessages
from kourou.proxy.metadata import CallContext
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.proxy.plain_messages import encode_delivery
from kourou.proxy.queue_choice import receiving_broker
from kourou.proxy.receipts import handle_text
from kourou.proxy.status import error_status, local_error_status, ok, status
from kourou.proxy.times import duration_ms, timestamp

AUTO_RENEW_MS: Final = 60_000
"""Invisible time of messages that are renewed."""
_SETTINGS_TIMEOUT_MS: Final = 3_000
"""Request timeout of a client whose settings do not name one."""
_AT_END: Final = 1
"""Init mode: a new group begins at the end of each queue."""


class Receives:
    """Serves ReceiveMessage."""

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
        self._turns = itertools.count()

    async def receive(
        self, call: Call, context: CallContext, asked: v2.ReceiveMessageRequest
    ) -> None:
        """Answer with a status, the messages and the time of the delivery."""
        try:
            client = required_client(self._clients, context)
            result, group = await self._pop(call, context, client, asked)
        except (KourouError, ValueError) as error:
            failure = local_error_status if self._cluster.is_local else error_status
            self._finish(call, failure(error), [])
            return
        if result.is_refused:
            self._finish(call, status(Code.TOO_MANY_REQUESTS, "polling full"), [])
            return
        found = await self._acceptable(client, group, result)
        if found:
            outcome = ok()
        else:
            text = "no new message" if result.is_empty else "no match message"
            outcome = status(Code.MESSAGE_NOT_FOUND, text)
        if not call.is_active:
            self._held.release_soon(client, found)
            return
        self._finish(call, outcome, [self._wire(one, context) for one in found])
        if asked.auto_renew:
            self._held.hold(client, group, found)

    async def _pop(
        self, call: Call, context: CallContext, client: ProxyClient, asked: v2.ReceiveMessageRequest
    ) -> tuple[PopResult, SubscriptionGroup]:
        loop = asyncio.get_running_loop()
        remaining_ms = None
        if call.deadline_s is not None:
            remaining_ms = int((call.deadline_s - loop.time()) * 1000)
        timeout_ms = duration_ms(client.settings.request_timeout) or _SETTINGS_TIMEOUT_MS
        wait_ms = polling_ms(asked, remaining_ms, timeout_ms, context.client_version, self._limits)
        topic, name = asked.message_queue.topic.name, asked.group.name
        check_topic(topic)
        check_group(name)
        invisible_ms = AUTO_RENEW_MS
        if not asked.auto_renew:
            invisible_ms = duration_ms(asked.invisible_duration)
            check_invisible(invisible_ms, self._limits, self._limits.invisible_ms_min)
        subscription = subscription_of(topic, asked.filter_expression)
        broker = asked.message_queue.broker.name
        queues = await self._cluster.readable_queues(topic, broker)
        broker = receiving_broker(queues, broker, next(self._turns))
        address = await self._cluster.address(topic, broker)
        group = await self._cluster.metadata.group(name)
        is_ordered = group is not None and group.consume_message_orderly
        attempt_id = (asked.attempt_id or str(uuid.uuid4())) if is_ordered else None
        try:
            result = await calls_pop.pop(
                client.pool,
                address,
                name,
                broker,
                subscription=subscription,
                max_messages=min(max(asked.batch_size, 0), self._limits.batch_max),
                invisible_ms=invisible_ms,
                wait_ms=wait_ms,
                init_mode=_AT_END,
                attempt_id=attempt_id,
                timeout_s=wait_ms / 1000 + REQUEST_TIMEOUT_S,
            )
        except TransportError:
            self._cluster.on_broker_failed(topic, broker)
            raise
        if group is None:
            group = await self._cluster.metadata.group(name) or SubscriptionGroup(name)
        return result, group

    async def _acceptable(
        self, client: ProxyClient, group: SubscriptionGroup, result: PopResult
    ) -> list[PoppedMessage]:
        """Return the messages for the client; acknowledge and dead-letter the others."""
        for one in result.unmatched:
            await self._deliveries.attempt(
                self._deliveries.ack(client.pool, one.topic, group.group_name, receipt_of(one))
            )
        found = []
        for one in [*result.messages, *(broken.message for broken in result.unreadable)]:
            if one.reconsume_times > group.retry_max_times:
                letter = self._deliveries.dead_letter(
                    client.pool, one.topic, group.group_name, one.msg_id, receipt_of(one)
                )
                await self._deliveries.attempt(letter)
            else:
                found.append(one)
        return found

    def _wire(self, one: PoppedMessage, context: CallContext) -> bytes:
        handle = handle_text(one.checkpoint, popped_offset(one), one.physical_offset)
        return encode_delivery(one, handle, context.language, self._cluster.now_ms())

    def _finish(self, call: Call, outcome: v2.Status, messages: Sequence[bytes]) -> None:
        """Send the stream of a receive: its status, the messages, the time, the end.

        Args:
            call: the receive.
            outcome: the status.
            messages: the encoded responses with the messages.
        """
        call.send(v2.ReceiveMessageResponse(status=outcome).SerializeToString())
        for message in messages:
            call.send(message)
        now = timestamp(self._cluster.now_ms())
        call.send(v2.ReceiveMessageResponse(delivery_timestamp=now).SerializeToString())
        call.finish()
