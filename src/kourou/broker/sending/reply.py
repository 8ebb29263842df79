"""Replies to requests of producers: SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325).

A consumer replies to a message with one of these, addressed to the cluster's reply topic, with the
requester's client id in the property REPLY_TO_CLIENT. The broker pushes the reply to that producer
by PUSH_REPLY_MESSAGE_TO_CLIENT (326), on the connection of the producer's heartbeats. The answer to
the replier has the code:

    0   the requester accepted the reply
    1   it did not, it is not connected to this broker, or the message names no requester

With `storeReplyMessageEnable` the reply is stored too, whether or not it could be pushed; the
answer then has the message id and queue offset. The push does not wait for the disk.

Source: ReplyMessageProcessor.java, apache/rocketmq 5.5.0. One difference: a compressed reply is
stored with its compression flag, which Java drops.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from kourou.broker.clients import NAME_LENGTH_MAX
from kourou.broker.config import FlushDiskType
from kourou.broker.context import BrokerContext
from kourou.broker.message_type import message_type
from kourou.broker.sending.send_answers import SendAnswers, region_properties
from kourou.broker.sending.send_checks import (
    SendChecks,
    check_has_body,
    check_reply,
    check_size,
    send_header,
    stored_properties,
)
from kourou.broker.sending.send_records import draft_of, queue_of
from kourou.broker.sending.verdicts import waits_for_sync
from kourou.broker.writing.placement import Placement
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import (
    ProtocolError,
    RemoteError,
    TransportError,
)
from kourou.model import properties as names
from kourou.model.host import Host
from kourou.model.msgid import encode_offset_msg_id
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.sysflag import COMPRESSED, COMPRESSION_MASK
from kourou.model.topic import TopicConfig, is_retry_topic
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.command import request as command_of
from kourou.protocol.sending import ReplyMessageRequestHeader, SendHeader, SendMessageResponseHeader
from kourou.remoting.connection import Request
from kourou.remoting.network import format_address

log = logging.getLogger(__name__)

PUSH_TIMEOUT_S: Final = 10.0
"""Time limit for the requester's acknowledgement of the reply, in seconds."""

_NOT_STORED: Final = "0"
"""Message id in the answer to a reply that was not stored; clients require one."""


class ReplyHandler:
    """Pushes replies to the producers that requested them, and stores them where configured."""

    def __init__(self, context: BrokerContext, checks: SendChecks) -> None:
        self._config = context.live_config
        self._topics = context.topics
        self._checks = checks
        self._clients = context.clients
        self._call_client = context.call_client
        self._commit = context.commit
        self._later = context.later
        self._stats = context.stats
        self._clock = context.clock
        self._random = context.random
        self._store_host = context.store_host
        config = context.live_config.current
        self._is_sync_mode = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._region = region_properties(config)
        self._answers = SendAnswers(self._region)

    def on_send_reply_message(self, request: Request) -> RemotingCommand | None:
        """Serve 324 and 325: check, push and store the reply, and answer after all that.

        Raises:
            MalformedHeaderError: a field is missing or has a bad value.
        """
        command = request.command
        try:
            header = send_header(command)
            topic, properties = self._accept(request, header)
        except RemoteError as error:
            return self._answers.build(command, error.code, error.remark)
        self._later.answer(request, partial(self._serve, request, header, topic, properties))
        return None

    def _accept(self, request: Request, header: SendHeader) -> tuple[TopicConfig, dict[str, str]]:
        """Return the topic and properties of a valid reply; the topic may not exist yet."""
        command = request.command
        check_has_body(command.body)
        topic = self._checks.topic_of(header)
        check_size(command.body, self._config.current)
        properties = decode_properties((header.properties or "").encode(errors="replace"))
        properties |= self._region
        check_reply(topic, header, properties)
        if is_retry_topic(topic.name):
            self._checks.group_of_retry(topic.name, request.remote_address[0])
        stored_properties(properties)  # raises if they are too long
        return topic, properties

    async def _serve(
        self,
        request: Request,
        header: SendHeader,
        topic: TopicConfig,
        properties: dict[str, str],
    ) -> RemotingCommand:
        command, is_stored = request.command, self._config.current.store_reply_message_enable
        if is_stored and not self._topics.is_saved(topic.name):
            try:
                self._checks.create_topic(topic, request.remote_address[0])
                await self._topics.persist_and_announce()
            except RemoteError as error:
                return self._answers.build(command, error.code, error.remark)
            except OSError as error:
                log.warning("reply.not_stored topic=%s reason=%s", topic.name, error)
                is_stored = False
        queue_id = queue_of(header, topic, self._random)
        stored: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()
        if is_stored:
            self._store(request, header, queue_id, encode_properties(properties), stored)
        failure = await self._push(request, header, properties)
        result = await stored if is_stored else None
        code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
        if result is None or not result.appended:
            if result is not None:
                log.warning("reply.not_stored topic=%s reason=%s", topic.name, result.reason)
            stored_header = SendMessageResponseHeader(_NOT_STORED, queue_id, 0)
            return self._answers.build(
                command, code, failure, stored_header if failure is None else None
            )
        (appended,) = result.appended
        host = self._host(request)
        stored_header = SendMessageResponseHeader(
            encode_offset_msg_id(host, appended.physical_offset), queue_id, appended.queue_offset
        )
        if failure is not None:
            return self._answers.build(command, code, failure, stored_header)
        waits = self._waits(properties) and result.status is PutStatus.OK
        return self._answers.stored(command, PutStatus.OK, "", stored_header, waits=waits)

    async def _push(
        self, request: Request, header: SendHeader, properties: dict[str, str]
    ) -> str | None:
        """Push the reply to the requester; return the reason of a failure, None on success."""
        client_id = properties.get(names.REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{names.REPLY_TO_CLIENT}] is null"
        member = self._clients.producer(client_id)
        if member is None:
            requested_id = client_id[:NAME_LENGTH_MAX]
            return f"push reply message fail, channel of <{requested_id}> not found."
        now_ms = self._clock.now_ms()
        pushed_properties = {**properties, names.PUSH_REPLY_TIME: str(now_ms)}
        pushed = command_of(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            ReplyMessageRequestHeader(
                producer_group=header.producer_group,
                topic=header.topic,
                default_topic=header.default_topic,
                default_topic_queue_nums=header.default_topic_queue_nums,
                queue_id=header.queue_id,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                flag=header.flag,
                born_host=format_address(request.remote_address),
                store_host=format_address(self._host(request)),
                store_timestamp=now_ms,
                properties=encode_properties(pushed_properties).decode(),
                reconsume_times=header.reconsume_times,
                unit_mode=header.unit_mode,
            ),
            request.command.body,
        )
        try:
            answer = await self._call_client(member.peer, pushed, PUSH_TIMEOUT_S)
        except (TransportError, ProtocolError) as error:
            log.warning("reply.not_pushed client=%s reason=%s", client_id, error)
            return f"push reply message to {client_id}fail."
        if answer.code != ResponseCode.SUCCESS:
            log.warning("reply.not_pushed client=%s reason=%s", client_id, answer.remark)
            return f"push reply message to {client_id}fail."
        return None

    def _store(
        self,
        request: Request,
        header: SendHeader,
        queue_id: int,
        properties: bytes,
        stored: asyncio.Future[PutResult],
    ) -> None:
        """Append the reply, and complete `stored` with the result in every case."""
        now_ms = self._clock.now_ms()
        draft = draft_of(
            Placement(header.topic, queue_id),
            header=header,
            born_host=request.remote_address,
            store_host=self._host(request),
            flag=header.flag,
            body=request.command.body,
            properties=properties,
        )
        draft.sys_flag &= COMPRESSED | COMPRESSION_MASK

        def done(result: PutResult) -> None:
            if result.appended:
                took_ms = self._clock.now_ms() - now_ms
                (one,) = result.appended
                kind = message_type({})
                self._stats.on_put(one.topic, one.queue_id, kind, 1, one.size, took_ms)
            else:
                self._stats.on_put_failed()
            if not stored.done():
                stored.set_result(result)

        waits = self._waits(decode_properties(properties))
        self._commit.put([draft], now_ms, done, owner=request.connection, wait_for_sync=waits)

    def _waits(self, properties: dict[str, str]) -> bool:
        return self._is_sync_mode and waits_for_sync(properties)

    def _host(self, request: Request) -> Host:
        return self._store_host or request.connection.local_address
