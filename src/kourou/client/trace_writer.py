"""Writes a client's traces to the trace topic, in the background and by connections of its own.

Traces wait in a bounded queue. Traces that find the queue full are dropped and counted, and so are
those that the brokers do not store within `SEND_TIMEOUT_MS`. A client never waits for its traces,
except for up to `CLOSE_TIMEOUT_S` when it closes.

Source: AsyncTraceDispatcher.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kourou.client.calls_send import (
    Outgoing,
    encode_message,
    send_command,
    send_message,
    with_compressed_body,
)
from kourou.client.config import ClientConfig
from kourou.client.instance import ClientInstance
from kourou.client.retrying import Deadline, try_until
from kourou.client.send_receipt import SendReceipt
from kourou.errors import KourouError, NoRouteError
from kourou.model.message import Message
from kourou.model.msgid import UniqueIdGenerator
from kourou.model.route import publish_queues
from kourou.protocol.compression import CompressionType, compress
from kourou.protocol.trace_text import TraceRecord, encode_trace

log = logging.getLogger(__name__)

WAITING_MAX: Final = 2_048
"""Maximum number of sends or listener calls whose traces wait to be written."""

FLUSH_INTERVAL_S: Final = 5.0
SEND_TIMEOUT_MS: Final = 5_000
CLOSE_TIMEOUT_S: Final = 3.0
"""Time for which a closing client waits for the remaining traces."""

_QUEUE_NUMS: Final = 4
"""Queues of a trace topic that is created automatically by its first message."""

_COMPRESS_BYTES: Final = 4_096
_LEVEL: Final = 5
_number: Final = itertools.count(1)


BODY_BYTES_MAX: Final = 128_000
KEYS_BYTES_MAX: Final = 16_000
"""Limit of the keys of a trace message: about half of the limit of all its properties."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """The trace of one message at one step, such as a send.

    Attributes:
        topic: the topic of the message; traces of different topics do not share a trace message.
        keys: the unique id and the keys of the message.
    """

    topic: str
    record: TraceRecord
    keys: tuple[str, ...]


def trace_messages(entries: Iterable[TraceEntry], trace_topic: str) -> Iterator[Message]:
    """Yield trace messages that contain all traces, in their order within each topic.

    The keys of a trace message are the ids and keys of the traced messages, so that tools find
    traces by key. Unlike in Java, traces are also divided into several messages by the size of
    their keys; in Java such a message becomes too large and is lost.
    """
    by_topic: dict[str, list[TraceEntry]] = {}
    for one in entries:
        by_topic.setdefault(one.topic, []).append(one)
    for topic_entries in by_topic.values():
        yield from _messages(topic_entries, trace_topic)


def _messages(entries: Sequence[TraceEntry], trace_topic: str) -> Iterator[Message]:
    texts: list[bytes] = []
    keys: dict[str, None] = {}
    body_bytes = keys_bytes = 0
    for one in entries:
        text = encode_trace(one.record).encode(errors="replace")
        new_keys = [key for key in dict.fromkeys(one.keys) if key not in keys]
        new_bytes = sum(len(key.encode(errors="replace")) + 1 for key in new_keys)
        is_full = body_bytes + len(text) > BODY_BYTES_MAX or keys_bytes + new_bytes > KEYS_BYTES_MAX
        if texts and is_full:
            yield Message(trace_topic, b"".join(texts), keys=tuple(keys))
            texts, keys, body_bytes, keys_bytes = [], {}, 0, 0
            new_keys = list(dict.fromkeys(one.keys))
            new_bytes = sum(len(key.encode(errors="replace")) + 1 for key in new_keys)
        texts.append(text)
        keys.update(dict.fromkeys(_limited_keys(new_keys)))
        body_bytes += len(text)
        keys_bytes += new_bytes
    if texts:
        yield Message(trace_topic, b"".join(texts), keys=tuple(keys))


def _limited_keys(keys: Iterable[str]) -> Iterator[str]:
    """Yield the first keys, up to `KEYS_BYTES_MAX`: the keys of a single message may exceed it."""
    size = 0
    for key in keys:
        size += len(key.encode(errors="replace")) + 1
        if size > KEYS_BYTES_MAX:
            return
        yield key


class TraceWriter:
    """Queues and writes the traces of one client.

    Args:
        client: the traced client; its name servers and settings are used.
        group: the group of the client.
        kind: PRODUCE or CONSUME.

    Attributes:
        topic: the trace topic.
        dropped: number of dropped traces.
    """

    def __init__(self, client: ClientInstance, group: str, kind: str) -> None:
        config: ClientConfig = replace(client.config, instance_name=None, namespace="")
        self.topic = config.trace_topic
        self.dropped = 0
        self._batch_max = config.trace_batch_max
        self._group = f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_number)}"
        self._instance = ClientInstance(
            ";".join(client.namesrv_addresses),
            config,
            client.runtime,
            kind="trace writer",
            producer_group=self._group,
            auto_create_queue_nums=_QUEUE_NUMS,
        )
        rng = client.runtime.random
        self._ids = UniqueIdGenerator(self._instance.ip, os.getpid(), lambda: rng.getrandbits(32))
        self._waiting: deque[tuple[TraceEntry, ...]] = deque()
        self._is_closing = False
        self._is_failing = False
        self._next_queue = rng.getrandbits(16)

    def now_ms(self) -> int:
        """Return the time for a trace, in epoch milliseconds."""
        return self._instance.runtime.clock.now_ms()

    def next_id(self) -> str:
        """Return a unique id that correlates the traces before and after a listener call."""
        return self._ids.next(self.now_ms())

    def put(self, entries: Iterable[TraceEntry]) -> None:
        """Queue the traces of one send, or of the beginning or end of one listener call."""
        batch = tuple(entries)
        if not batch:
            return
        if len(self._waiting) >= WAITING_MAX or self._is_closing:
            self._drop(len(batch), "the queue of traces is full")
            return
        self._waiting.append(batch)
        if len(self._waiting) >= self._batch_max:
            self._wake.set()

    def start(self) -> None:
        """Start writing."""
        self._wake = asyncio.Event()
        self._instance.start()
        self._task = self._instance.tasks.start(self._run, "traces")

    async def close(self) -> None:
        """Write the remaining traces within `CLOSE_TIMEOUT_S`, drop the rest, and disconnect."""
        if self._instance.is_new:
            return
        self._is_closing = True
        self._wake.set()
        await asyncio.wait((self._task,), timeout=CLOSE_TIMEOUT_S)
        if self._waiting:
            self._drop(sum(map(len, self._waiting)), "the client closed")
            self._waiting.clear()
        self._instance.stop()
        await self._instance.close()

    def abort(self) -> None:
        """Stop at once; the remaining traces are lost."""
        self._is_closing = True
        self._instance.abort()

    async def _run(self) -> None:
        while not self._is_closing:
            try:
                async with asyncio.timeout(FLUSH_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self._flush()
        await self._flush()

    async def _flush(self) -> None:
        """Write all queued traces."""
        batch = [one for entries in self._waiting for one in entries]
        self._waiting.clear()
        for message in trace_messages(batch, self.topic):
            try:
                await self._send(message)
            except KourouError as error:
                self._drop(1, str(error))
            except Exception:
                log.exception("trace.broken")
                self._drop(1, "internal error")
            else:
                self._is_failing = False

    async def _send(self, message: Message) -> None:
        instance = self._instance
        outgoing = encode_message(message, self.next_id())
        if len(outgoing.body) >= _COMPRESS_BYTES:
            body = await instance.runtime.offload(compress, outgoing.body, _LEVEL)
            outgoing = with_compressed_body(outgoing, body, CompressionType.ZLIB)
        deadline = Deadline(SEND_TIMEOUT_MS)

        async def attempt() -> list[SendReceipt]:
            return await self._try(outgoing, deadline)

        def on_failure(error: KourouError) -> None:
            instance.routes.on_failure(self.topic, error)

        await try_until(deadline, instance.backoff, attempt, on_failure)

    async def _try(self, outgoing: Outgoing, deadline: Deadline) -> list[SendReceipt]:
        """Send to the next of the topic's queues."""
        instance = self._instance
        route = await instance.routes.get(self.topic, deadline.remaining_s())
        queues = publish_queues(self.topic, route)
        if not queues:
            raise NoRouteError(f"the trace topic {self.topic} has no writable queue")
        self._next_queue += 1
        queue = queues[self._next_queue % len(queues)]
        address = await instance.routes.address(
            self.topic, queue.broker_name, deadline.remaining_s()
        )
        command = send_command(outgoing, queue, self._group, self.now_ms(), _QUEUE_NUMS)
        timeout_s = deadline.remaining_s()
        return await send_message(
            instance.pool, address, command, outgoing, queue, timeout_s=timeout_s
        )

    def _drop(self, count: int, reason: str) -> None:
        """Count dropped traces, and log the first drop after each success."""
        self.dropped += count
        if not self._is_failing:
            self._is_failing = True
            log.warning("trace.dropped topic=%s reason=%s", self.topic, reason)
