"""RowSender: sends the rows of one task in batches, and confirms that each is stored.

Rows of one topic are collected to batches. Rows with a sharding key are collected by queue, and a
queue has at most one of their requests in flight, so that they are stored in their order. Rows with
a delivery time or a body to compress are sent alone, because a batch cannot have them.

Only SEND_OK counts. After another status (10, 11, 12) the messages are stored, but may be lost if
the broker fails. They are sent again under the same unique ids, a few times, before the task fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kourou.client.calls_send import Outgoing, batch_item, encode_batch_of
from kourou.client.config import ProducerConfig
from kourou.client.retrying import Deadline
from kourou.client.send_receipt import SendReceipt, SendStatus
from kourou.client.sending.encoded_producer import EncodedProducer
from kourou.client.sending.queue_choice import queue_of_key
from kourou.errors import KourouError, RemoteError
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_retry_topic
from kourou.protocol.message_batch import entry_size
from kourou.spark.sink_rows import SinkRow
from kourou.spark.stamps import Stamps

BURST_S: Final = 0.1
"""Time in whose messages a limited rate is sent at once, in one batch."""

UNCONFIRMED_SENDS_MAX: Final = 3
"""Sends of messages that are stored, but not with SEND_OK: each stores another copy."""

_UNCONFIRMED_DELAY_S: Final = 0.5
"""Delay after a send without SEND_OK: a replica that lags or a slow disk needs some time."""

_Key = tuple[str, MessageQueue | None]
"""Topic, and the queue of rows with a sharding key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SendLimits:
    """Limits of one task.

    Attributes:
        batch_messages_max: maximum messages of one request.
        batch_bytes_max: size in bytes that completes a batch.
        in_flight_messages_max: maximum messages without an answer.
        in_flight_bytes_max: maximum size of their requests in bytes.
        timeout_ms: for all tries of one request.
        unconfirmed_sends_max: maximum sends of messages that are stored without SEND_OK.
        rate_max: maximum messages a second; None: no limit.
    """

    batch_messages_max: int
    batch_bytes_max: int
    in_flight_messages_max: int
    in_flight_bytes_max: int
    timeout_ms: int
    unconfirmed_sends_max: int = UNCONFIRMED_SENDS_MAX
    rate_max: float | None = None

    @property
    def burst_messages_max(self) -> int:
        """Maximum messages of one request that the rate allows."""
        if self.rate_max is None:
            return self.batch_messages_max
        return min(self.batch_messages_max, max(1, int(self.rate_max * BURST_S)))


@dataclass(slots=True)
class _Batch:
    """Rows to send in one request."""

    rows: list[SinkRow] = field(default_factory=list)
    size: int = 0


@dataclass(slots=True)
class SentRows:
    """Counts of one task.

    Attributes:
        rows: rows stored with SEND_OK.
        body_bytes: total size of their bodies.
        requests: requests that stored them.
        unconfirmed: rows that were sent again, because the answer was not SEND_OK.
    """

    rows: int = 0
    body_bytes: int = 0
    requests: int = 0
    unconfirmed: int = 0


class Pace:
    """Delays messages so that their rate does not exceed a limit, on the event loop's clock.

    Messages that come late leave no claim to a higher rate afterwards.
    """

    def __init__(self, rate_max: float) -> None:
        self._rate_max = rate_max
        self._free_at_s = 0.0

    async def wait(self, messages: int) -> None:
        """Wait until this number of messages may be sent at once."""
        now_s = asyncio.get_running_loop().time()
        at_s = max(self._free_at_s, now_s)
        self._free_at_s = at_s + messages / self._rate_max
        if at_s > now_s:
            await asyncio.sleep(at_s - now_s)


class RowSender:
    """Sends rows by a producer; used as a context, so that no request is left behind.

    Attributes:
        sent: the counts so far.
    """

    def __init__(
        self, producer: EncodedProducer, config: ProducerConfig, limits: SendLimits, stamps: Stamps
    ) -> None:
        self._producer = producer
        self._config = config
        self._limits = limits
        self._pace = None if limits.rate_max is None else Pace(limits.rate_max)
        self._stamps = stamps
        self._open: dict[_Key, _Batch] = {}
        self._queues: dict[str, list[MessageQueue]] = {}
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._messages = self._bytes = 0
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self.sent = SentRows()

    async def add(self, rows: Iterable[SinkRow]) -> None:
        """Add rows, and send all batches that are complete; returns when all are answered.

        Nothing is left in flight, because the caller now waits for Spark outside of the event loop:
        answers would not be read, and their timeouts would pass.

        Raises:
            KourouError: as `finish`.
        """
        for row in rows:
            topic = row.outgoing.topic
            queue = None
            if row.sharding_key is not None:
                queue = queue_of_key(await self._queues_of(topic), row.sharding_key)
            key = (topic, queue)
            if self._is_alone(row):
                if queue is not None:
                    await self._send_open(key)  # earlier rows of the queue
                await self._start(_Batch([row], len(row.outgoing.body)), queue)
                continue
            size = entry_size(batch_item(row.outgoing))
            batch = self._open.get(key)
            if batch is not None and batch.size + size > self._limits.batch_bytes_max:
                await self._send_open(key)
                batch = None
            if batch is None:
                batch = self._open[key] = _Batch()
            batch.rows.append(row)
            batch.size += size
            if len(batch.rows) >= self._limits.burst_messages_max:
                await self._send_open(key)
        await self._wait_below(0, 0)

    async def finish(self) -> None:
        """Send the rest, and wait until every row is stored with SEND_OK.

        Raises:
            KourouError: rows were refused, were stored without SEND_OK, or got no answer in time;
                the text names them.
        """
        for key in list(self._open):
            await self._send_open(key)
        await self._wait_below(0, 0)

    async def cancel(self) -> None:
        """Cancel all requests in flight; their messages may be stored."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        """Return the topic's queues, looked up once a task so that each key keeps its queue."""
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self._producer.queues(topic)
        return queues

    def _is_alone(self, row: SinkRow) -> bool:
        over = self._config.compress_body_over_bytes
        outgoing = row.outgoing
        return (
            row.is_alone
            or (over is not None and len(outgoing.body) >= over)
            or is_retry_topic(outgoing.topic)
        )

    async def _send_open(self, key: _Key) -> None:
        """Start to send the open batch of a key, if there is one."""
        batch = self._open.pop(key, None)
        if batch is not None:
            await self._start(batch, key[1])

    async def _start(self, batch: _Batch, queue: MessageQueue | None) -> None:
        """Start to send a batch as soon as the limits allow it."""
        limits, count = self._limits, len(batch.rows)
        await self._wait_below(
            max(0, limits.in_flight_messages_max - count),
            max(0, limits.in_flight_bytes_max - batch.size),
        )
        if self._pace is not None:
            await self._pace.wait(count)
        self._messages += count
        self._bytes += batch.size
        before = None if queue is None else self._last.get(queue)
        task = asyncio.create_task(self._deliver(batch, queue, before))
        if queue is not None:
            self._last[queue] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(done, batch))

    def _end(self, task: asyncio.Task[None], batch: _Batch) -> None:
        self._tasks.discard(task)
        self._messages -= len(batch.rows)
        self._bytes -= batch.size
        if not task.cancelled() and self._error is None:
            self._error = task.exception()  # a bug; errors of sends are set at once
        self._changed.set()

    async def _wait_below(self, messages: int, size: int) -> None:
        """Wait until at most this much is in flight.

        Raises:
            KourouError: a request has failed.
        """
        while self._error is None and (self._messages > messages or self._bytes > size):
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    async def _deliver(
        self, batch: _Batch, queue: MessageQueue | None, before: asyncio.Task[None] | None
    ) -> None:
        """Send one batch until it is stored with SEND_OK; not before its predecessor has ended."""
        if before is not None and not before.done():
            await asyncio.wait({before})
        if self._error is not None:
            return  # the task fails with it, and nothing may be stored behind a gap
        try:
            await self._send_confirmed(self._encode(batch), queue)
        except KourouError as error:
            if self._error is None:
                self._error = self._located(error, batch)
            return
        self.sent.rows += len(batch.rows)
        self.sent.body_bytes += sum(len(row.outgoing.body) for row in batch.rows)
        self.sent.requests += 1

    def _encode(self, batch: _Batch) -> Outgoing:
        if len(batch.rows) == 1:
            return batch.rows[0].outgoing
        outgoings = [row.outgoing for row in batch.rows]
        return encode_batch_of(outgoings, self._producer.next_id(), self._config)

    async def _send_confirmed(self, outgoing: Outgoing, queue: MessageQueue | None) -> None:
        """Send until the answer is SEND_OK.

        Raises:
            RemoteError: the last allowed send got another status.
            KourouError: as `EncodedProducer.send`.
        """
        deadline = Deadline(self._limits.timeout_ms)
        sends_max = self._limits.unconfirmed_sends_max
        for number in range(1, sends_max + 1):
            left_ms = max(1, int(deadline.remaining_s() * 1000))
            receipts = await self._producer.send(outgoing, queue=queue, timeout_ms=left_ms)
            if receipts[0].status is SendStatus.SEND_OK:
                return
            self.sent.unconfirmed += len(receipts)
            if number == sends_max or deadline.remaining_s() <= _UNCONFIRMED_DELAY_S:
                raise _unconfirmed(receipts[0], number)
            await asyncio.sleep(_UNCONFIRMED_DELAY_S)

    def _located(self, error: KourouError, batch: _Batch) -> KourouError:
        """Return the error with the rows and the topic in its text."""
        rows = self._stamps.describe(batch.rows[0].number, batch.rows[-1].number)
        where = f"{rows} (topic {batch.rows[0].outgoing.topic})"
        if isinstance(error, RemoteError):
            return RemoteError.from_response(error.code, f"{where}: {error.remark}")
        return type(error)(f"{where}: {error}")


def _unconfirmed(receipt: SendReceipt, sends: int) -> RemoteError:
    """Return the error of messages that are stored without SEND_OK."""
    return RemoteError.from_response(
        receipt.status,
        f"broker {receipt.queue.broker_name} has stored the messages, but answered "
        f"{receipt.status.name} to {sends} send{'s' if sends > 1 else ''}: mend its disk or "
        "replica, then run the job again; kourou.spark.dedup removes the copies",
    )
