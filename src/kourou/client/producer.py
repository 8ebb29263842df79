"""Producer: sends messages, and tries again until the broker has them or the time is up."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Final

from kourou.client.calls_send import (
    Outgoing,
    check_batch,
    check_message,
    encode_message,
    encode_messages,
    send_command,
    send_message,
    with_compressed_body,
)
from kourou.client.config import ProducerConfig
from kourou.client.in_flight import InFlight, UnderWay
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import Lifetime
from kourou.client.queue_choice import RoundRobin
from kourou.client.retrying import Deadline, try_until
from kourou.client.send_receipt import Durability, SendReceipt, SendStatus
from kourou.errors import KourouError, UsageError
from kourou.model.message import Message
from kourou.model.msgid import UniqueIds
from kourou.model.queue import MessageQueue
from kourou.model.route import publish_queues
from kourou.model.topic import check_client_group
from kourou.protocol.command import RemotingCommand
from kourou.protocol.compression import compress
from kourou.remoting.runtime import Runtime

__all__ = ["Durability", "Producer", "SendReceipt", "SendStatus"]

log = logging.getLogger(__name__)

_OFFLOAD_COMPRESSION_BYTES: Final = 256 * 1024
"""Bodies above this, some milliseconds of zlib, are compressed off the event loop."""


class Producer(Lifetime):
    """Sends messages to topics, each to the next of the topic's queues in turn.

    Delivery is at least once. When an answer is lost, the message is sent again, and both copies
    may be stored; they have the same `msg_id`. What raises may be stored too, unless the error is a
    `UsageError`. Messages sent one after the other to one queue are stored in that order.

        async with Producer("orders", "localhost:9876") as producer:
            receipt = await producer.send(Message("OrderPlaced", b"..."))

    Producers of one group may live in one process, and one producer may serve many tasks of its
    event loop.

    Args:
        group: names what sends, in brokers' lists of their clients.
        namesrv_addr: `host:port`, or several joined by `;`.
        config: limits and timeouts.
        runtime: the outside world, for tests; None for the real one.

    Raises:
        InvalidGroupError, ConfigError: an argument is no valid name or address.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: str,
        *,
        config: ProducerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        check_client_group(group)
        self.group = group
        self._config = config or ProducerConfig()
        auto_create = self._config.auto_create_topic
        self._instance = ClientInstance(
            namesrv_addr,
            self._config,
            runtime,
            kind="producer",
            producer_group=group,
            auto_create_queue_nums=self._config.default_topic_queue_nums if auto_create else None,
        )
        rng = self._instance.runtime.random
        self._ids = UniqueIds(self._instance.ip, os.getpid(), rng.getrandbits(32))
        self._choices: dict[str, RoundRobin] = {}
        self._in_flight: InFlight | None = None
        self._under_way = UnderWay()
        self._sending: set[asyncio.Task[SendReceipt]] = set()

    @property
    def client_id(self) -> str:
        """What brokers call this client."""
        return self._instance.client_id

    async def start(self) -> None:
        """Begin to work; no server is asked for anything before the first message.

        Raises:
            ClosedError: it was started before.
        """
        self._instance.start()
        config = self._config
        self._in_flight = InFlight(config.in_flight_messages_max, config.in_flight_bytes_max)

    async def close(self) -> None:
        """Wait for all messages under way, at most until their timeouts, and disconnect.

        From now on everything else answers ClosedError. Cancelling ends the wait: what was under
        way may be stored or not. Closing twice is harmless.
        """
        if not self._instance.stop():
            await self._instance.wait_ended()
            return
        assert self._in_flight is not None, "it was started"
        try:
            await self._in_flight.wait_empty()
            await self._under_way.wait_empty()
        finally:
            for task in list(self._sending):
                task.cancel()
            await self._instance.close()

    async def send(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
    ) -> SendReceipt:
        """Send one message and return when the broker has stored it.

        Failures of the network, of a broker that restarts or is busy, and stale routes are tried
        again, on another broker where there is one, until the timeout. Cancelling leaves the
        message unsent or sent, never half of it.

        Args:
            message: what to send.
            timeout_ms: for everything together; None for `send_timeout_ms`.
            queue: send it there and nowhere else.

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
        outgoing = self._encode(message, queue)
        return await self._send(outgoing, timeout_ms, queue)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic as one request; all are stored, or none.

        Args:
            messages: at least one; together at most `max_message_size_bytes`, without delay.
            timeout_ms: as in `send`.
            queue: as in `send`.

        Returns:
            A receipt for each message, in order; they lie side by side in one queue.

        Raises:
            UsageError, TransportError, RemoteError: as `send`, for all of them together.
        """
        self._instance.check_open()
        check_batch(messages, self._config)
        _check_queue(messages[0].topic, queue)
        now_ms = self._instance.runtime.clock.now_ms()
        msg_ids = [self._ids.next(now_ms) for _ in messages]
        outgoing = encode_messages(messages, msg_ids, self._ids.next(now_ms), self._config)
        with self._under_way:
            return await self._deliver(outgoing, timeout_ms, queue)

    async def submit(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
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
        outgoing = self._encode(message, queue)
        assert self._in_flight is not None, "check_open passed"
        size = len(message.body)
        await self._in_flight.acquire(size)
        try:
            self._instance.check_open()
            task = asyncio.create_task(self._send(outgoing, timeout_ms, queue))
        except BaseException:
            self._in_flight.release(size)
            raise
        self._sending.add(task)
        task.add_done_callback(lambda done: self._end_submitted(done, size))
        return task

    async def flush(self) -> None:
        """Wait until no message given to `submit` is under way; their futures say how it went.

        Ends, as each message has a timeout. Cancelling ends only the wait.

        Raises:
            ClosedError: the producer is closed, or was never started.
        """
        self._instance.check_open()
        assert self._in_flight is not None, "check_open passed"
        await self._in_flight.wait_empty()

    async def send_oneway(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
    ) -> None:
        """Hand one message to the network and ask for no answer: it may be lost without a word.

        Tried once. Returns when it is queued on a connection.

        Raises:
            UsageError: the message or queue is invalid, or the producer closed; it was not sent.
            TransportError: there is no route or no connection; it was not sent.
        """
        self._instance.check_open()
        encoded = self._encode(message, queue)
        with self._under_way:
            outgoing = await self._compress(encoded)
            deadline = self._deadline(timeout_ms)
            target = queue or await self._choose(outgoing.topic, None, deadline)
            address = await self._instance.routes.address(
                target.topic, target.broker_name, deadline.remaining_s()
            )
            command = self._command(outgoing, target, oneway=True)
            await self._instance.pool.oneway(address, command, deadline.remaining_s())

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that `send` chooses from, in its order, freshly looked up.

        Raises:
            NoRouteError, ConnectFailedError, RequestTimeoutError: as `send`.
        """
        self._instance.check_open()
        routes = self._instance.routes
        return publish_queues(topic, await routes.refresh(topic, self._instance.request_timeout_s))

    def _encode(self, message: Message, queue: MessageQueue | None) -> Outgoing:
        check_message(message, self._config)
        _check_queue(message.topic, queue)
        return encode_message(message, self._ids.next(self._instance.runtime.clock.now_ms()))

    async def _compress(self, outgoing: Outgoing) -> Outgoing:
        threshold = self._config.compress_body_over_bytes
        size = len(outgoing.body)
        if threshold is None or size < threshold:
            return outgoing
        level = self._config.compress_level
        if size <= _OFFLOAD_COMPRESSION_BYTES:
            return with_compressed_body(outgoing, compress(outgoing.body, level))
        offload = self._instance.runtime.offload
        return with_compressed_body(outgoing, await offload(compress, outgoing.body, level))

    async def _send(
        self, outgoing: Outgoing, timeout_ms: int | None, queue: MessageQueue | None
    ) -> SendReceipt:
        with self._under_way:
            receipts = await self._deliver(await self._compress(outgoing), timeout_ms, queue)
        return receipts[0]

    async def _deliver(
        self, outgoing: Outgoing, timeout_ms: int | None, queue: MessageQueue | None
    ) -> list[SendReceipt]:
        """Try until the broker has it; each try takes the next queue, on another broker if any."""
        deadline = self._deadline(timeout_ms)
        instance = self._instance
        failed_broker: str | None = None

        async def attempt() -> list[SendReceipt]:
            nonlocal failed_broker
            target = queue or await self._choose(outgoing.topic, failed_broker, deadline)
            failed_broker = target.broker_name
            address = await instance.routes.address(
                target.topic, target.broker_name, deadline.remaining_s()
            )
            return await send_message(
                instance.pool,
                address,
                self._command(outgoing, target),
                outgoing,
                target,
                timeout_s=deadline.within_s(self._config.attempt_timeout_ms),
            )

        def on_failure(error: KourouError) -> None:
            if error.refresh_route:
                instance.routes.refresh_soon(outgoing.topic)

        return await try_until(
            deadline,
            instance.backoff,
            attempt,
            on_failure,
            refused_max=self._config.refused_attempts_max,
        )

    async def _choose(
        self, topic: str, failed_broker: str | None, deadline: Deadline
    ) -> MessageQueue:
        route = await self._instance.routes.get(topic, deadline.remaining_s())
        choice = self._choices.get(topic)
        if choice is None:
            if len(self._choices) >= self._config.routes_max:
                self._choices.clear()
            choice = RoundRobin(topic, self._instance.runtime.random.getrandbits(16))
            self._choices[topic] = choice
        return choice.choose(route, failed_broker)

    def _deadline(self, timeout_ms: int | None) -> Deadline:
        return Deadline(self._config.send_timeout_ms if timeout_ms is None else timeout_ms)

    def _command(
        self, outgoing: Outgoing, queue: MessageQueue, *, oneway: bool = False
    ) -> RemotingCommand:
        return send_command(
            outgoing,
            queue,
            self.group,
            now_ms=self._instance.runtime.clock.now_ms(),
            default_queue_nums=self._config.default_topic_queue_nums,
            oneway=oneway,
        )

    def _end_submitted(self, task: asyncio.Task[SendReceipt], size: int) -> None:
        assert self._in_flight is not None, "the task was started"
        self._sending.discard(task)
        self._in_flight.release(size)


def _check_queue(topic: str, queue: MessageQueue | None) -> None:
    if queue is not None and queue.topic != topic:
        raise UsageError(f"a message to {topic} cannot go to a queue of {queue.topic}")
