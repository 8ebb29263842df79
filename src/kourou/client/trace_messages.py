"""Encoding of traces as messages of the trace topic.

The keys of a trace message are the ids and keys of the traced messages, so that tools find traces
by key.

Source: AsyncTraceDispatcher.java, apache/rocketmq 5.5.0. One difference: traces are also divided
into several messages by the size of their keys; in Java such a message becomes too large and is
lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.model.message import Message
from kourou.protocol.trace_text import TraceRecord, encode_trace

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
    """Yield trace messages that contain all traces, in their order within each topic."""
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
