"""Producer: sends messages, with retries until a timeout."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from kourou.auth.credentials import AnyCredentials
from kourou.client.calls_send import (
    Outgoing,
    check_batch,
    check_message,
    encode_batch_of,
    encode_message,
    recalled_id,
)
from kourou.client.config import ProducerConfig, resolve_config
from kourou.client.health import ProducerHealth
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.retrying import Deadline, check_timeout
from kourou.client.send_receipt import Durability, SendReceipt, SendStatus
from kourou.client.sending.batching import Batcher
from kourou.client.sending.in_flight import InFlight, OperationCounter
from kourou.client.sending.queue_choice import (
    QueueChoice,
    QueueSelector,
    resolve_queue_choice,
)
from kourou.client.sending.requesting import AwaitedReplies, Requester
from kourou.client.sending.send_hooks import SendCheck, SendHook, SendHooks
from kourou.client.sending.send_stats import ProducerStats
from kourou.client.sending.send_traces import send_traces
from kourou.client.sending.sender import Sender
from kourou.client.sending.stored_answers import complete_stored
from kourou.errors import InvalidTopicError
from kourou.model.message import Message, MessageExt
from kourou.model.msgid import UniqueIdGenerator
from kourou.model.queue import MessageQueue
from kourou.model.recall_handle import decode_recall_handle
from kourou.model.route import publish_queues
from kourou.model.topic import (
    DEFAULT_PRODUCER_GROUP,
    DLQ_PREFIX,
    check_client_group,
    check_topic,
    is_retry_topic,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request as command_of
from kourou.protocol.compression import compress
from kourou.protocol.sending import RecallMessageRequestHeader
from kourou.remoting.dispatch import Handler
from kourou.remoting.runtime import Runtime

__all__ = ["Durability", "Producer", "SendReceipt", "SendStatus"]

log = logging.getLogger(__name__)

_NO_PROPERTIES: Final[Mapping[str, str]] = {}

_END_TIMEOUT_S: Final = 1.0
"""Time that `close` waits for sends to end after their connections are closed."""


class Producer(Lifetime):
    """Sends messages to topics, by default to the queues of a topic in turn.

    Delivery is at least once. If an answer is lost, the message is sent again, and both copies may
    be stored; they have the same `msg_id`. A message whose send raised may be stored too, unless
    the error is a `UsageError`. Messages sent one after the other to one queue are stored in that
    order. The same holds for messages with one sharding key, as long as the topic's queues do not
    change.

        async with Producer("orders", "localhost:9876") as producer:
            receipt = await producer.send(Message("OrderPlaced", b"..."))

    A process may have several producers of one group, and one producer may be used by many tasks of
    its event loop. A forked process needs a producer of its own.

    Args:
        group: identifies the producer in the client lists of brokers; it has no other effect.
        namesrv_addr: `host:port`, or several joined by `;`; or a URL, `http://host/path`, that
            returns such a text and is read again every two minutes. None: the value of the
            environment variable KOUROU_NAMESRV or NAMESRV_ADDR, else 127.0.0.1:9876.
        credentials: sign each request, for clusters that require it: `Credentials`, or a function
            that returns them, called for each request; see `ClientConfig.credentials`.
        config: limits and timeouts.
        hooks: called before and after each try of a send, or able to forbid it; see
            `kourou.client.sending.send_hooks`.
        runtime: network, clock and randomness, for tests; None: those of the system.

    Raises:
        InvalidGroupError, ConfigError: an argument is not a valid name or address.
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
        self._config = resolve_config(config, ProducerConfig, credentials)
        if self._config.compress_body_over_bytes is not None:
            compress(b"", kind=self._config.compress_type)  # raises at once if the codec is missing
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
            fast_path=complete_stored,
        )
        rng = self._instance.runtime.random
        self._ids = UniqueIdGenerator(self._instance.ip, os.getpid(), lambda: rng.getrandbits(32))
        self._traces = send_traces(self._instance, group)
        self._hooks = SendHooks([*hooks, *self._traces])
        self._hooks.attach(self._instance, group)
        self._operations = OperationCounter()
        self._submitted: set[asyncio.Task[SendReceipt]] = set()

    @property
    def client_id(self) -> str:
        """The client id by which brokers identify this producer."""
        return self._instance.client_id

    async def start(self) -> None:
        """Start the producer; no request is sent before the first message.

        Raises:
            ClosedError: the producer was started before.
            ForkedError: the producer was created by a parent of this process.
            ConfigError: a file named by the `tls` settings cannot be used.
        """
        self._instance.start()
        config = self._config
        self._in_flight = InFlight(config.in_flight_messages_max, config.in_flight_bytes_max)
        self._sender = Sender(self._instance, self.group, config, self._hooks, self._ids)
        self._batcher = Batcher(config, self._send_together)
        self._requester = Requester(
            self._instance, config, self._sender, self._replies, self._next_id
        )

    async def close(self) -> None:
        """Wait for all messages in flight, at most `close_timeout_ms`, and disconnect.

        Lingering messages are sent at once. By default the wait ends with the timeout of the last
        message. Other methods raise ClosedError from the beginning of `close`. Messages that are
        still in flight when the wait ends or is cancelled fail with a `TransportError` and may be
        stored. A second call has no effect, nor has a call in a forked process.
        """
        if not self._instance.stop():
            await self._instance.wait_ended()
            return
        timeout_ms = self._config.close_timeout_ms
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                self._batcher.flush()
                await self._in_flight.wait_empty()
                await self._operations.wait_empty()
        except TimeoutError:
            log.warning("producer.cut_short group=%s messages=%d", self.group, self._count())
        finally:
            await self._instance.close()
            self._replies.fail_all()
            await self._batcher.end(_END_TIMEOUT_S)
            if left := {*self._submitted, *self._sender.fallbacks}:
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

        Until the timeout, the send is retried after network failures, stale routes, and answers of
        a broker that is restarting or busy; if possible, on another broker. After cancellation the
        message is either sent or not sent, never sent in part.

        With `linger_ms`, the message waits up to that time for others and is sent with them as one
        batch, whose messages are all stored or all fail with the same error. The timeout begins
        when the batch is sent.

        Args:
            message: the message.
            timeout_ms: for all tries together; None: `send_timeout_ms`.
            queue: the only queue to use; or a function of the topic's queues and the message that
                returns one of the queues, called before each try. See
                `kourou.client.sending.queue_choice` for some.
            sharding_key: selects the queue by a hash, like Java's SelectMessageQueueByHash: all
                messages with one key are sent to one queue, as long as the topic's queues do not
                change. Also sent as the property `__SHARDINGKEY`.

        Returns:
            Where the message is stored, and how durably.

        Raises:
            UsageError: the message or queue is invalid, or the producer is closed; the message was
                not sent.
            ConnectFailedError: no name server or broker answered; the text names them.
            NoRouteError: the topic does not exist and no broker creates it.
            TransportError: another failure of the network; the message may be stored.
            RemoteError: the broker refused the message; if the cause may be transient, until the
                end of the timeout.
        """
        self._instance.check_open()
        choice: QueueChoice = None
        if queue is not None or sharding_key is not None:
            choice, message = resolve_queue_choice(message, queue, sharding_key)
        attempt = None
        self._operations.add()
        try:
            attempt = self._sender.begin(message, timeout_ms, choice, self._operations)
        finally:
            if attempt is None:
                self._operations.release()
        if attempt is not None:
            try:
                return await attempt
            finally:
                del attempt  # breaks a reference cycle: the exception refers to this frame
        return await self._send(self._encode(message, timeout_ms), timeout_ms, choice)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic as one request; either all or none are stored.

        Args:
            messages: at least one; together at most `max_message_size_bytes`, none delayed. Use
                `kourou.split_batch` to divide a longer list.
            timeout_ms: as in `send`.
            queue: as in `send`; a function is called with the first message.
            sharding_key: as in `send`, for all messages.

        Returns:
            A receipt for each message, in order; their offsets in the queue are consecutive.

        Raises:
            UsageError, TransportError, RemoteError: as `send`, for all messages together.
        """
        self._instance.check_open()
        resolved = [resolve_queue_choice(message, queue, sharding_key) for message in messages]
        check_batch([message for _, message in resolved], self._config)
        outgoings = [self._encode(message, timeout_ms) for _, message in resolved]
        outgoing = encode_batch_of(outgoings, self._next_id(), self._config)
        with self._operations:
            return await self._sender.send(outgoing, timeout_ms, resolved[0][0])

    async def submit(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Start to send a message in the background, and return a future of its receipt.

        Waits while `in_flight_messages_max` messages or `in_flight_bytes_max` bytes are in flight;
        the timeout begins after this wait. The future has the result or exception that `send` would
        have; asyncio logs an exception that is never retrieved. Cancelling the future stops the
        send; the message may be stored nevertheless. Messages that are in flight at the same time
        may be stored in any order.

        Raises:
            UsageError: the message or queue is invalid, or the producer is closed; the message was
                not sent.
        """
        self._instance.check_open()
        choice: QueueChoice = None
        if queue is not None or sharding_key is not None:
            choice, message = resolve_queue_choice(message, queue, sharding_key)
        size, in_flight = len(message.body), self._in_flight
        must_wait = not in_flight.try_acquire(size)
        if must_wait:
            check_message(message, self._config)  # an invalid message is refused without waiting
            check_timeout(timeout_ms)
            await in_flight.acquire(size)
        try:
            if must_wait:
                self._instance.check_open()
            attempt = self._sender.begin(message, timeout_ms, choice, in_flight)
            if attempt is not None:
                return attempt
            outgoing = self._encode(message, timeout_ms)
            task = asyncio.create_task(self._send(outgoing, timeout_ms, choice))
        except BaseException:
            in_flight.release(size)
            raise
        self._submitted.add(task)
        task.add_done_callback(partial(self._end_submitted, size))
        return task

    async def flush(self) -> None:
        """Wait until no message of `submit` is in flight; their futures have the results.

        Lingering messages are sent at once. The wait is bounded by the messages' timeouts.
        Cancelling ends only the wait.

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
        """Send one message without an answer from the broker; its loss is not noticed.

        There are no retries. Returns when the message is queued on a connection.

        Raises:
            UsageError: the message or queue is invalid, or the producer is closed; the message was
                not sent.
            TransportError: there is no route or no connection; the message was not sent.
        """
        self._instance.check_open()
        choice, message = resolve_queue_choice(message, queue, sharding_key)
        outgoing = self._encode(message, timeout_ms)
        with self._operations:
            await self._sender.send_oneway(outgoing, timeout_ms, choice)

    async def request(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | QueueSelector | None = None,
        sharding_key: str | None = None,
    ) -> MessageExt:
        """Send a request message, and return the reply of the consumer that received it.

        Delivery is at least once: a request may be delivered twice, and the first reply is
        returned. After an error the request may still be delivered.

        Args:
            message: the request; a delay would count towards the timeout.
            timeout_ms: time until the reply arrives; None: `send_timeout_ms`. The consumer gets it
                as the message's TTL.
            queue: as in `send`.
            sharding_key: as in `send`.

        Returns:
            The reply. Its property ARRIVE_TIME has the time of its arrival; its offsets are 0.

        Raises:
            ReplyTimeoutError: the broker has stored the request, but no reply arrived in time.
            TooManyRequestsError: `requests_waiting_max` requests wait for replies; the request was
                not sent.
            UsageError, TransportError, RemoteError: the message was not stored; as `send`.
        """
        self._instance.check_open()
        choice, message = resolve_queue_choice(message, queue, sharding_key)
        with self._operations:
            return await self._requester.request(message, timeout_ms, choice)

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
        """Reply to a message that another producer sent by `request`.

        Returns when the requester has received the reply, now or from an earlier call.

        Args:
            request: the message as consumed.
            body: the body of the reply, not empty.
            tags: as in `Message`.
            keys: as in `Message`.
            properties: as in `Message`.
            timeout_ms: as in `send`.

        Raises:
            NotARequestError: the message was not sent by `request`.
            RemoteSystemError: the requester is no longer connected to a broker of its cluster.
            UsageError, TransportError, RemoteError: as `send`.
        """
        self._instance.check_open()
        with self._operations:
            return await self._requester.reply(
                request, body, timeout_ms, tags=tags, keys=keys, properties=properties
            )

    async def recall(self, topic: str, handle: str, *, timeout_ms: int | None = None) -> str:
        """Cancel a scheduled message that is not delivered yet.

        The broker must allow it (`recallMessageEnable`; by default enabled in Kourou, disabled in
        Java). After this method has returned, Kourou's brokers do not deliver the message. Java's
        brokers also answer with success if the message was already delivered or recalled.

        Args:
            topic: the topic of the message.
            handle: `SendReceipt.recall_handle`.
            timeout_ms: for all tries together; None: `send_timeout_ms`.

        Returns:
            The unique id of the message.

        Raises:
            UsageError: the handle or the topic is invalid, or the producer is closed.
            NoPermissionError: the broker does not allow it.
            RemoteError: as `send`; with code 604 if the handle is of another topic, or the delivery
                time of the message has passed.
            TransportError: as `send`; the message may have been recalled.
            FlushDiskTimeoutError: the broker has stored the recall, but its sync did not end in
                time (a TransportError if the next try got no answer). The message is delivered only
                if the broker's machine fails before the sync. The call can be repeated safely.
        """
        self._instance.check_open()
        check_topic(topic)
        if is_retry_topic(topic) or topic.startswith(DLQ_PREFIX):
            raise InvalidTopicError(f"topic {topic} has no scheduled messages to recall")
        decoded = decode_recall_handle(handle)
        broker = decoded.broker_name
        check_timeout(timeout_ms)
        limit_ms = self._config.send_timeout_ms if timeout_ms is None else timeout_ms
        header = RecallMessageRequestHeader(topic, handle, self.group, broker_name=broker)

        async def call(address: str, deadline: Deadline) -> str:
            command = command_of(RequestCode.RECALL_MESSAGE, header)
            answer = await self._instance.pool.request(address, command, deadline.remaining_s())
            for traces in self._traces:
                traces.recalled(self.group, topic, decoded.unique_id, answer)
            return recalled_id(answer, broker)

        error: BaseException | None = None
        try:
            return await self._instance.call_broker(MessageQueue(topic, broker, 0), limit_ms, call)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._hooks.recalled(topic, decoded.unique_id, error)

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """Look up and return the queues that `send` chooses from, in its order.

        Raises:
            NoRouteError, ConnectFailedError, RequestTimeoutError: as `send`.
        """
        self._instance.check_open()
        routes = self._instance.routes
        return publish_queues(topic, await routes.refresh(topic, self._instance.request_timeout_s))

    def stats(self) -> ProducerStats:
        """Return the totals of sends, and rates of the last minute; without one-way sends.

        Raises:
            ClosedError: the producer is closed, or was never started.
        """
        self._instance.check_open()
        return self._sender.stats.snapshot(asyncio.get_running_loop().time())

    def health(self) -> ProducerHealth:
        """Return whether the name servers and brokers answered the last requests.

        No request is sent for it: problems become visible within the intervals of route refresh and
        heartbeats. Can be called before `start` and after `close`.

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

    async def _send(
        self, outgoing: Outgoing, timeout_ms: int | None, choice: QueueChoice
    ) -> SendReceipt:
        with self._operations:
            if not self._batcher.accepts(outgoing.messages[0]):
                return (await self._sender.send(outgoing, timeout_ms, choice))[0]
            if callable(choice):
                limit_ms = self._config.send_timeout_ms if timeout_ms is None else timeout_ms
                choice = await self._sender.choose(outgoing, choice, Deadline(limit_ms))
            return await self._batcher.send(outgoing, choice, timeout_ms)

    async def _send_together(
        self, outgoings: Sequence[Outgoing], queue: MessageQueue | None, timeout_ms: int | None
    ) -> list[SendReceipt]:
        """Send messages that have lingered as one batch; a single one as a plain message."""
        if len(outgoings) == 1:
            outgoing = outgoings[0]
        else:
            outgoing = encode_batch_of(outgoings, self._next_id(), self._config)
        with self._operations:
            return await self._sender.send(outgoing, timeout_ms, queue)

    def _count(self) -> int:
        """Return the number of messages in flight."""
        return self._sender.stats.snapshot(asyncio.get_running_loop().time()).in_flight

    def _end_submitted(self, size: int, task: asyncio.Task[SendReceipt]) -> None:
        self._submitted.discard(task)
        self._in_flight.release(size)
