"""Calls of consumers about messages, and the renewal of the messages that push consumers hold.

ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue.

A receive pops with the consumer's own connection. If its call is over when the broker answers, or
ends before all messages are written, the messages become visible again after a second.

Source: ReceiveMessageActivity.java, ConsumerProcessor.java, AckMessageActivity.java,
ChangeInvisibleDurationActivity.java, ForwardMessageToDLQActivity.java,
DefaultReceiptHandleManager.java, apache/rocketmq 5.5.0, and recorded calls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import uuid
from collections.abc import Awaitable, Iterable, Sequence
from typing import Final

from kourou.client import calls_pop
from kourou.client.pop_result import PoppedMessage, PopResult, popped_offset
from kourou.errors import CallRefusedError, KourouError, RemoteError
from kourou.http2.calls import Call
from kourou.model.group import SubscriptionGroup
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.popping.headers import (
    AckMessageRequestHeader,
    BatchAck,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    encode_batch_acks,
)
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.protocol.sending import ConsumerSendMsgBackRequestHeader
from kourou.proxy.checks import CallLimits, check_group, check_invisible, check_topic, polling_ms
from kourou.proxy.client_settings import retry_delay_ms
from kourou.proxy.clients import ClientTable, ProxyClient
from kourou.proxy.cluster import REQUEST_TIMEOUT_S, Cluster
from kourou.proxy.convert import received_message
from kourou.proxy.filters import subscription_of
from kourou.proxy.metadata import CallContext
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.proxy.queue_choice import receiving_broker
from kourou.proxy.receipts import check_not_expired, handle_text, read_handle, send_back_offset
from kourou.proxy.renewals import ClientGroup, Renewal, RenewalPolicy, Renewals
from kourou.proxy.status import (
    combined_status,
    error_status,
    local_error_status,
    ok,
    response_status,
    status,
)
from kourou.proxy.times import duration_ms, timestamp
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

AUTO_RENEW_MS: Final = 60_000
"""Invisible time of messages that are renewed."""
_RENEWED_AT_ONCE: Final = 256
_SETTINGS_TIMEOUT_MS: Final = 3_000
"""Request timeout of a client whose settings do not name one."""
_SPREAD_MAX: Final = 4_096
_AT_END: Final = 1
"""Init mode: a new group begins at the end of each queue."""
_DEAD_LETTER_AT_ONCE: Final = -1


class Receives:
    """Serves the calls of consumers about messages."""

    def __init__(self, cluster: Cluster, clients: ClientTable, limits: CallLimits) -> None:
        self._cluster = cluster
        self._clients = clients
        self._limits = limits
        self._turns = itertools.count()
        self._groups: dict[str, SubscriptionGroup] = {}
        self._renewals = Renewals(RenewalPolicy(), self._retry_delay_ms)
        self._releases: set[asyncio.Task[None]] = set()

    # ReceiveMessage

    async def receive(
        self, call: Call, context: CallContext, asked: v2.ReceiveMessageRequest
    ) -> None:
        """Answer with a status, the messages and the time of the delivery."""
        try:
            client = self._client(context)
            result, group = await self._pop(call, context, client, asked)
        except (KourouError, ValueError) as error:
            self._finish(call, local_error_status(error), [])
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
            self._release_soon(client, found)
            return
        self._finish(call, outcome, [self._wire(one, context) for one in found])
        if asked.auto_renew:
            self._hold(client, found)

    def _client(self, context: CallContext) -> ProxyClient:
        client = self._clients.get(context.client_id)
        if client is None:
            raise CallRefusedError(
                Code.INTERNAL_SERVER_ERROR,
                f"client {context.client_id} has sent no settings: open its Telemetry stream first",
            )
        return client

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
        queues = await self._cluster.readable_queues(topic)
        broker = receiving_broker(queues, asked.message_queue.broker.name, next(self._turns))
        address = await self._cluster.address(topic, broker)
        group = await self._cluster.metadata.group(name)
        is_ordered = group is not None and group.consume_message_orderly
        attempt_id = (asked.attempt_id or str(uuid.uuid4())) if is_ordered else None
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
        if group is None:
            group = await self._cluster.metadata.group(name) or SubscriptionGroup(name)
        self._groups[name] = group
        return result, group

    async def _acceptable(
        self, client: ProxyClient, group: SubscriptionGroup, result: PopResult
    ) -> list[PoppedMessage]:
        """Return the messages for the client; acknowledge and dead-letter the others."""
        for one in result.unmatched:
            await self._attempt(self._ack(client, group.group_name, one.topic, _receipt(one)))
        found = []
        for one in [*result.messages, *(broken.message for broken in result.unreadable)]:
            if one.reconsume_times > group.retry_max_times:
                receipt = _receipt(one)
                await self._attempt(
                    self._dead_letter(client, group.group_name, one.topic, one.msg_id, receipt)
                )
            else:
                found.append(one)
        return found

    async def _attempt(self, request_made: Awaitable[object]) -> None:
        """Await a request whose failure only delays what it does until the next delivery."""
        try:
            await request_made
        except KourouError as error:
            log.warning("popped_message.not_ended reason=%s", error)

    def _wire(self, one: PoppedMessage, context: CallContext) -> v2.Message:
        handle = handle_text(one.checkpoint, popped_offset(one), one.physical_offset)
        return received_message(one, handle, context.language, self._cluster.now_ms())

    def _finish(self, call: Call, outcome: v2.Status, messages: Sequence[v2.Message]) -> None:
        """Send the stream of a receive: its status, the messages, the time, the end."""
        call.send(v2.ReceiveMessageResponse(status=outcome).SerializeToString())
        for message in messages:
            call.send(v2.ReceiveMessageResponse(message=message).SerializeToString())
        now = timestamp(self._cluster.now_ms())
        call.send(v2.ReceiveMessageResponse(delivery_timestamp=now).SerializeToString())
        call.finish()

    # Ends of deliveries

    async def ack(
        self, _: Call, context: CallContext, asked: v2.AckMessageRequest
    ) -> v2.AckMessageResponse:
        """Acknowledge messages; several of one broker by one request."""
        check_topic(asked.topic.name)
        check_group(asked.group.name)
        statuses: list[v2.Status | None] = [None] * len(asked.entries)
        receipts: dict[int, ReceiptHandle] = {}
        for at, entry in enumerate(asked.entries):
            try:
                receipts[at] = await self._current(context, asked.group.name, entry)
            except KourouError as error:
                statuses[at] = error_status(error)
        topic, group = asked.topic.name, asked.group.name
        pool = self._pool(context)
        for broker in {receipt.broker_name for receipt in receipts.values()}:
            of_broker = {at: one for at, one in receipts.items() if one.broker_name == broker}
            outcome = await self._ack_all(pool, topic, group, broker, list(of_broker.values()))
            for at in of_broker:
                statuses[at] = outcome
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
    ) -> ReceiptHandle:
        """Return the present receipt of a message: that of its last renewal."""
        receipt = read_handle(entry.receipt_handle)
        renewed = self._taken(context, group, entry.message_id, receipt)
        receipt = renewed or receipt
        check_not_expired(receipt, self._cluster.now_ms())
        return receipt

    def _taken(
        self, context: CallContext, group: str, message_id: str, receipt: ReceiptHandle
    ) -> ReceiptHandle | None:
        held = self._renewals.take(ClientGroup(context.client_id, group), message_id, receipt)
        return None if held is None else held.receipt

    async def _ack_all(
        self,
        pool: ConnectionPool,
        topic: str,
        group: str,
        broker: str,
        receipts: list[ReceiptHandle],
    ) -> v2.Status:
        try:
            address = await self._cluster.address(topic, broker)
            if len(receipts) == 1 or any(one.is_ordered for one in receipts):
                for receipt in receipts:
                    await calls_ack(pool, address, topic, group, receipt)
            else:
                acks = _batched(topic, group, receipts)
                body = encode_batch_acks(broker, acks)
                command = request(RequestCode.BATCH_ACK_MESSAGE, body=body)
                answer = await pool.request(address, command, REQUEST_TIMEOUT_S)
                if answer.code != ResponseCode.SUCCESS:
                    return response_status(answer.code, answer.remark)
        except KourouError as error:
            return error_status(error)
        return ok()

    async def _ack(
        self, client: ProxyClient, group: str, topic: str, receipt: ReceiptHandle
    ) -> None:
        address = await self._cluster.address(topic, receipt.broker_name)
        await calls_ack(client.pool, address, topic, group, receipt)

    async def change_invisible(
        self, _: Call, context: CallContext, asked: v2.ChangeInvisibleDurationRequest
    ) -> v2.ChangeInvisibleDurationResponse:
        """Make a message visible at another time; it is renewed no more."""
        check_topic(asked.topic.name)
        check_group(asked.group.name)
        invisible_ms = duration_ms(asked.invisible_duration)
        check_invisible(invisible_ms, self._limits)
        receipt = read_handle(asked.receipt_handle)
        receipt = self._taken(context, asked.group.name, asked.message_id, receipt) or receipt
        check_not_expired(receipt, self._cluster.now_ms())
        changed = await self._change(
            self._pool(context),
            asked.topic.name,
            asked.group.name,
            receipt,
            invisible_ms,
            suspend=asked.suspend,
        )
        return v2.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed.encode())

    async def _change(
        self,
        pool: ConnectionPool,
        topic: str,
        group: str,
        receipt: ReceiptHandle,
        invisible_ms: int,
        *,
        suspend: bool = False,
    ) -> ReceiptHandle:
        address = await self._cluster.address(topic, receipt.broker_name)
        offset = receipt.offset or 0
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=group,
            topic=receipt.real_topic(topic, group),
            queue_id=receipt.queue_id,
            extra_info=receipt.encode(),
            offset=offset,
            invisible_time=invisible_ms,
            suspend=suspend,
        )
        command = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        answer = await pool.request(address, command, REQUEST_TIMEOUT_S)
        raise_for_response(answer)
        changed = answer.header(ChangeInvisibleTimeResponseHeader)
        return receipt.changed(offset, changed.pop_time, changed.invisible_time, changed.revive_qid)

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
        receipt = self._taken(context, asked.group.name, asked.message_id, receipt) or receipt
        client = self._client(context)
        await self._dead_letter(
            client, asked.group.name, asked.topic.name, asked.message_id, receipt
        )
        return v2.ForwardMessageToDeadLetterQueueResponse(
            status=response_status(ResponseCode.SUCCESS, None)
        )

    async def _dead_letter(
        self, client: ProxyClient, group: str, topic: str, message_id: str, receipt: ReceiptHandle
    ) -> None:
        address = await self._cluster.address(topic, receipt.broker_name)
        header = ConsumerSendMsgBackRequestHeader(
            send_back_offset(receipt),
            group,
            _DEAD_LETTER_AT_ONCE,
            origin_msg_id=message_id,
            origin_topic=topic,
            max_reconsume_times=0,
            broker_name=receipt.broker_name,
        )
        command = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        raise_for_response(await client.pool.request(address, command, REQUEST_TIMEOUT_S))
        await calls_ack(client.pool, address, topic, group, receipt)

    def _pool(self, context: CallContext) -> ConnectionPool:
        client = self._clients.get(context.client_id)
        return self._cluster.pool if client is None else client.pool

    # Renewal

    def _hold(self, client: ProxyClient, messages: Iterable[PoppedMessage]) -> None:
        who = ClientGroup(client.id, client.group)
        for one in messages:
            receipt = _receipt(one)
            self._renewals.add(who, one.topic, one.msg_id, receipt, one.reconsume_times)

    async def renew(self) -> None:
        """Renew the messages that become visible soon; called every few seconds."""
        due = self._renewals.due(self._cluster.now_ms(), _RENEWED_AT_ONCE)
        await asyncio.gather(*map(self._renew, due))

    async def _renew(self, renewal: Renewal) -> None:
        held = renewal.message
        client = self._clients.get(held.client.client_id)
        pool = self._cluster.pool if client is None else client.pool
        try:
            changed = await self._change(
                pool, held.topic, held.client.group, held.receipt, renewal.invisible_ms
            )
        except KourouError as error:
            can_retry = not isinstance(error, RemoteError)
            log.info("receipt.not_renewed group=%s reason=%s", held.client.group, error)
            self._renewals.failed(renewal, self._cluster.now_ms(), can_retry=can_retry)
        else:
            self._renewals.renewed(renewal, changed)

    def release(self, client: ProxyClient) -> None:
        """Make the messages that a departed client holds visible soon."""
        self._release(self._renewals.release(ClientGroup(client.id, client.group)))

    def _release(self, renewals: Iterable[Renewal]) -> None:
        for renewal in renewals:
            held = renewal.message
            self._start(
                self._change(
                    self._cluster.pool,
                    held.topic,
                    held.client.group,
                    held.receipt,
                    renewal.invisible_ms,
                    suspend=True,
                )
            )

    def _release_soon(self, client: ProxyClient, messages: Iterable[PoppedMessage]) -> None:
        """Make messages visible soon that could not be written to the client."""
        for one in messages:
            self._start(
                self._change(
                    self._cluster.pool, one.topic, client.group, _receipt(one), 1_000, suspend=True
                )
            )

    def _start(self, change: Awaitable[object]) -> None:
        task = asyncio.create_task(self._attempt(change))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    def _retry_delay_ms(self, group: str, reconsume_times: int) -> int | None:
        found = self._groups.get(group)
        return None if found is None else retry_delay_ms(found, reconsume_times)

    async def close(self) -> None:
        """Release all messages that clients hold."""
        self._release(self._renewals.release_all())
        if self._releases:
            await asyncio.wait(self._releases, timeout=REQUEST_TIMEOUT_S)


async def calls_ack(
    pool: ConnectionPool, address: str, topic: str, group: str, receipt: ReceiptHandle
) -> None:
    """Acknowledge one message.

    Raises:
        KourouError: the broker did not.
    """
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=receipt.real_topic(topic, group),
        queue_id=receipt.queue_id,
        extra_info=receipt.encode(),
        offset=receipt.offset or 0,
    )
    command = request(RequestCode.ACK_MESSAGE, header)
    raise_for_response(await pool.request(address, command, REQUEST_TIMEOUT_S))


def _batched(topic: str, group: str, receipts: Iterable[ReceiptHandle]) -> list[BatchAck]:
    """Return what acknowledges messages of one broker: an entry for each checkpoint."""
    bits: dict[ReceiptHandle, int] = {}
    for receipt in receipts:
        key = receipt._replace(offset=None, commit_log_offset=None)
        distance = (receipt.offset or 0) - receipt.start_offset
        if 0 <= distance < _SPREAD_MAX:
            bits[key] = bits.get(key, 0) | 1 << distance
    return [
        BatchAck(
            group,
            topic,
            key.kind,
            key.start_offset,
            key.queue_id,
            key.revive_queue,
            key.pop_time_ms,
            key.invisible_ms,
            one.to_bytes((one.bit_length() + 7) // 8, "little"),
        )
        for key, one in bits.items()
    ]


def _receipt(one: PoppedMessage) -> ReceiptHandle:
    return one.receipt._replace(offset=popped_offset(one), commit_log_offset=one.physical_offset)
