"""Batches: splitting of message lists, and collection of messages that linger.

A batch costs one request and one sync for many messages. Its messages are stored all together or
not at all.

Source: ProduceAccumulator.java. There, a thread checks all batches periodically; here, each batch
has a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kourou.client.calls_send import Outgoing, batch_item, encode_message
from kourou.client.config import BODY_SIZE_LIMIT_BYTES, MIB, ProducerConfig
from kourou.client.send_receipt import SendReceipt
from kourou.errors import ConfigError, ConnectionLostError, InvalidMessageError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_retry_topic
from kourou.protocol.message_batch import entry_size

BATCH_MESSAGES_MAX: Final = 1_024
"""Maximum messages of a batch: the answer's header has an id of up to 56 characters for each."""

_ID_PLACEHOLDER: Final = "0" * 56
"""A placeholder with the length of the unique id of a producer with an IPv6 address."""

SendBatch = Callable[
    [Sequence[Outgoing], MessageQueue | None, int | None], Awaitable[list[SendReceipt]]
]
"""Sends messages with the same queue (or None) and the same timeout in ms (or None)."""


def split_batch(messages: Sequence[Message], size_max: int = 4 * MIB) -> list[list[Message]]:
    """Split messages, in their order, into batches for `Producer.send_batch`.

        for part in split_batch(messages):
            await producer.send_batch(part)

    Args:
        messages: messages of one topic, as for `send_batch`.
        size_max: maximum size of a batch in bytes; it must not exceed the maximum message size of
            the producer (`max_message_size_bytes`) and of the broker.

    Raises:
        InvalidMessageError: a single message is larger than `size_max`; the text has its index.
        ConfigError: `size_max` is out of range.
    """
    if not 1 <= size_max <= BODY_SIZE_LIMIT_BYTES:
        raise ConfigError(f"size_max is {size_max!r}: allowed are 1 to {BODY_SIZE_LIMIT_BYTES}")
    parts: list[list[Message]] = []
    room = 0
    for index, message in enumerate(messages):
        size = entry_size(batch_item(encode_message(message, _ID_PLACEHOLDER)))
        if size > size_max:
            raise InvalidMessageError(
                f"message {index} takes {size} bytes of a batch, more than size_max ({size_max})"
            )
        if not parts or size > room or len(parts[-1]) == BATCH_MESSAGES_MAX:
            parts.append([])
            room = size_max
        parts[-1].append(message)
        room -= size
    return parts


@dataclass(slots=True)
class _Batch:
    """Messages that wait to be sent as one batch."""

    messages: list[Outgoing] = field(default_factory=list)
    receipts: list[asyncio.Future[SendReceipt]] = field(default_factory=list)
    size: int = 0
    timer: asyncio.TimerHandle | None = None


class _Key(NamedTuple):
    """Attributes that all messages of a batch have in common."""

    topic: str
    queue: MessageQueue | None
    timeout_ms: int | None
    wait_store_ok: bool


class Batcher:
    """Delays messages by up to `linger_ms`, to send several of them as one batch.

    Args:
        config: has `linger_ms`, `batch_bytes_max`, and the limit for compression.
        send: sends one or more messages as one request, and returns a receipt for each.
    """

    def __init__(self, config: ProducerConfig, send: SendBatch) -> None:
        self._linger_s = config.linger_ms / 1000
        self._bytes_max = min(config.batch_bytes_max, config.max_message_size_bytes)
        self._compress_over = config.compress_body_over_bytes
        self._send = send
        self._batches: dict[_Key, _Batch] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def accepts(self, message: Message) -> bool:
        """Return whether a message may be sent in a batch.

        Delayed and large messages, and those with a priority, are sent alone.
        """
        if not self._linger_s or message.is_delayed or is_retry_topic(message.topic):
            return False
        if message.priority is not None:
            return False
        size = len(message.body)
        if self._compress_over is not None and size >= self._compress_over:
            return False  # batches are never compressed
        return size < self._bytes_max

    async def send(
        self, outgoing: Outgoing, queue: MessageQueue | None, timeout_ms: int | None
    ) -> SendReceipt:
        """Send a message for which `accepts` returned True, and return its receipt.

        The timeout begins when the batch is sent. A message that is cancelled before that is not
        sent; one that is cancelled later may be stored.

        Raises:
            KourouError: the error of the batch, the same for all its messages.
        """
        receipt: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        wait_store_ok = outgoing.messages[0].wait_store_ok
        self._add(_Key(outgoing.topic, queue, timeout_ms, wait_store_ok), outgoing, receipt)
        return await receipt

    def flush(self) -> None:
        """Send all waiting messages."""
        for key in list(self._batches):
            self._release(key)

    async def end(self, timeout_s: float) -> None:
        """Wait for the batches in flight, and cancel those that are not done after `timeout_s`."""
        self.flush()
        if self._sending:
            await asyncio.wait(self._sending, timeout=timeout_s)
        for task in list(self._sending):
            task.cancel()

    def _add(self, key: _Key, outgoing: Outgoing, receipt: asyncio.Future[SendReceipt]) -> None:
        size = entry_size(batch_item(outgoing))
        batch = self._batches.get(key)
        if batch is not None and batch.size + size > self._bytes_max:
            self._release(key)
            batch = None
        if batch is None:
            batch = self._batches[key] = _Batch()
            loop = asyncio.get_running_loop()
            batch.timer = loop.call_later(self._linger_s, self._release, key)
        batch.messages.append(outgoing)
        batch.receipts.append(receipt)
        batch.size += size
        if batch.size >= self._bytes_max or len(batch.messages) == BATCH_MESSAGES_MAX:
            self._release(key)

    def _release(self, key: _Key) -> None:
        """Send a batch, without the messages that were cancelled meanwhile."""
        batch = self._batches.pop(key)
        if batch.timer is not None:
            batch.timer.cancel()
        waiting = [
            (outgoing, receipt)
            for outgoing, receipt in zip(batch.messages, batch.receipts, strict=True)
            if not receipt.cancelled()
        ]
        if waiting:
            task = asyncio.create_task(self._run(waiting, key), name=f"batch to {key.topic}")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _run(
        self,
        waiting: Sequence[tuple[Outgoing, asyncio.Future[SendReceipt]]],
        key: _Key,
    ) -> None:
        try:
            outgoings = [outgoing for outgoing, _ in waiting]
            receipts = await self._send(outgoings, key.queue, key.timeout_ms)
        except asyncio.CancelledError:
            self._fail(
                waiting, ConnectionLostError("the producer closed before the answer arrived")
            )
            raise
        except Exception as error:  # noqa: BLE001 - passed on to the waiting callers
            self._fail(waiting, error)
            return
        for (_, future), receipt in zip(waiting, receipts, strict=True):
            if not future.done():
                future.set_result(receipt)

    def _fail(
        self,
        waiting: Sequence[tuple[Outgoing, asyncio.Future[SendReceipt]]],
        error: Exception,
    ) -> None:
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
