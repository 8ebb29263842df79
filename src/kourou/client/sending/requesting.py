"""Request and reply by messages: a producer sends a request, and a consumer replies to it.

    reply = await producer.request(Message("Prices", b"17"), timeout_ms=2_000)

    async def answer(question: MessageExt) -> None:
        await producer.reply(question, b"4.20")

A request is a message with three properties: the client id of the requester (REPLY_TO_CLIENT), a
correlation id (CORRELATION_ID) and a time to live (TTL). The reply is sent to the reply topic of
the cluster that stored the request, and that topic's broker pushes it to the requester. The broker
knows the requester only by its heartbeats, so a request is sent after a heartbeat to all brokers
that may receive the reply.

Source: DefaultMQProducerImpl.request, MessageUtil.createReplyMessage, RequestFutureHolder,
ClientRemotingProcessor.receiveReplyMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from kourou.client.calls_send import Outgoing, check_message, encode_message
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, check_timeout
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.queue_choice import QueueChoice, QueueSelector
from kourou.client.sending.sender import Sender
from kourou.clock import Clock
from kourou.errors import (
    ConfigError,
    ConnectionLostError,
    KourouError,
    MalformedHeaderError,
    NotARequestError,
    RemoteSystemError,
    ReplyTimeoutError,
    TooManyRequestsError,
    TransportError,
)
from kourou.model import properties as names
from kourou.model.host import Host
from kourou.model.message import Message, MessageExt
from kourou.model.properties import decode_properties
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, TopicRoute
from kourou.model.sysflag import COMPRESSED
from kourou.model.topic import reply_topic
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.compression import decompress
from kourou.protocol.sending import ReplyMessageRequestHeader
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.network import parse_address

log = logging.getLogger(__name__)

REPLY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum decompressed size of a reply in bytes."""

_NO_HOST: Final[Host] = ("0.0.0.0", 0)  # noqa: S104 - as in a record without a host

REPLY_TRIES_MAX: Final = 3
"""Maximum tries of a reply while brokers answer that the requester is not connected."""

_RETURNED: Final[tuple[str, ...]] = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)


class Requester:
    """Sends the requests and replies of one producer.

    Args:
        instance: the client.
        config: its settings.
        sender: sends the messages.
        replies: the requests that wait for replies.
        next_id: returns the id of a new message.
    """

    def __init__(
        self,
        instance: ClientInstance,
        config: ProducerConfig,
        sender: Sender,
        replies: AwaitedReplies,
        next_id: Callable[[], str],
    ) -> None:
        self._instance = instance
        self._config = config
        self._sender = sender
        self._replies = replies
        self._next_id = next_id
        self._registrations = Registrations(instance)

    async def request(
        self, message: Message, timeout_ms: int | None, choice: QueueChoice
    ) -> MessageExt:
        """Send a request, and return its reply; see `Producer.request`."""
        check_message(message, self._config)
        check_timeout(timeout_ms)
        limit_ms = self._config.send_timeout_ms if timeout_ms is None else timeout_ms
        deadline = Deadline(limit_ms)
        bits = self._instance.runtime.random.getrandbits(128)
        correlation_id = str(uuid.UUID(int=bits, version=4))
        system_properties = {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: self._instance.client_id,
            names.TTL: str(limit_ms),
        }
        outgoing = encode_message(message, self._next_id(), system_properties)
        with self._replies.wait(correlation_id) as reply:
            await self._registrations.ensure(message.topic, deadline)
            return await self._send_and_wait(outgoing, deadline, choice, reply)

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        timeout_ms: int | None,
        *,
        tags: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str],
    ) -> SendReceipt:
        """Reply to a request; see `Producer.reply`."""
        check_timeout(timeout_ms)
        topic, reply_properties = _reply_destination(request)
        message = Message(topic, body, tags=tags, keys=keys, properties=properties)
        check_message(message, self._config)
        outgoing = encode_message(message, self._next_id(), reply_properties)
        outgoing.is_reply = True
        deadline = Deadline(self._config.send_timeout_ms if timeout_ms is None else timeout_ms)
        choice = _brokers_in_turn(request.broker_name)
        for failures in range(1, REPLY_TRIES_MAX):
            try:
                return (await self._sender.send(outgoing, _remaining_ms(deadline), choice))[0]
            except RemoteSystemError:
                # The requester may be reconnecting, or connected to another broker.
                delay_s = self._instance.backoff.delay_s(failures)
                if delay_s >= deadline.remaining_s():
                    raise
            await asyncio.sleep(delay_s)
        return (await self._sender.send(outgoing, _remaining_ms(deadline), choice))[0]

    async def _send_and_wait(
        self,
        outgoing: Outgoing,
        deadline: Deadline,
        choice: QueueChoice,
        reply: asyncio.Future[MessageExt],
    ) -> MessageExt:
        try:
            await self._sender.send(outgoing, _remaining_ms(deadline), choice)
        except TransportError:
            if reply.done():
                return reply.result()  # only the broker's answer to the send was lost
            raise
        done, _ = await asyncio.wait((reply,), timeout=deadline.remaining_s())
        if not done:
            raise ReplyTimeoutError(
                f"no reply to the message {outgoing.msg_ids[0]} to {outgoing.topic} within "
                f"{deadline.timeout_ms:g} ms: check that a consumer of the topic replies"
            )
        return reply.result()


class Registrations:
    """Ensures that the client is registered at the brokers that may push replies to it."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._heartbeats: dict[str, asyncio.Task[bool]] = {}
        self._looked_up: set[str] = set()  # clusters whose reply topic was looked up

    async def ensure(self, topic: str, deadline: Deadline) -> None:
        """Send heartbeats to all masters of the topic and of the cluster's reply topic.

        Masters at which the client is registered already are skipped. A heartbeat that fails is
        ignored, because another broker may push the reply.

        Raises:
            KourouError: the topic has no route.
        """
        instance = self._instance
        route = await instance.routes.get(topic, deadline.remaining_s())
        addresses = set(_masters(route))
        for cluster in {broker.cluster for broker in route.broker_datas}:
            replies = await self._reply_route(reply_topic(cluster), deadline)
            if replies is not None:
                addresses.update(_masters(replies))
        missing = [address for address in addresses if not instance.is_registered(address)]
        if missing:
            heartbeats = [self._start_heartbeat(address) for address in missing]
            await asyncio.wait(heartbeats, timeout=deadline.remaining_s())

    async def _reply_route(self, topic: str, deadline: Deadline) -> TopicRoute | None:
        """Return the route of a reply topic, looked up once; None if there is none."""
        routes = self._instance.routes
        cached = routes.cached(topic)
        if cached is not None or topic in self._looked_up:
            return cached
        self._looked_up.add(topic)
        try:
            return await routes.get(topic, deadline.remaining_s())
        except KourouError:
            return None

    def _start_heartbeat(self, address: str) -> asyncio.Task[bool]:
        """Start a heartbeat to a broker; concurrent callers share one."""
        task = self._heartbeats.get(address)
        if task is None:
            task = asyncio.create_task(self._instance.heartbeat(address), name=f"beat {address}")
            self._heartbeats[address] = task
            task.add_done_callback(lambda _: self._heartbeats.pop(address))
        return task


def _masters(route: TopicRoute) -> list[str]:
    return [
        broker.broker_addrs[MASTER_ID]
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs
    ]


def _reply_destination(request: MessageExt) -> tuple[str, dict[str, str]]:
    """Return the reply topic for a request, and the properties that a reply needs.

    Raises:
        NotARequestError: the message lacks a property of requests.
    """
    properties = request.properties
    missing = [name for name in (names.CLUSTER, *_RETURNED[:2]) if name not in properties]
    if missing:
        raise NotARequestError(
            f"message {request.msg_id} of {request.topic} has no property {missing[0]}: only a "
            "message sent by `request` can be replied to"
        )
    reply_properties = {name: properties[name] for name in _RETURNED if name in properties}
    return reply_topic(properties[names.CLUSTER]), {
        names.MSG_TYPE: names.REPLY_MESSAGE,
        **reply_properties,
    }


def _brokers_in_turn(first: str) -> QueueSelector:
    """Return a selector that chooses queues of the brokers in turn, beginning with `first`.

    `first` is the broker that stored the request: the requester has sent it a heartbeat.
    """
    taken = 0

    def select(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        nonlocal taken
        one_each = {queue.broker_name: queue for queue in queues}
        ordered = sorted(one_each, key=lambda name: name != first)
        taken += 1
        return one_each[ordered[(taken - 1) % len(ordered)]]

    return select


def _remaining_ms(deadline: Deadline) -> int:
    return max(0, round(deadline.remaining_s() * 1000))


class AwaitedReplies:
    """The requests of one producer that wait for a reply, by correlation id.

    Args:
        waiting_max: maximum number of waiting requests.
        clock: gives the arrival time of replies.
    """

    def __init__(self, waiting_max: int, clock: Clock) -> None:
        self._waiting_max = waiting_max
        self._clock = clock
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of requests from brokers."""
        return {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self.on_push_reply_message_to_client}

    @contextmanager
    def wait(self, correlation_id: str) -> Iterator[asyncio.Future[MessageExt]]:
        """Register a request for the duration of a `with` block; yield a future of its reply.

        Raises:
            TooManyRequestsError: `waiting_max` requests wait already.
        """
        if len(self._waiting) >= self._waiting_max:
            raise TooManyRequestsError(
                f"{self._waiting_max} requests wait for replies, the limit requests_waiting_max"
            )
        reply: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]
            if reply.done() and not reply.cancelled():
                # Marked as retrieved: the caller may have stopped waiting before it was set.
                reply.exception()

    def on_push_reply_message_to_client(self, request: Request) -> RemotingCommand:
        """Serve 326: complete the request that waits for the reply.

        A reply without a waiting request is accepted and dropped: the request has timed out, or it
        was delivered twice and has been answered before.
        """
        message = reply_of(request.command, self._clock.now_ms())
        correlation_id = message.properties.get(names.CORRELATION_ID, "")
        reply = self._waiting.get(correlation_id)
        if reply is None or reply.done():
            log.debug("reply.unexpected correlation=%s from=%s", correlation_id, message.born_host)
        else:
            reply.set_result(message)
        return response(request.command, ResponseCode.SUCCESS)

    def fail_all(self) -> None:
        """Fail all waiting requests, since no reply can arrive any more."""
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(
                    ConnectionLostError("the producer closed before the reply arrived")
                )


def reply_of(command: RemotingCommand, now_ms: int) -> MessageExt:
    """Return the message of a request 326.

    The request does not contain the offsets of the message: they are 0 in the result.

    Raises:
        MalformedHeaderError: a field is missing or has a bad value.
        MalformedMessageError: the body cannot be decompressed, or not within `REPLY_BYTES_MAX`.
        CodecMissingError: the package that decompresses it is not installed.
    """
    header = command.header(ReplyMessageRequestHeader)
    body, sys_flag = command.body, header.sys_flag
    if sys_flag & COMPRESSED:
        body = decompress(body, sys_flag, size_max=REPLY_BYTES_MAX)
        sys_flag &= ~COMPRESSED
    properties = decode_properties((header.properties or "").encode(errors="replace"))
    properties[names.ARRIVE_TIME] = str(now_ms)
    return MessageExt(
        topic=header.topic,
        body=body,
        properties=properties,
        flag=header.flag,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        sys_flag=sys_flag,
        born_at_ms=header.born_timestamp,
        born_host=_host(header.born_host),
        store_at_ms=header.store_timestamp,
        store_host=_host(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        store_size=0,
        body_crc=0,
    )


def _host(text: str) -> Host:
    if not text:
        return _NO_HOST
    try:
        return parse_address(text, 0)
    except ConfigError as error:
        raise MalformedHeaderError(f"a reply's host: {error}") from None
