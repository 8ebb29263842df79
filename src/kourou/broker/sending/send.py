"""Requests that store messages: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320).

`send_checks.py` validates them. For a valid request, the result of the group commit determines the
code of the answer:

    OK                     0
    FLUSH_DISK_TIMEOUT     10, with the header of a success: the message is in the log
    FLUSH_SLAVE_TIMEOUT    12, the same
    BUSY                   2
    MESSAGE_ILLEGAL        13
    SERVICE_NOT_AVAILABLE  14

A topic that a send creates must be as durable as the message. So the message is appended after the
topic is in its file. The topic must also be in the routes first, because consumers may look it up
as soon as the producer has its answer.

Source: SendMessageProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from kourou.broker.config import FlushDiskType
from kourou.broker.consuming.retry_topics import find_dlq_topic
from kourou.broker.context import BrokerContext
from kourou.broker.message_type import message_type
from kourou.broker.sending.send_answers import SendAnswers, region_properties
from kourou.broker.sending.send_checks import (
    SendChecks,
    check_batch,
    check_batch_topic,
    check_half,
    check_has_body,
    check_inflates,
    check_inner_batch,
    check_message,
    check_size,
    is_copy,
    is_redriven,
    send_header,
    stored_properties,
)
from kourou.broker.sending.send_records import draft_of, queue_of
from kourou.broker.sending.verdicts import is_to_be_verified, waits_for_sync
from kourou.broker.timer.scheduling import TimerPlacement
from kourou.broker.topic_attributes import has_batch_queues
from kourou.broker.transactions.half_messages import place_half
from kourou.broker.writing.placement import (
    Placement,
    choose_placement,
    drop_timers,
    has_timer,
    queue_by_priority,
)
from kourou.broker.writing.put import PutResult
from kourou.errors import (
    RemoteError,
)
from kourou.model import properties as names
from kourou.model.host import Host
from kourou.model.msgid import encode_offset_msg_id
from kourou.model.properties import decode_properties
from kourou.model.sysflag import INNER_BATCH, NEED_UNWRAP, TRANSACTION_MASK
from kourou.model.topic import TopicConfig, is_retry_topic
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.message_batch import BatchItem, decode_batch
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.sending import SendHeader, SendMessageResponseHeader
from kourou.remoting.connection import Request
from kourou.store.message_store import AppendedRecord

_DEAD_LETTER_DELAY: Final = "-1"


class HalfRegistry(Protocol):
    """Registers half messages; see `kourou.broker.transactions.transactions.Transactions`."""

    def on_half_stored(self, draft: RecordDraft, appended: AppendedRecord, topic: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Send:
    """A send that passed all checks.

    Attributes:
        topic: topic whose consumers are to receive the message; for a dead letter, the dead-letter
            topic. It may not exist yet.
        queue_id: queue of that topic.
        properties: properties to store; a delay adds to them. For a batch, the properties of the
            whole batch, which are not stored.
        items: the messages of a batch; empty for a single message.
        is_inner: the batch is stored as one record.
        is_half: the message is a half message.
        is_copy: a broker accepted the message before; see `send_checks.is_copy`.
    """

    header: SendHeader
    topic: TopicConfig
    queue_id: int
    properties: dict[str, str]
    items: Sequence[BatchItem]
    is_inner: bool = False
    is_half: bool = False
    is_copy: bool = False

    @property
    def waits(self) -> bool:
        """Whether the answer waits for the sync; always for a half message."""
        return self.is_half or waits_for_sync(self.properties)


class SendHandlers:
    """Serves the requests of producers."""

    def __init__(
        self,
        context: BrokerContext,
        checks: SendChecks,
        transactions: HalfRegistry,
        timers: TimerPlacement,
    ) -> None:
        """Create the handlers.

        Args:
            context: the broker's state and services.
            checks: validate the requests.
            transactions: registers half messages.
            timers: places scheduled messages.
        """
        self._config = context.live_config
        self._topics = context.topics
        self._checks = checks
        self._commit = context.commit
        self._later = context.later
        self._stats = context.stats
        self._clock = context.clock
        self._random = context.random
        self._timers = timers
        self._store_host = context.store_host
        self._unique_ids = context.unique_ids
        self._offload = context.offload
        self._transactions = transactions
        config = context.live_config.current
        self._is_sync_mode = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._region = region_properties(config)
        self._answers = SendAnswers(self._region)

    def on_send_message(self, request: Request) -> RemotingCommand | None:
        """Serve 10, 310 and 320: check, append, and answer when the message is durable.

        Raises:
            MalformedHeaderError: a field is missing or has a bad value.
            MalformedMessageError: the body is not a batch.
        """
        command = request.command
        try:
            send = self._accept(request)
            if self._is_to_be_verified(send):
                self._later.answer(request, partial(self._store_when_verified, request, send))
            elif self._topics.is_saved(send.topic.name):
                self._store(request, send, request.reply)
            else:
                self._create_topic(request, send)
                self._later.answer(request, partial(self._store_when_saved, request, send))
        except RemoteError as error:
            return self._answers.build(command, error.code, error.remark)
        return None

    def _accept(self, request: Request) -> _Send:
        """Return the validated request; creates and stores nothing."""
        command = request.command
        header = send_header(command)
        check_has_body(command.body)
        properties = decode_properties((header.properties or "").encode(errors="replace"))
        is_batch = header.batch or command.code == RequestCode.SEND_BATCH_MESSAGE
        record = None if is_batch else (command.body, properties.get(names.TAGS))
        topic = self._checks.topic_of(header, record)
        queue_id = queue_of(header, topic, self._random)
        if is_batch:
            check_batch_topic(topic)
            check_size(command.body, self._config.current)
            items = decode_batch(command.body, items_max=self._config.current.batch_messages_max)
            check_batch(header, items, self._config.current)
            if has_batch_queues(topic) and names.UNIQ_KEY in properties:
                return self._inner_batch(_Send(header, topic, queue_id, properties, items))
            self._add_unique_key(properties)
            return _Send(header, topic, queue_id, properties, items)
        if is_retry_topic(topic.name):
            group = self._checks.group_of_retry(topic.name, request.remote_address[0])
            is_dead = self._checks.is_dead(header, properties, group, command.version)
            if is_dead and not is_redriven(header, properties):
                topic = find_dlq_topic(self._topics, group)
                properties[names.DELAY] = _DEAD_LETTER_DELAY
                drop_timers(properties)  # else it would reach the dead-letter topic only when due
                queue_id = 0
        is_half = check_message(topic, header, properties).is_half
        if is_half:
            check_half(self._config.current)
        copied = is_copy(header, properties)
        check_size(command.body, self._config.current, copied=copied)
        queue_id = queue_by_priority(properties, topic, queue_id)
        properties.pop(names.POP_CK, None)
        self._add_unique_key(properties)
        properties |= self._region
        properties[names.CLUSTER] = self._config.current.cluster_name
        return _Send(header, topic, queue_id, properties, (), is_half=is_half, is_copy=copied)

    def _inner_batch(self, send: _Send) -> _Send:
        """Return a batch that has a unique id of its own as a send of one record.

        Raises:
            MessageIllegalError: it cannot be stored as one record.
        """
        properties = send.properties
        check_inner_batch(send.header, properties, send.items)
        properties |= self._region
        properties[names.CLUSTER] = self._config.current.cluster_name
        properties[names.INNER_NUM] = str(len(send.items))
        return replace(send, is_inner=True)

    def _create_topic(self, request: Request, send: _Send) -> None:
        """Create the topic if it does not exist.

        Raises:
            MessageIllegalError: as `_drafts`. No topic is created for a refused message.
            RemoteSystemError: the broker has reached its limit of topics.
        """
        copy = replace(send, properties=dict(send.properties))  # a delay adds to them
        self._drafts(request, copy, request.connection.local_address, self._clock.now_ms())
        self._checks.create_topic(send.topic, request.remote_address[0])

    def _is_to_be_verified(self, send: _Send) -> bool:
        return not send.is_copy and is_to_be_verified(send.header.sys_flag, self._config.current)

    async def _store_when_verified(self, request: Request, send: _Send) -> RemotingCommand:
        """Decompress the bodies off the event loop to verify them, then store the message."""
        bodies = [item.body for item in send.items] or [request.command.body]
        try:
            for body in bodies:
                await self._offload(check_inflates, body, send.header.sys_flag)
            if not self._topics.is_saved(send.topic.name):
                self._create_topic(request, send)
        except RemoteError as error:
            return self._answers.build(request.command, error.code, error.remark)
        return await self._store_when_saved(request, send)

    async def _store_when_saved(self, request: Request, send: _Send) -> RemotingCommand:
        """Wait until the topics are saved and in the routes, then store the message."""
        try:
            await self._topics.persist_and_announce()
        except OSError as error:
            reason = f"topic {send.topic.name} cannot be saved: {error}"
            return self._answers.build(request.command, ResponseCode.SERVICE_NOT_AVAILABLE, reason)
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        try:
            self._store(request, send, answer.set_result)
        except RemoteError as error:
            return self._answers.build(request.command, error.code, error.remark)
        return await answer

    def _store(
        self, request: Request, send: _Send, reply: Callable[[RemotingCommand], None]
    ) -> None:
        """Append, and reply when the message is as durable as requested.

        Raises:
            MessageIllegalError: the properties are too long.
        """
        now_ms = self._clock.now_ms()
        command = request.command
        store_host = self._store_host or request.connection.local_address
        unique_key = send.properties[names.UNIQ_KEY]
        waits = self._is_sync_mode and send.waits

        def done(result: PutResult) -> None:
            if result.appended:
                header = SendMessageResponseHeader(
                    ",".join(
                        encode_offset_msg_id(store_host, appended.physical_offset)
                        for appended in result.appended
                    ),
                    send.queue_id,
                    result.appended[0].queue_offset,
                    unique_key,
                    unique_key if send.is_inner else None,
                    handle,
                )
                if send.is_half:
                    self._transactions.on_half_stored(
                        drafts[0], result.appended[0], send.topic.name
                    )
                status, reason = result.status, result.reason
                copies = self._commit.copies if send.waits else 1
                answer = self._answers.stored(
                    command, status, reason, header, waits=waits, copies=copies
                )
                reply(answer)
                self._count(result, message_type(send.properties), self._clock.now_ms() - now_ms)
                return
            self._stats.on_put_failed()
            reply(self._answers.refused(command, result.status, result.reason))

        drafts = self._drafts(request, send, store_host, now_ms)
        handle = self._timers.handle(drafts[0].topic, send.properties)
        self._commit.put(
            drafts,
            now_ms,
            done,
            owner=request.connection,
            wait_for_sync=waits,
            wait_for_copies=send.waits,
        )

    def _drafts(
        self, request: Request, send: _Send, store_host: Host, now_ms: int
    ) -> list[RecordDraft]:
        """Return the records of the message, or of the batch's messages; all are for one queue.

        `now_ms` is their store time. By a later time, a scheduled message could be due that its
        record says is not.
        """
        draft = partial(
            draft_of, header=send.header, born_host=request.remote_address, store_host=store_host
        )
        if send.items and not send.is_inner:
            placement = Placement(send.topic.name, send.queue_id)
            return [
                draft(placement, flag=item.flag, body=item.body, properties=item.properties)
                for item in send.items
            ]
        name, properties = send.topic.name, send.properties
        if send.is_half:
            placement = place_half(name, send.queue_id, properties, send.header.producer_group)
        else:
            levels = len(self._config.current.delay_levels_ms)
            placement = choose_placement(name, send.queue_id, properties, levels)
            if has_timer(properties):
                placement = self._timers.place(name, send.queue_id, properties, now_ms)
        waits = placement.topic != name
        text = stored_properties(send.properties, copied=send.is_copy, waits=waits)
        single = draft(placement, flag=send.header.flag, body=request.command.body, properties=text)
        if send.is_inner:
            single.sys_flag |= INNER_BATCH | NEED_UNWRAP
        if send.is_half:
            single.sys_flag &= ~TRANSACTION_MASK
        return [single]

    def _count(self, result: PutResult, kind: str, took_ms: int) -> None:
        """Count the stored messages under the queue that holds their records."""
        first = result.appended[0]
        count, size_bytes = first.count, first.size
        if len(result.appended) > 1:
            count = len(result.appended)
            size_bytes = sum(appended.size for appended in result.appended)
        self._stats.on_put(first.topic, first.queue_id, kind, count, size_bytes, took_ms)

    def _add_unique_key(self, properties: dict[str, str]) -> None:
        if names.UNIQ_KEY not in properties:
            properties[names.UNIQ_KEY] = self._unique_ids.next(self._clock.now_ms())
