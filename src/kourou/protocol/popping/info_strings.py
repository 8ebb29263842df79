"""Texts in the response to a pop, from which clients build the receipt handles.

    startOffsetInfo   `<kind> <queue> <start offset>`
    msgOffsetInfo     `<kind> <queue> <offset>,<offset>,...`
    orderCountInfo    `<kind> qo<queue>%<offset> <count>`   a message's earlier deliveries
                      `<kind> <queue> <count>`              those of all other messages

An entry a queue, joined by `;`. The kind is that of the topic: see `topic_names`. An ordered pop
has all three texts, any other the first two.

Source: ExtraInfoUtil.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from kourou.errors import MalformedHeaderError
from kourou.protocol.fields import parse_int, parse_long

ENTRY_END: Final = ";"
"""Separator of entries."""

QueueKey = tuple[str, str]
"""Kind of the topic, and the queue (`3`) or the queue and offset (`qo3%17`)."""

_encode: Final = msgspec.json.Encoder().encode  # the fastest join of many numbers


def start_offset_entry(kind: str, queue_id: int, start_offset: int) -> str:
    """Return the entry of a queue in `startOffsetInfo`."""
    return f"{kind} {queue_id} {start_offset}"


def offsets_entry(kind: str, queue_id: int, offsets: list[int] | tuple[int, ...]) -> str:
    """Return the entry of a queue in `msgOffsetInfo`."""
    return f"{kind} {queue_id} {_encode(offsets)[1:-1].decode()}"


def order_counts_entries(
    kind: str, queue_id: int, counts: Mapping[int, int], other_count: int = 0
) -> str:
    """Return the entries of a queue in `orderCountInfo`.

    Args:
        kind: that of the topic.
        queue_id: the queue.
        counts: queue offset to the number of earlier deliveries.
        other_count: that of all messages that `counts` lacks.
    """
    entries = [f"{kind} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    entries.append(f"{kind} {queue_id} {other_count}")
    return ENTRY_END.join(entries)


def parse_start_offsets(text: str) -> dict[QueueKey, int]:
    """Return the start offset of each queue of `startOffsetInfo`.

    Raises:
        MalformedHeaderError: an entry does not have three words, a queue has two entries, or a
            number does not parse.
    """
    offsets: dict[QueueKey, int] = {}
    for key, value in _entries(text, "startOffsetInfo"):
        offsets[key] = _number(value, text, "startOffsetInfo")
    return offsets


def parse_offsets(text: str) -> dict[QueueKey, list[int]]:
    """Return the offsets of each queue of `msgOffsetInfo`. Raises like `parse_start_offsets`."""
    return {
        key: [_number(number, text, "msgOffsetInfo") for number in value.split(",")]
        for key, value in _entries(text, "msgOffsetInfo")
    }


def parse_order_counts(text: str) -> dict[QueueKey, int]:
    """Return the counts of `orderCountInfo`; see `order_count`. Raises as `parse_start_offsets`."""
    counts: dict[QueueKey, int] = {}
    for key, value in _entries(text, "orderCountInfo"):
        try:
            counts[key] = parse_int(value)
        except ValueError as error:
            raise _malformed("orderCountInfo", text, str(error)) from None
    return counts


def order_count(counts: Mapping[QueueKey, int], kind: str, queue_id: int, offset: int) -> int:
    """Return the number of earlier deliveries of a message; 0 if it is not known."""
    count = counts.get((kind, f"qo{queue_id}%{offset}"))
    return counts.get((kind, str(queue_id)), 0) if count is None else count


def _entries(text: str, field: str) -> Iterator[tuple[QueueKey, str]]:
    """Yield queue and value of each entry; an empty text has none."""
    seen: set[QueueKey] = set()
    for entry in text.rstrip(ENTRY_END).split(ENTRY_END) if text else ():
        words = entry.split(" ")
        if len(words) != 3:
            raise _malformed(field, text, f"{len(words)} words in an entry, expected 3")
        kind, queue, value = words
        if (kind, queue) in seen:
            raise _malformed(field, text, f"two entries of queue {queue[:20]!r}")
        seen.add((kind, queue))
        yield (kind, queue), value


def _number(value: str, text: str, field: str) -> int:
    try:
        return parse_long(value)
    except ValueError as error:
        raise _malformed(field, text, str(error)) from None


def _malformed(field: str, text: str, reason: str) -> MalformedHeaderError:
    return MalformedHeaderError(f"{field} is invalid: {text[:80]!r}: {reason}")
