"""Rules that derive consume queue entries from commit log records: queue, offset and tags code.

Appends and recovery use the same functions, so that a queue rebuilt from the log is identical byte
for byte.

Source: CommitLog.checkMessageAndReturnSize, CommitLogDispatcherBuildConsumeQueue,
MultiDispatchUtils, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, final

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
from kourou.store.formats import ENTRY

_SCHEDULE_TOPIC: Final = SCHEDULE_TOPIC.encode()
_LEVEL_DIGITS_MAX: Final = 9
_OFFSET_DIGITS_MAX: Final = 18
_MULTI_OFFSETS: Final = INNER_MULTI_QUEUE_OFFSET.encode()
_MULTI_SEPARATOR: Final = ","


class AppendedRecord(NamedTuple):
    """An appended record, with the values of its queue entry.

    `MessageStore.dispatch` returns the same object when consumers can see the record.

    Attributes:
        queue_offset: 0 for a prepared or rolled back transaction's record, which has no entry.
        tags_code: the tags code of the queue entry: the tag's hash, or a delayed message's due
            time.
        store_at_ms: the record's store time.
        count: the number of messages in it: more than one in an inner batch, of which the first
            has `queue_offset`.
    """

    physical_offset: int
    queue_offset: int
    size: int
    topic: str
    queue_id: int
    tags_code: int
    store_at_ms: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which is not used

    @property
    def end(self) -> int:
        """The byte of the log just after the record."""
        return self.physical_offset + self.size

    def records(self) -> tuple[AppendedRecord]:
        """Return the record alone; the same interface as `AppendedBatch`, like `last`."""
        return (self,)

    @property
    def last(self) -> AppendedRecord:
        return self


@final
class AppendedBatch(NamedTuple):
    """The appended records of a batch, consecutive in the log and in a queue.

    They are written, synced and dispatched together, without any work for single records: their
    queue entries are already encoded.

    Attributes:
        physical_offset, queue_offset: those of the first record.
        size: the size of all records together.
        store_at_ms: the store time of all records.
        count: the number of records.
        entries: their encoded entries of a simple queue: position, size and tags code of each.
    """

    physical_offset: int
    queue_offset: int
    size: int
    topic: str
    queue_id: int
    store_at_ms: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    entries: bytes

    @property
    def end(self) -> int:
        """The byte of the log just after the last record."""
        return self.physical_offset + self.size

    def records(self) -> Iterator[AppendedRecord]:
        """Yield the records one by one."""
        _, queue_offset, _, topic, queue_id, store_at_ms, _, entries = self
        for number, (position, size, code) in enumerate(ENTRY.iter_unpack(entries), queue_offset):
            yield AppendedRecord(position, number, size, topic, queue_id, code, store_at_ms)

    @property
    def last(self) -> AppendedRecord:
        """The last record."""
        position, size, code = ENTRY.unpack_from(self.entries, len(self.entries) - ENTRY.size)
        offset = self.queue_offset + self.count - 1
        return AppendedRecord(
            position, offset, size, self.topic, self.queue_id, code, self.store_at_ms
        )


Arrival = AppendedRecord | AppendedBatch
"""A record, or several records of a batch, that became visible to consumers."""


def is_visible(sys_flag: int) -> bool:
    """Tell whether the record gets an entry in its queue.

    Prepared (4) and rollback (12) records of transactions get none.
    """
    return not sys_flag & TRANSACTION_PREPARED


def message_count(sys_flag: int, properties: bytes) -> int:
    """Return how many messages, and so offsets, the record has: 1, or an inner batch's count."""
    if not sys_flag & INNER_BATCH:
        return 1
    value = _property(properties, _INNER_NUM_START)
    count = int(value) if len(value) <= _COUNT_DIGITS_MAX and value.isdigit() else 1
    return count if 0 < count <= INNER_MESSAGES_MAX else 1


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
    value = _property(properties, _TAGS_START)
    return tags_code(value.decode(errors="replace")) if value else 0


_TAGS_START: Final = f"{TAGS}\x01".encode()
_INNER_NUM_START: Final = f"{INNER_NUM}\x01".encode()
INNER_MESSAGES_MAX: Final = 0x7FFF
"""The most messages of an inner batch: the limit of the count in a batch queue's entry."""
_COUNT_DIGITS_MAX: Final = 5
_DELAY_START: Final = f"{DELAY}\x01".encode()


def _property(properties: bytes, start: bytes) -> bytes:
    """Return a property's value without decoding all properties; the last occurrence wins."""
    at = len(properties)
    while (at := properties.rfind(start, 0, at)) > 0 and properties[at - 1] != 2:
        pass  # it is the end of a longer property name
    if at < 0:
        return b""
    at += len(start)
    end = properties.find(b"\x02", at)
    return properties[at:] if end < 0 else properties[at:end]


def _delay_level(properties: bytes) -> int:
    """Return the delay level; 0 if there is none or it is not a number."""
    value = _property(properties, _DELAY_START)
    return int(value) if value.isdigit() and len(value) <= _LEVEL_DIGITS_MAX else 0


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
    if len(names) != len(offsets) or not all(map(_is_offset, offsets)):
        return []
    return list(zip(names, map(int, offsets), strict=True))


def _is_offset(text: str) -> bool:
    return text.isdecimal() and len(text) <= _OFFSET_DIGITS_MAX
