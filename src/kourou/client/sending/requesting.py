"""Request and reply by messages: a producer sends a request, and a consumer replies to it.

    reply = await producer.request(Message("Prices", b"17"), timeout_ms=2_000)

    async def answer(question: MessageExt) -> None:
        await producer.reply(question, b"4.20")

A request is a message with three properties: the client id of the requester (REPLY_TO_CLIENT), a
correlation id (CORRELATION_ID) and a time to live (TTL). The reply is sent to the reply topic of
the cluster that stored the request, and that topic's broker pushes it to the requester. The broker
knows the requester only by its heartbeats, so a request is sent after a heartbeat to all brokers
that may receive the reply.

Source: DefaultMQProducerImpl.request, MessageUtil.createReplyMessage, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kourou.client.calls_send import Outgoing, check_message, encode_message
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, check_timeout
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.awaited_replies import AwaitedReplies
from kourou.client.sending.queue_choice import QueueChoice, QueueSelector
from kourou.client.sending.sender import Sender
from kourou.errors import (
    KourouError,
    NotARequestError,
    RemoteSystemError,
    ReplyTimeoutError,
    TransportError,
)
from kourou.model import properties as names
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, TopicRoute
from kourou.model.topic import reply_topic

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
