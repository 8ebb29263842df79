"""Values that queue entries and the key index derive from a record's flags and properties.

Appends and recovery use the same functions, so that a queue rebuilt from the log is identical byte
for byte. A single property is found without decoding the others.

Source: CommitLog.checkMessageAndReturnSize, CommitLogDispatcherBuildConsumeQueue,
MultiDispatchUtils, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kourou.decimals import INT_DIGITS, decimal_or, is_decimal
from kourou.model.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    TAGS,
    decode_properties,
)
from kourou.model.sysflag import INNER_BATCH, TRANSACTION_PREPARED
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.hashing import tags_code

_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()
_MULTI_OFFSETS: Final = INNER_MULTI_QUEUE_OFFSET.encode()
_MULTI_SEPARATOR: Final = ","
LIGHT_TOPIC_PREFIX: Final = "%LMQ%"
TAGS_START: Final = f"{TAGS}\x01".encode()
_INNER_NUM_START: Final = f"{INNER_NUM}\x01".encode()
_DELAY_START: Final = f"{DELAY}\x01".encode()
INNER_MESSAGES_MAX: Final = 0x7FFF
"""The most messages of an inner batch: the limit of the count in a batch queue's entry."""
_COUNT_DIGITS_MAX: Final = 5


def is_visible(sys_flag: int) -> bool:
    """Tell whether the record gets an entry in its queue.

    Prepared (4) and rollback (12) records of transactions get none.
    """
    return not sys_flag & TRANSACTION_PREPARED


def message_count(sys_flag: int, properties: bytes) -> int:
    """Return how many messages, and so offsets, the record has: 1, or an inner batch's count."""
    if not sys_flag & INNER_BATCH:
        return 1
    value = property_value(properties, _INNER_NUM_START)
    return inner_count(value) or 1


def inner_count(value: str | bytes) -> int | None:
    """Return the number of messages in an inner batch by its INNER_NUM; None if that has none."""
    count = decimal_or(value, 0, _COUNT_DIGITS_MAX)
    return count if 0 < count <= INNER_MESSAGES_MAX else None


def queue_tags_code(
    topic: bytes, properties: bytes, store_at_ms: int, delay_levels_ms: Sequence[int]
) -> int:
    """Return the tags code of a record's queue entry.

    It is the Java hash of the tag, or 0 without a tag. In the topic of delayed messages it is the
    due time in epoch milliseconds.
    """
    if topic == _SCHEDULE_TOPIC:
        level = min(_delay_level(properties), len(delay_levels_ms))
        if level:
            return store_at_ms + delay_levels_ms[level - 1]
    value = property_value(properties, TAGS_START)
    return tags_code(value.decode(errors="replace")) if value else 0


def property_value(properties: bytes, start: bytes) -> bytes:
    """Return a property's value without decoding all properties; `start` is its name and byte 1.

    The last occurrence with a value wins, as in `decode_properties`; empty if there is none.
    """
    before = len(properties)
    while (at := properties.rfind(start, 0, before)) >= 0:
        if not at or properties[at - 1] == 2:  # else it is the end of a longer property name
            end = properties.find(b"\x02", at)
            value = properties[at + len(start) :] if end < 0 else properties[at + len(start) : end]
            if value:
                return value
        before = at + len(start) - 1
    return b""


def _delay_level(properties: bytes) -> int:
    """Return the delay level; 0 if there is none or it is not a number."""
    value = property_value(properties, _DELAY_START)
    return decimal_or(value, 0, INT_DIGITS)


def light_queues(properties: bytes) -> list[tuple[str, int]]:
    """Return (queue name, queue offset) of each light queue to which Java added the record.

    Light queues (`%LMQ%` names) always have queue id 0. This store appends to none, but preserves
    and rebuilds those of a store that Java wrote.
    """
    if _MULTI_OFFSETS not in properties:
        return []
    decoded = decode_properties(properties)
    names = decoded.get(INNER_MULTI_DISPATCH, "").split(_MULTI_SEPARATOR)
    offsets = decoded.get(INNER_MULTI_QUEUE_OFFSET, "").split(_MULTI_SEPARATOR)
    if len(names) != len(offsets) or not all(map(is_decimal, offsets)):
        return []
    return list(zip(names, map(int, offsets), strict=True))
