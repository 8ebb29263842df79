"""ReceiveMessage: pops messages for consumers.

A receive pops by a connection of the consumer (`held_pops`), which ends the pop if its call is
over. Messages that the broker has popped by then, and messages that the client did not read, become
visible again after a second.

Source: ReceiveMessageActivity.java, ConsumerProcessor.java, apache/rocketmq 5.5.0, and recorded
calls.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Sequence
from typing import Final, NamedTuple

from kourou.client import calls_pop
from kourou.client.pop_result import PoppedMessage, PopResult, popped_offset
from kourou.errors import ClosedError, ConnectionLostError, KourouError, TransportError
from kourou.http2.calls import Call
from kourou.model.group import SubscriptionGroup
from kourou.model.subscription import SubscriptionData
from kourou.protocol.codes import LanguageCode
from kourou.proxy.bodies import is_inflated
from kourou.proxy.checks import CallLimits, check_group, check_invisible, check_topic, polling_ms
from kourou.proxy.clients import ClientTable, ProxyClient, required_client
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.deliveries import Deliveries, receipt_of
from kourou.proxy.filters import subscription_of
from kourou.proxy.held_messages import HeldMessages
from kourou.proxy.held_pops import ReceiveCall
from kourou.proxy.metadata import CallContext
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.proxy.plain_messages import encode_delivery
from kourou.proxy.queue_choice import receiving_broker
from kourou.proxy.receipts import handle_text
from kourou.proxy.received_writes import ReceivedWrites, WriteLimits
from kourou.proxy.status import broker_error_status, ok, status
from kourou.proxy.times import duration_ms, timestamp

AUTO_RENEW_MS: Final = 60_000
"""Invisible time of messages that are renewed."""
_SETTINGS_TIMEOUT_MS: Final = 3_000
"""Request timeout of a client whose settings do not name one."""
_NO_NEW_MESSAGE: Final = status(Code.MESSAGE_NOT_FOUND, "no new message")
_OK: Final = v2.ReceiveMessageResponse(status=ok()).SerializeToString()
AT_END: Final = 1
"""Init mode: a new group begins at the end of each queue."""


class PopTerms(NamedTuple):
    """Terms of a pop, except the time to wait."""

    topic: str
    group: str
    subscription: SubscriptionData
    max_messages: int
    invisible_ms: int


class Receives:
    """Serves ReceiveMessage.

    Attributes:
        is_stopping: receives end at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        clients: ClientTable,
        limits: CallLimits,
        deliveries: Deliveries,
        held: HeldMessages,
        write_limits: WriteLimits | None = None,
    ) -> None:
        self._cluster = cluster
        self._clients = clients
        self._limits = limits
        self._deliveries = deliveries
        self._held = held
        self._writes = ReceivedWrites(write_limits or WriteLimits())
        self._turns = itertools.count()
        self.is_stopping = False

    async def receive(
        self, call: Call, context: CallContext, asked: v2.ReceiveMessageRequest
    ) -> int:
        """Answer with a status, the messages and the time of the delivery; return the code."""
        stream = ReceiveCall(call)
        try:
            await self._clients.await_settings(context.client_id)
            client = required_client(self._clients, context)
            result, group = await self._pop(stream, context, client, asked)
        except (KourouError, ValueError) as error:
            return self.fail(call, error)
        return await self.answer(
            stream, context.language, client, group, result, is_renewed=asked.auto_renew
        )

    def fail(self, call: Call, error: Exception) -> int:
        """Answer a receive whose pop has failed; return the code."""
        if self.is_stopping and isinstance(error, ConnectionLostError | ClosedError):
            return self._finish(call, _NO_NEW_MESSAGE)
        if isinstance(error, TransportError) and not self._is_wanted(call):
            error = ClosedError("the receive is over")
        return self._finish(call, broker_error_status(is_local=self._cluster.is_local)(error))

    async def answer(
        self,
        stream: ReceiveCall,
        language: LanguageCode | None,
        client: ProxyClient,
        group: SubscriptionGroup,
        result: PopResult,
        *,
        is_renewed: bool,
    ) -> int:
        """Answer with the result of a pop; return the code."""
        if result.is_refused:
            return self._finish(stream.call, status(Code.TOO_MANY_REQUESTS, "polling full"))
        found = await self._acceptable(client, group, result)
        if not found:
            no_match = status(Code.MESSAGE_NOT_FOUND, "no match message")
            return self._finish(stream.call, _NO_NEW_MESSAGE if result.is_empty else no_match)
        await self._deliver(stream, language, client, group, found, is_renewed=is_renewed)
        return Code.OK

    def answer_at_once(
        self,
        call: Call,
        language: LanguageCode | None,
        client: ProxyClient,
        group: SubscriptionGroup,
        result: PopResult,
        *,
        is_renewed: bool,
    ) -> int | None:
        """Answer as `answer` does, without waiting; None, without any effect, if it must wait."""
        found = result.messages
        if result.unmatched or result.unreadable or result.is_refused:
            return None
        if any(one.reconsume_times > group.retry_max_times for one in found):
            return None
        if any(is_inflated(one.body, one.sys_flag, language) for one in found):
            return None  # all of them at a time could take gigabytes
        if not found:
            return self._finish(call, _NO_NEW_MESSAGE)
        messages = [_OK, *[self._wire(one, language) for one in found], self._delivery_time()]
        if not call.reply_all(messages):
            return None
        if is_renewed:
            self._held.hold(client, group, found)
        return Code.OK

    async def _deliver(
        self,
        stream: ReceiveCall,
        language: LanguageCode | None,
        client: ProxyClient,
        group: SubscriptionGroup,
        found: list[PoppedMessage],
        *,
        is_renewed: bool,
    ) -> None:
        """Send messages to the client; those that it does not read become visible soon."""

        def encode(one: PoppedMessage) -> bytes:
            return self._wire(one, language)

        def release(messages: Sequence[PoppedMessage]) -> None:
            self._held.release_soon(group.group_name, messages)

        visible_at_ms = min(one.receipt.revive_at_ms for one in found)
        wait_s = max(visible_at_ms - self._cluster.now_ms(), 0) / 1000
        stream.call.send(_OK)
        written = await self._writes.write(stream, found, encode, release, wait_s)
        self._end(stream.call)
        if is_renewed:
            self._held.hold(client, group, written)

    def stop(self) -> None:
        """End the receives that wait for messages, as if their time were over."""
        self.is_stopping = True
        for client in self._clients:
            client.pops.abandon_all()

    async def _pop(
        self,
        stream: ReceiveCall,
        context: CallContext,
        client: ProxyClient,
        asked: v2.ReceiveMessageRequest,
    ) -> tuple[PopResult, SubscriptionGroup]:
        wait_ms = self.wait_ms(stream.call, context.client_version, client, asked)
        terms = self.terms(asked)
        topic, name = terms.topic, terms.group
        broker = asked.message_queue.broker.name
        queues = await self._cluster.readable_queues(topic, broker)
        broker = receiving_broker(queues, broker, next(self._turns))
        group = await self._cluster.metadata.group(name)
        is_ordered = group is not None and group.consume_message_orderly
        attempt_id = (asked.attempt_id or str(uuid.uuid4())) if is_ordered else None
        if not self._is_wanted(stream.call):
            raise ClosedError("the receive is over")

        async def pop(address: str) -> PopResult:
            asked_pop = calls_pop.pop(
                client.pops.pool,
                address,
                name,
                broker,
                subscription=terms.subscription,
                max_messages=terms.max_messages,
                invisible_ms=terms.invisible_ms,
                wait_ms=wait_ms,
                init_mode=AT_END,
                attempt_id=attempt_id,
                timeout_s=wait_ms / 1000 + REQUEST_TIMEOUT_S,
                decompress=False,  # `encode_delivery` does, if the client cannot
            )
            return await self._run(stream, client, address, asked_pop)

        result = await self._cluster.at_broker(topic, broker, pop, is_repeatable=False)
        if group is None:
            group = await self._cluster.metadata.group(name) or SubscriptionGroup(name)
        return result, group

    async def _run(
        self,
        stream: ReceiveCall,
        client: ProxyClient,
        address: str,
        pop: Awaitable[PopResult],
    ) -> PopResult:
        """Return the result of a pop.

        Raises:
            ClosedError: this proxy has closed the connection: it is no failure of the broker.
            KourouError: the broker did not answer, or refused.
        """
        try:
            return await client.pops.run(stream, address, pop)
        except TransportError as error:
            if self._is_wanted(stream.call):
                raise
            raise ClosedError("the receive is over") from error

    def terms(self, asked: v2.ReceiveMessageRequest) -> PopTerms:
        """Return what the pop of a receive asks for.

        Raises:
            CallRefusedError: a value is not valid.
            FilterSyntaxError: the tags do not parse.
        """
        topic, group = asked.message_queue.topic.name, asked.group.name
        check_topic(topic)
        check_group(group)
        invisible_ms = AUTO_RENEW_MS
        if not asked.auto_renew:
            invisible_ms = duration_ms(asked.invisible_duration)
            check_invisible(invisible_ms, self._limits, self._limits.invisible_ms_min)
        subscription = subscription_of(topic, asked.filter_expression)
        max_messages = min(max(asked.batch_size, 0), self._limits.batch_max)
        return PopTerms(topic, group, subscription, max_messages, invisible_ms)

    def _is_wanted(self, call: Call) -> bool:
        """Return whether messages can still be sent to the client."""
        return call.is_active and not self.is_stopping

    def wait_ms(
        self, call: Call, version: str, client: ProxyClient, asked: v2.ReceiveMessageRequest
    ) -> int:
        """Return the time in ms that the broker may hold the pop; `version` is the client's.

        Raises:
            CallRefusedError: the call has no deadline, or it is too near.
        """
        remaining_ms = None
        if call.deadline_s is not None:
            remaining_ms = int((call.deadline_s - asyncio.get_running_loop().time()) * 1000)
        timeout_ms = duration_ms(client.settings.request_timeout) or _SETTINGS_TIMEOUT_MS
        return polling_ms(asked, remaining_ms, timeout_ms, version, self._limits)

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

    def _wire(self, one: PoppedMessage, language: LanguageCode | None) -> bytes:
        handle = handle_text(one.checkpoint, popped_offset(one), one.physical_offset)
        return encode_delivery(one, handle, language, self._cluster.now_ms())

    def _finish(self, call: Call, outcome: v2.Status) -> int:
        """Send the stream of a receive without messages; return its code."""
        call.send(v2.ReceiveMessageResponse(status=outcome).SerializeToString())
        self._end(call)
        return outcome.code

    def _end(self, call: Call) -> None:
        """Send the time of the delivery, and the end of the stream."""
        call.send(self._delivery_time())
        call.finish()

    def _delivery_time(self) -> bytes:
        now = timestamp(self._cluster.now_ms())
        return bytes(v2.ReceiveMessageResponse(delivery_timestamp=now).SerializeToString())
