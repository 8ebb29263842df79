"""Requests and replies: a producer asks by a message, and a consumer of it answers.

    reply = await producer.request(Message("Prices", b"17"), timeout_ms=2_000)

    async def answer(question: MessageExt) -> None:
        await producer.reply(question, b"4.20")

The request is an ordinary message that says in its properties who asked (REPLY_TO_CLIENT), what to
call the answer (CORRELATION_ID) and how long it is of use (TTL). The reply goes to the reply topic
of the cluster that stored the request; its broker hands it to the requester, whom it knows by
heartbeats. So a request leaves only when the brokers by which the reply may come were told.

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
from kourou.client.sending.in_flight import UnderWay
from kourou.client.sending.queue_choice import QueueSelector, Where, place
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
"""Tries of a reply of which brokers say that they do not know the requester."""

_PASSED_BACK: Final[tuple[str, ...]] = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)
_NO_PROPERTIES: Final[Mapping[str, str]] = {}


class Requesting:
    """What a producer asks and answers, beside sending: a part of `Producer`."""

    _instance: ClientInstance
    _config: ProducerConfig
    _sender: Sender
    _under_way: UnderWay
    _replies: AwaitedReplies
    _registrations: Registrations
    _next_id: Callable[[], str]

    async def request(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> MessageExt:
        """Send a message, and return the reply of the consumer that took it.

        Delivery is at least once: a request may be served twice, and the first reply counts. After
        an error it may still be served.

        Args:
            message: what to ask; a delay would only use up the time.
            timeout_ms: until the reply is there; None for `send_timeout_ms`. Told to the consumer
                as the message's TTL.
            queue: as in `send`.
            sharding_key: as in `send`.

        Returns:
            The reply. It says when it came (property ARRIVE_TIME), but not where it is stored.

        Raises:
            ReplyTimeoutError: the broker has the message, but nobody replied in time.
            TooManyRequestsError: `requests_waiting_max` requests wait for replies; it was not sent.
            UsageError, TransportError, RemoteError: the message was not stored; as `send`.
        """
        self._instance.check_open()
        where, message = place(message, queue, sharding_key)
        check_message(message, self._config)
        check_timeout(timeout_ms)
        limit_ms = self._config.send_timeout_ms if timeout_ms is None else timeout_ms
        deadline = Deadline(limit_ms)
        bits = self._instance.runtime.random.getrandbits(128)
        correlation_id = str(uuid.UUID(int=bits, version=4))
        asked = {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: self._instance.client_id,
            names.TTL: str(limit_ms),
        }
        outgoing = encode_message(message, self._next_id(), asked)
        with self._under_way, self._replies.wait(correlation_id) as reply:
            await self._registrations.ensure(message.topic, deadline)
            return await self._ask(outgoing, deadline, where, reply)

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Answer a message that another producer sent by `request`.

        Returns when the requester has the reply, or had it before.

        Args:
            request: the message, as the consumer got it.
            body: the answer, not empty.
            tags: as of a `Message`.
            keys: likewise.
            properties: likewise.
            timeout_ms: as in `send`.

        Raises:
            NotARequestError: the message's sender waits for no reply.
            RemoteSystemError: the requester is not connected to a broker of its cluster any more.
            UsageError, TransportError, RemoteError: as `send`.
        """
        self._instance.check_open()
        check_timeout(timeout_ms)
        topic, back = _way_back(request)
        message = Message(topic, body, tags=tags, keys=keys, properties=properties)
        check_message(message, self._config)
        outgoing = encode_message(message, self._next_id(), back)
        outgoing.is_reply = True
        deadline = Deadline(self._config.send_timeout_ms if timeout_ms is None else timeout_ms)
        where = _brokers_in_turn(request.broker_name)
        with self._under_way:
            for failures in range(1, REPLY_TRIES_MAX):
                try:
                    return (await self._sender.send(outgoing, _left_ms(deadline), where))[0]
                except RemoteSystemError:
                    # It may be connecting again, or be known to another broker of the cluster.
                    delay_s = self._instance.backoff.delay_s(failures)
                    if delay_s >= deadline.remaining_s():
                        raise
                await asyncio.sleep(delay_s)
            return (await self._sender.send(outgoing, _left_ms(deadline), where))[0]

    async def _ask(
        self,
        outgoing: Outgoing,
        deadline: Deadline,
        where: Where,
        reply: asyncio.Future[MessageExt],
    ) -> MessageExt:
        try:
            await self._sender.send(outgoing, _left_ms(deadline), where)
        except TransportError:
            if reply.done():
                return reply.result()  # only the broker's own answer was lost
            raise
        done, _ = await asyncio.wait((reply,), timeout=deadline.remaining_s())
        if not done:
            raise ReplyTimeoutError(
                f"no reply to the message {outgoing.msg_ids[0]} to {outgoing.topic} within "
                f"{deadline.timeout_ms:g} ms: is there a consumer that replies?"
            )
        return reply.result()


class Registrations:
    """Sees to it that the brokers by which replies may come know of the client."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._beating: dict[str, asyncio.Task[bool]] = {}
        self._asked: set[str] = set()  # clusters whose reply topic was looked up

    async def ensure(self, topic: str, deadline: Deadline) -> None:
        """Tell all masters of the topic, and of the cluster's reply topic, that do not know yet.

        A broker that cannot be told is left out: another may hand the reply on.

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
            beating = [self._beat(address) for address in missing]
            await asyncio.wait(beating, timeout=deadline.remaining_s())

    async def _reply_route(self, topic: str, deadline: Deadline) -> TopicRoute | None:
        """Return the route of a reply topic, looked up once; None if there is none."""
        routes = self._instance.routes
        known = routes.known(topic)
        if known is not None or topic in self._asked:
            return known
        self._asked.add(topic)
        try:
            return await routes.get(topic, deadline.remaining_s())
        except KourouError:
            return None

    def _beat(self, address: str) -> asyncio.Task[bool]:
        """Send a heartbeat, the same for all who want one now."""
        task = self._beating.get(address)
        if task is None:
            task = asyncio.create_task(self._instance.heartbeat(address), name=f"beat {address}")
            self._beating[address] = task
            task.add_done_callback(lambda _: self._beating.pop(address))
        return task


def _masters(route: TopicRoute) -> list[str]:
    return [
        broker.broker_addrs[MASTER_ID]
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs
    ]


def _way_back(request: MessageExt) -> tuple[str, dict[str, str]]:
    """Return the topic of replies to a message, and the properties that bring them there.

    Raises:
        NotARequestError: it names no requester.
    """
    properties = request.properties
    missing = [name for name in (names.CLUSTER, *_PASSED_BACK[:2]) if name not in properties]
    if missing:
        raise NotARequestError(
            f"message {request.msg_id} of {request.topic} has no property {missing[0]}: only what "
            "was sent by `request` can be replied to"
        )
    back = {name: properties[name] for name in _PASSED_BACK if name in properties}
    return reply_topic(properties[names.CLUSTER]), {names.MSG_TYPE: names.REPLY_MESSAGE, **back}


def _brokers_in_turn(first: str) -> QueueSelector:
    """Return a selector that takes a queue of another broker each time, of `first` first.

    The requester told the broker that stored its message that it is there.
    """
    taken = 0

    def select(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        nonlocal taken
        one_each = {queue.broker_name: queue for queue in queues}
        ordered = sorted(one_each, key=lambda name: name != first)
        taken += 1
        return one_each[ordered[(taken - 1) % len(ordered)]]

    return select


def _left_ms(deadline: Deadline) -> int:
    return max(0, round(deadline.remaining_s() * 1000))
