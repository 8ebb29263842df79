"""SimpleConsumer: receives single messages by pop, and acknowledges them one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Literal

from kourou.auth.credentials import AnyCredentials
from kourou.client.calls_pop import MESSAGES_MAX
from kourou.client.config import resolve_config
from kourou.client.consuming.acknowledging.redelivery import DeadLetter, reason_of
from kourou.client.consuming.client_requests import ClientRequests
from kourou.client.consuming.consumer import ObservedConsumer
from kourou.client.consuming.consumer_answers import SimpleAnswers
from kourou.client.consuming.consumer_config import (
    INVISIBLE_RANGE_MS,
    SimpleConsumerConfig,
    with_simple_start,
)
from kourou.client.consuming.membership.subscriptions import subscription_of
from kourou.client.consuming.popping.message_scope import MessageScope
from kourou.client.consuming.popping.receipts import AT_ONCE_MS, Receipts
from kourou.client.consuming.popping.receiver import Receiver
from kourou.client.consuming.popping.renewals import Renewals
from kourou.client.consuming.popping.source_pops import PopTerms
from kourou.client.consuming.popping.unsettled import UnsettledMessages
from kourou.client.health import SimpleConsumerHealth
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.pop_result import PoppedMessage
from kourou.client.retrying import TIMEOUT_MS_MAX
from kourou.errors import UsageError
from kourou.model.group import ConsumeType
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.model.topic import check_client_group, check_topic, is_retry_topic
from kourou.protocol.clients import ConsumerData
from kourou.remoting.runtime import Runtime

__all__ = ["PoppedMessage", "SimpleConsumer"]


RENEW_LIMIT_MS: Final = 3_600_000
"""Default of the time in ms for which a message is renewed: an hour."""

_RECEIVED: Final = {PoppedMessage}

_CLOSE_S: Final = 2.0
"""Seconds that `close` waits for messages to be given back."""


class SimpleConsumer(Lifetime, ObservedConsumer):
    """Receives messages on request, and settles each by itself.

    The broker delivers a message to one member and makes it invisible to the others for a time. If
    the message is not acknowledged within that time, the broker delivers it again, also to other
    members. No queue is assigned: a group may have any number of members, more than the topic has
    queues, and no member waits for a rebalance. Needs brokers of RocketMQ 5 or Kourou.

        consumer = SimpleConsumer("thumbnails", "localhost:9876")
        consumer.subscribe("PhotoUploaded", tags="jpeg || png")
        async with consumer:
            while True:
                for message in await consumer.receive(max_messages=8):
                    async with consumer.message_scope(message, renew_ms=600_000):
                        await shrink(message)

    The scope acknowledges the message, or gives it back if the block raises. Without a scope, call
    `ack`, `give_back` or `dead_letter`, or `ack_all` for many messages at once.

    Messages that the program has received and not settled when the consumer closes stay invisible
    until their time is over. Renewals end with the consumer.

    All methods may be called from any task of the event loop.

    Args:
        group: the consumer group.
        namesrv_addr: `host:port`, or several joined by `;`. None: from the environment variable
            KOUROU_NAMESRV or NAMESRV_ADDR, else 127.0.0.1:9876.
        start: start position of a new group in a queue: "earliest" or "latest". None: as in
            `config`, by default the latest.
        credentials: sign each request, for clusters that require it; see
            `ClientConfig.credentials`.
        config: limits and timeouts.
        runtime: the environment, for tests; None: the real one.

    Raises:
        InvalidGroupError, ConfigError: an argument is not a valid name, address or start.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: str | None = None,
        *,
        start: Literal["earliest", "latest"] | None = None,
        credentials: AnyCredentials | None = None,
        config: SimpleConsumerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        check_client_group(group)
        config = resolve_config(config, SimpleConsumerConfig, credentials)
        self._config = config = with_simple_start(config, start)
        self._subscriptions: dict[str, SubscriptionData] = {}
        requests = ClientRequests(group, config.namespace)
        instance = ClientInstance(
            namesrv_addr,
            config,
            runtime,
            kind="simple consumer",
            consumer=self._consumer_data,
            handlers=requests.handlers(),
            on_route_changed=lambda _: self._receiver.wake(),
        )
        super().__init__(instance, group)
        self._unsettled = UnsettledMessages()
        self._answers = requests.target = SimpleAnswers(
            instance, config, self._subscriptions, self._unsettled, self._stats
        )
        self._receipts = Receipts(instance, group)
        self._renewals = Renewals(self._change)
        self._receiver = Receiver(
            instance,
            group,
            config,
            subscriptions=self._subscriptions,
            receipts=self._receipts,
            unsettled=self._unsettled,
            stats=self._stats,
        )
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the consumer. It sends no request before the first `receive`.

        Raises:
            ClosedError: it was started before.
        """
        self._instance.start()
        self._start_sampling()
        self._answers.begin()

    async def close(self) -> None:
        """End renewals and pending calls, and disconnect.

        Messages that no `receive` has returned are given back. Messages that the program holds stay
        invisible until their time is over. May be called twice.
        """
        is_open = self._instance.is_open
        if is_open:
            await self._give_back_all(self._receiver.close())
        if not self._instance.stop():
            await self._instance.wait_ended()
            return
        self._receiver.close()
        await self._instance.close()

    def abort(self) -> None:
        """End immediately without any request, as a killed process would."""
        self._receiver.close()
        self._instance.abort()

    def subscribe(self, topic: str, tags: str | None = SUB_ALL, *, sql: str | None = None) -> None:
        """Receive messages of a topic; a second call replaces the filter.

        May be called before and after the start.

        All members of a group must have the same subscriptions: a message that the filter of one
        member excludes is consumed for the group.

        Args:
            topic: need not exist yet. Redeliveries are received under this name.
            tags: `*`, or tags joined by `||`.
            sql: instead of tags, an SQL92 expression over properties; see `PushConsumer.subscribe`.
                A broker that cannot parse it refuses the receive.

        Raises:
            UsageError: both expressions are given.
            InvalidTopicError: the topic is not a valid name.
            FilterSyntaxError: the expression does not parse.
            ClosedError: the consumer is closed.
        """
        check_topic(topic)
        if is_retry_topic(topic):
            raise UsageError(
                f"{topic} is a retry topic: subscribe to the topic itself, redeliveries included"
            )
        if not self._instance.is_new:
            self._instance.check_open()
        now_ms = self._instance.runtime.clock.now_ms()
        self._subscriptions[topic] = subscription_of(topic, tags, sql, now_ms)
        self._on_subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a topic; no effect if it is not subscribed."""
        self._subscriptions.pop(topic, None)
        self._on_subscriptions_changed()

    async def receive(
        self,
        max_messages: int = MESSAGES_MAX,
        *,
        invisible_ms: int | None = None,
        wait_ms: int | None = None,
    ) -> list[PoppedMessage]:
        """Return messages of one topic and broker, as soon as there is one; none after `wait_ms`.

        Brokers and topics are read in turn; one without messages, or without an answer, does not
        delay the others. If the call is cancelled while messages arrive, the next one returns
        them.

        Args:
            max_messages: 1 to 32.
            invisible_ms: time in ms until a message that is not settled is delivered again, at
                least 1,000; brokers have a limit of their own. None: the config's.
            wait_ms: time in ms to wait for a message; 0: not at all. None: the config's.

        Raises:
            UsageError: an argument is out of its range, no topic is subscribed, or the consumer is
                not open.
            NoRouteError: no subscribed topic exists after `wait_ms`.
            TransportError: no broker answered.
            RemoteError: all brokers refused: no permission, an unknown expression, no support for
                pops.
        """
        self._instance.check_open()
        config = self._config
        invisible_ms = config.invisible_ms if invisible_ms is None else invisible_ms
        wait_ms = config.wait_ms if wait_ms is None else wait_ms
        _check("max_messages", max_messages, 1, MESSAGES_MAX)
        _check("invisible_ms", invisible_ms, *INVISIBLE_RANGE_MS)
        _check("wait_ms", wait_ms, 0, TIMEOUT_MS_MAX)
        if not self._subscriptions:
            raise UsageError("no topic is subscribed: call subscribe before receive")
        messages = await self._receiver.receive(PopTerms(max_messages, invisible_ms), wait_ms)
        if messages:
            self._report(messages)
        return messages

    # Settling

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message: it is consumed.

        Acknowledging it again has no effect. If its invisible time is over, it may be delivered
        again nevertheless.

        Raises:
            UsageError: the message was not received by a simple consumer, or the consumer is not
                open.
            TransportError: no answer in time; the call may be repeated.
            RemoteError: the broker refused.
        """
        await self._end_renewals((message,))
        await self._receipts.ack(message)
        self._unsettled.settled(message)

    async def ack_all(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages by one request to each broker; much faster than one by one.

        Raises:
            UsageError, TransportError, RemoteError: as `ack`. Some of the messages may be
                acknowledged; the call may be repeated.
        """
        every = list(messages)
        await self._end_renewals(every)
        if every:
            await self._receipts.ack_all(every)
            for message in every:
                self._unsettled.settled(message)

    async def change_invisible(self, message: PoppedMessage, invisible_ms: int) -> None:
        """Have a message delivered again `invisible_ms` from now, and replace its receipt.

        Ends its renewal. Until then, the message can still be settled.

        Args:
            message: as received.
            invisible_ms: 0: as soon as the broker can.

        Raises:
            UsageError, TransportError, RemoteError: as `ack`.
        """
        _check("invisible_ms", invisible_ms, 0, INVISIBLE_RANGE_MS[1])
        await self._end_renewals((message,))
        await self._change(message, invisible_ms)

    async def give_back(self, message: PoppedMessage) -> None:
        """Have a message delivered again at once, which takes the broker up to a few seconds.

        The redelivery counts in its `reconsume_times`.

        Raises:
            UsageError, TransportError, RemoteError: as `ack`.
        """
        await self.change_invisible(message, AT_ONCE_MS)

    async def dead_letter(self, message: PoppedMessage, reason: str = "") -> None:
        """Store a message in `%DLQ%group` and acknowledge it.

        Args:
            message: as received.
            reason: stored with the dead letter by Kourou's brokers.

        Raises:
            UsageError, TransportError, RemoteError: as `ack`. The dead letter may be stored, and
                the message delivered again.
        """
        await self._end_renewals((message,))
        await self._receipts.dead_letter(message, reason_of(DeadLetter(reason)) or None)
        self._unsettled.settled(message)

    def give_back_soon(self, message: PoppedMessage) -> None:
        """Give a message back without waiting for the broker; a failure is logged.

        Raises:
            ClosedError: the consumer is not open.
        """
        self._instance.check_open()
        task = self._instance.tasks.start(
            lambda: self.give_back(message), f"give back {message.msg_id}"
        )
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def renew(
        self,
        message: PoppedMessage,
        *,
        invisible_ms: int | None = None,
        limit_ms: int = RENEW_LIMIT_MS,
    ) -> None:
        """Keep a message invisible in the background while the program works on it.

        The renewal ends when the message is settled or dropped by the program, after `limit_ms`,
        or with the consumer. After a failure it is tried again until the invisible time is over;
        the first failure is logged.

        Args:
            message: as received; no effect if it is renewed already.
            invisible_ms: invisible time in ms of each renewal, at least 1,000; a broker redelivers
                the message after at most this time if the program dies. None: that of its
                `receive`.
            limit_ms: time in ms after which it is no longer renewed.

        Raises:
            UsageError: an argument is out of its range, the consumer is not open, or 10,000
                messages are renewed.
        """
        self._instance.check_open()
        _check_messages((message,))
        if invisible_ms is None:
            invisible_ms = max(message.checkpoint.invisible_ms, INVISIBLE_RANGE_MS[0])
        _check("invisible_ms", invisible_ms, *INVISIBLE_RANGE_MS)
        _check("limit_ms", limit_ms, 1, TIMEOUT_MS_MAX)
        self._renewals.start(self._instance.tasks, message, invisible_ms, limit_ms)

    def message_scope(self, message: PoppedMessage, *, renew_ms: int | None = None) -> MessageScope:
        """Return a context manager for the work on a message, which settles it.

        If the block ends, the message is acknowledged. If it raises `DeadLetter` or `RetryLater`,
        the message is stored as a dead letter or delivered again after that delay (10 s, 30 s, 1
        min ... if it names none), and the program goes on behind the block. After any other
        exception the message is given back, and the exception propagates. When the task is
        cancelled, the message is given back in the background.

        Args:
            message: as received.
            renew_ms: time in ms for which the message is renewed in the background, see `renew`;
                None: it is not.

        Raises:
            UsageError, TransportError, RemoteError: at the end of the block, as `ack`; while the
                block raises, a failed `give_back` is logged.
        """
        _check_messages((message,))
        return MessageScope(self, message, renew_ms)

    def health(self) -> SimpleConsumerHealth:
        """Return the consumer's current health. Sends no request; may be called at any time.

        Raises:
            ForkedError: the consumer belongs to the process from which this one was forked.
        """
        problems = [*self._instance.problems(), *self._receiver.problems()]
        return SimpleConsumerHealth(
            is_open=self._instance.is_open,
            problems=tuple(problems),
            held_messages=self._receiver.late_messages,
            renewals=len(self._renewals),
        )

    async def _change(self, message: PoppedMessage, invisible_ms: int) -> None:
        await self._receipts.change(message, invisible_ms)
        self._unsettled.changed(message)

    async def _end_renewals(self, messages: Iterable[PoppedMessage]) -> None:
        self._instance.check_open()
        _check_messages(messages)
        if self._renewals:
            await asyncio.gather(*map(self._renewals.end, messages))

    async def _give_back_all(self, messages: list[PoppedMessage]) -> None:
        """Give back messages, and wait a little for those that are being given back."""
        for message in messages:
            self.give_back_soon(message)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_CLOSE_S)

    def _on_subscriptions_changed(self) -> None:
        self._receiver.wake()
        if self._instance.is_open:
            self._instance.tasks.start(self._instance.heartbeat_all, "heartbeat to all brokers")

    def _consumer_data(self) -> ConsumerData | None:
        if not self._subscriptions:
            return None
        return ConsumerData(
            self.group,
            consume_type=ConsumeType.POP,
            consume_from_where=self._config.consume_from_where,
            subscriptions=tuple(self._subscriptions.values()),
        )


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} is {value!r}: allowed are {low} to {high}")


def _check_messages(messages: Iterable[PoppedMessage]) -> None:
    if set(map(type, messages)) <= _RECEIVED:  # as nearly always; the loop would take longer
        return
    for message in messages:
        if not isinstance(message, PoppedMessage):
            raise UsageError(
                f"{type(message).__name__} was not received by a simple consumer: pass messages of "
                "SimpleConsumer.receive"
            )
