"""Traces gathered into messages of the trace topic, by which tools find them again.

The keys of a trace message are the ids and keys of the messages that it tells of.

Source: AsyncTraceDispatcher.java, apache/rocketmq 5.5.0. One difference: what is traced together is
cut at a limit of keys too, where Java's message grows too large and is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kourou.model.message import Message
from kourou.protocol.trace_text import TraceRecord, encode_trace

BODY_BYTES_MAX: Final = 128_000
KEYS_BYTES_MAX: Final = 16_000
"""Half of what properties may take: keys of one message can be as long again."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What is known of one message at one point of its way.

    Attributes:
        topic: the message's: traces of different topics do not share a message.
        keys: its unique id, and its keys.
    """

    topic: str
    record: TraceRecord
    keys: tuple[str, ...]


def trace_messages(traced: Iterable[Traced], trace_topic: str) -> Iterator[Message]:
    """Yield messages that hold all that was traced, in its order within each topic."""
    by_topic: dict[str, list[Traced]] = {}
    for one in traced:
        by_topic.setdefault(one.topic, []).append(one)
    for some in by_topic.values():
        yield from _messages(some, trace_topic)


def _messages(traced: Sequence[Traced], trace_topic: str) -> Iterator[Message]:
    texts: list[bytes] = []
    keys: dict[str, None] = {}
    body_bytes = keys_bytes = 0
    for one in traced:
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
        keys.update(dict.fromkeys(_within(new_keys)))
        body_bytes += len(text)
        keys_bytes += new_bytes
    if texts:
        yield Message(trace_topic, b"".join(texts), keys=tuple(keys))


def _within(keys: Iterable[str]) -> Iterator[str]:
    """Yield the first of a message's keys, which alone may be too many."""
    size = 0
    for key in keys:
        size += len(key.encode(errors="replace")) + 1
        if size > KEYS_BYTES_MAX:
            return
        yield key
