"""Producer: sends messages, and tries again until the broker has them or the time is up."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from kourou.auth.credentials import AnyCredentials
from kourou.client.calls_send import (
    Outgoing,
    check_batch,
    check_message,
    encode_batch_of,
    encode_message,
)
from kourou.client.config import ProducerConfig, given_config
from kourou.client.health import ProducerHealth
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.retrying import Deadline, check_timeout
from kourou.client.send_receipt import Durability, SendReceipt, SendStatus
from kourou.client.sending.awaited_replies import AwaitedReplies
from kourou.client.sending.batching import Batcher
from kourou.client.sending.in_flight import InFlight, UnderWay
from kourou.client.sending.queue_choice import (
    QueueSelector,
    Where,
    place,
)
from kourou.client.sending.recalling import Recalling
from kourou.client.sending.requesting import Registrations, Requesting
from kourou.client.sending.send_hooks import SendCheck, SendHook, SendHooks
from kourou.client.sending.send_stats import ProducerStats
from kourou.client.sending.send_traces import send_traces
from kourou.client.sending.sender import Sender
from kourou.client.sending.stored_answers import take_stored
from kourou.model.message import Message
from kourou.model.msgid import UniqueIds
from kourou.model.queue import MessageQueue
from kourou.model.route import publish_queues
from kourou.model.topic import DEFAULT_PRODUCER_GROUP, check_client_group
from kourou.protocol.compression import compress
from kourou.remoting.dispatch import Handler
from kourou.remoting.runtime import Runtime

__all__ = ["Durability", "Producer", "SendReceipt", "SendStatus"]

log = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 1.0
"""How long `close` waits for sends to notice that their connections are closed."""


class Producer(Requesting, Recalling, Lifetime):
    """Sends messages to topics, each to the next of the topic's queues in turn.

    Delivery is at least once. When an answer is lost, the message is sent again, and both copies
    may be stored; they have the same `msg_id`. What raises may be stored too, unless the error is a
    `UsageError`. Messages sent one after the other to one queue are stored in that order, and so
    are those with one sharding key, as long as the topic's queues stay the same.

        async with Producer("orders", "localhost:9876") as producer:
            receipt = await producer.send(Message("OrderPlaced", b"..."))

    Producers of one group may live in one process, and one producer may serve many tasks of its
    event loop. A process forked from this one needs a producer of its own.

    Args:
        group: names what sends, in brokers' lists of their clients; of no other use.
        namesrv_addr: `host:port`, or several joined by `;`; or a web address, `http://host/path`,
            that answers with such a text, and is asked again each two minutes. None: what the
            environment's KOUROU_NAMESRV or NAMESRV_ADDR names, else 127.0.0.1:9876.
        credentials: sign each request, for clusters that want that: `Credentials`, or a function
            that returns them, called for each request; see `ClientConfig.credentials`.
        config: limits and timeouts.
        hooks: told of each try of each send, or asked whether it may leave; see
            `kourou.client.sending.send_hooks`.
        runtime: the outside world, for tests; None for the real one.

    Raises:
        InvalidGroupError, ConfigError: an argument is no valid name or address.
        CodecMissingError: the package of `compress_type` is not installed.
    """

    def __init__(
        self,
        group: str = DEFAULT_PRODUCER_GROUP,
        namesrv_addr: str | None = None,
        *,
        credentials: AnyCredentials | None = None,
        config: ProducerConfig | None = None,
        hooks: Sequence[SendHook | SendCheck] = (),
        runtime: Runtime | None = None,
    ) -> None:
        check_client_group(group)
        self.group = group
        self._config = given_config(config, ProducerConfig, credentials)
        if self._config.compress_body_over_bytes is not None:
            compress(b"", kind=self._config.compress_type)  # a missing codec is told at once
        auto_create = self._config.auto_create_topic
        runtime = runtime or Runtime.system()
        self._replies = AwaitedReplies(self._config.requests_waiting_max, runtime.clock)
        self._instance = ClientInstance(
            namesrv_addr,
            self._config,
            runtime,
            kind="producer",
            producer_group=group,
            handlers=self._handlers(),
            auto_create_queue_nums=self._config.default_topic_queue_nums if auto_create else None,
            fast_path=take_stored,
        )
        rng = self._instance.runtime.random
        self._ids = UniqueIds(self._instance.ip, os.getpid(), lambda: rng.getrandbits(32))
        self._traces = send_traces(self._instance, group)
        self._hooks = SendHooks([*hooks, *self._traces])
        self._under_way = UnderWay()
        self._submitted: set[asyncio.Task[SendReceipt]] = set()

    @property
    def client_id(self) -> str:
        """What brokers call this client."""
        return self._instance.client_id

    async def start(self) -> None:
        """Begin to work; no server is asked for anything before the first message.

        Raises:
            ClosedError: it was started before.
            ForkedError: it was made by the process from which this one was forked.
            ConfigError: a file that `tls` names cannot be used.
        """
        self._instance.start()
        config = self._config
        self._in_flight = InFlight(config.in_flight_messages_max, config.in_flight_bytes_max)
        self._sender = Sender(self._instance, self.group, config, self._hooks, self._ids)
        self._batcher = Batcher(config, self._send_together)
        self._registrations = Registrations(self._instance)

    async def close(self) -> None:
        """Wait for all messages under way, at most `close_timeout_ms`, and disconnect.

        What lingers leaves at once. By default the wait ends with the last message's timeout. From
        now on everything else answers ClosedError. What is under way when the wait ends, or when it
        is cancelled, fails with a `TransportError` and may be stored. Closing twice is harmless. In
        a forked process it does nothing.
        """
        if not self._instance.stop():
            await self._instance.wait_ended()
            return
        timeout_ms = self._config.close_timeout_ms
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                self._batcher.flush()
                await self._in_flight.wait_empty()
                await self._under_way.wait_empty()
        except TimeoutError:
            log.warning("producer.cut_short group=%s messages=%d", self.group, self._count())
        finally:
            await self._instance.close()
            self._replies.fail_all()
            await self._batcher.end(_END_TIMEOUT_S)
            if left := {*self._submitted, *self._sender.handed_over}:
                await asyncio.wait(left, timeout=_END_TIMEOUT_S)

    async def send(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> SendReceipt:
        """Send one message and return when the broker has stored it.

        Failures of the network, of a broker that restarts or is busy, and stale routes are tried
        again, on another broker where there is one, until the timeout. Cancelling leaves the
        message unsent or sent, never half of it.

        With `linger_ms`, the message waits so long for others and leaves with them: all of a batch
        are stored, or fail with the same error. The timeout counts from then on.

        Args:
            message: what to send.
            timeout_ms: for everything together; None for `send_timeout_ms`.
            queue: send it there and nowhere else; or a function of the topic's queues and the
                message that returns one, asked before each try: some are in
                `kourou.client.sending.queue_choice`.
            sharding_key: messages with one key go to one queue, the same that Java's selector by
                hash takes, as long as the topic's queues do not change. Sent along as the property
                `__SHARDINGKEY`.

        Returns:
            Where it is stored, and what that is worth: see `SendReceipt.durability`.

        Raises:
            UsageError: the message or queue is invalid, or the producer closed; it was not sent.
            ConnectFailedError: no name server or broker answered; the text names them.
            NoRouteError: the topic is unknown and no broker creates it.
            TransportError: another failure of the network; it may be stored.
            RemoteError: the broker refused it, to the end of the timeout where that may pass.
        """
        self._instance.check_open()
        where: Where = None
        if queue is not None or sharding_key is not None:
            where, message = place(message, queue, sharding_key)
        attempt = None
        self._under_way.take()
        try:
            attempt = self._sender.begin(message, timeout_ms, where, self._under_way)
        finally:
            if attempt is None:
                self._under_way.release()
        if attempt is not None:
            try:
                return await attempt
            finally:
                del attempt  # an error refers to this frame
        return await self._send(self._encode(message, timeout_ms), timeout_ms, where)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic as one request; all are stored, or none.

        Args:
            messages: at least one; together at most `max_message_size_bytes`, without delay. See
                `kourou.split_batch` for more.
            timeout_ms: as in `send`.
            queue: as in `send`; a function is given the first message.
            sharding_key: as in `send`, of all of them.

        Returns:
            A receipt for each message, in order; they lie side by side in one queue.

        Raises:
            UsageError, TransportError, RemoteError: as `send`, for all of them together.
        """
        self._instance.check_open()
        placed = [place(message, queue, sharding_key) for message in messages]
        check_batch([message for _, message in placed], self._config)
        outgoings = [self._encode(message, timeout_ms) for _, message in placed]
        outgoing = encode_batch_of(outgoings, self._next_id(), self._config)
        with self._under_way:
            return await self._sender.send(outgoing, timeout_ms, placed[0][0])

    async def submit(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Start sending in the background, and return a future of the receipt.

        Waits while `in_flight_messages_max` messages or `in_flight_bytes_max` bytes are under way;
        the timeout counts from when that wait ends. The future gets what `send` returns or raises:
        look at it, or asyncio logs its exception. Cancelling it gives the message up, which may be
        stored all the same. Messages under way together may be stored in any order.

        Raises:
            UsageError: the message or queue is invalid, or the producer closed; it was not sent.
        """
        self._instance.check_open()
        where: Where = None
        if queue is not None or sharding_key is not None:
            where, message = place(message, queue, sharding_key)
        size, in_flight = len(message.body), self._in_flight
        must_wait = not in_flight.take(size)
        if must_wait:
            check_message(message, self._config)  # what is refused need not wait
            check_timeout(timeout_ms)
            await in_flight.acquire(size)
        try:
            if must_wait:
                self._instance.check_open()
            attempt = self._sender.begin(message, timeout_ms, where, in_flight)
            if attempt is not None:
                return attempt
            outgoing = self._encode(message, timeout_ms)
            task = asyncio.create_task(self._send(outgoing, timeout_ms, where))
        except BaseException:
            in_flight.release(size)
            raise
        self._submitted.add(task)
        task.add_done_callback(partial(self._end_submitted, size))
        return task

    async def flush(self) -> None:
        """Wait until no message given to `submit` is under way; their futures say how it went.

        What lingers leaves at once. Ends, as each message has a timeout. Cancelling ends only the
        wait.

        Raises:
            ClosedError: the producer is closed, or was never started.
        """
        self._instance.check_open()
        self._batcher.flush()
        await self._in_flight.wait_empty()

    async def send_oneway(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Hand one message to the network and ask for no answer: it may be lost without a word.

        Tried once, at once. Returns when it is queued on a connection.

        Raises:
            UsageError: the message or queue is invalid, or the producer closed; it was not sent.
            TransportError: there is no route or no connection; it was not sent.
        """
        self._instance.check_open()
        where, message = place(message, queue, sharding_key)
        outgoing = self._encode(message, timeout_ms)
        with self._under_way:
            await self._sender.send_oneway(outgoing, timeout_ms, where)

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that `send` chooses from, in its order, freshly looked up.

        Raises:
            NoRouteError, ConnectFailedError, RequestTimeoutError: as `send`.
        """
        self._instance.check_open()
        routes = self._instance.routes
        return publish_queues(topic, await routes.refresh(topic, self._instance.request_timeout_s))

    def stats(self) -> ProducerStats:
        """Return what was sent so far, and how fast in the last minute; one-way sends aside.

        Raises:
            ClosedError: the producer is closed, or was never started.
        """
        self._instance.check_open()
        return self._sender.stats.snapshot(asyncio.get_running_loop().time())

    def health(self) -> ProducerHealth:
        """Return whether the servers that this producer has to do with answered last.

        Nothing is sent to find out: what is wrong shows within the intervals of route refresh and
        heartbeats. May be asked at any time of the producer's life.

        Raises:
            ForkedError: as `start`.
        """
        problems = tuple(self._instance.problems())
        is_new = self._instance.is_new
        return ProducerHealth(self._instance.is_open, problems, 0 if is_new else self._count())

    def _handlers(self) -> dict[int, Handler]:
        return self._replies.handlers()

    def _encode(self, message: Message, timeout_ms: int | None) -> Outgoing:
        check_message(message, self._config)
        check_timeout(timeout_ms)
        return encode_message(message, self._next_id())

    def _next_id(self) -> str:
        return self._ids.next(self._instance.runtime.clock.now_ms())

    async def _send(self, outgoing: Outgoing, timeout_ms: int | None, where: Where) -> SendReceipt:
        with self._under_way:
            if not self._batcher.takes(outgoing.messages[0]):
                return (await self._sender.send(outgoing, timeout_ms, where))[0]
            if callable(where):
                limit_ms = self._config.send_timeout_ms if timeout_ms is None else timeout_ms
                where = await self._sender.choose(outgoing, where, Deadline(limit_ms))
            return await self._batcher.send(outgoing, where, timeout_ms)

    async def _send_together(
        self, outgoings: Sequence[Outgoing], queue: MessageQueue | None, timeout_ms: int | None
    ) -> list[SendReceipt]:
        """Send what has lingered; a single message as if it had not."""
        if len(outgoings) == 1:
            outgoing = outgoings[0]
        else:
            outgoing = encode_batch_of(outgoings, self._next_id(), self._config)
        with self._under_way:
            return await self._sender.send(outgoing, timeout_ms, queue)

    def _count(self) -> int:
        """Return how many messages are under way."""
        return self._sender.stats.snapshot(asyncio.get_running_loop().time()).in_flight

    def _end_submitted(self, size: int, task: asyncio.Task[SendReceipt]) -> None:
        self._submitted.discard(task)
        self._in_flight.release(size)
