"""Finding a message by its unique id without an index: reading its topic's queues around a time.

A unique id holds the time of its making, but not the month, and clients make it by their own clock
and time zone. Spans of store times are tried, in this order, until one holds the message:

    the time in UTC, and in this machine's zone, each with some minutes around
    all that the asker named, from its start

Blocks while it reads; as many bytes as `SCAN_BYTES_MAX` allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.protocol.message_layout import read_record
from kourou.store.message_store import GetStatus, MessageStore

SCAN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of messages that one search reads: a fraction of a second where they are in memory."""
FOUND_MAX: Final = 32
"""Messages found. A message has its id alone, but a send that was tried again stores it again."""

_CHUNK_BYTES: Final = 1024 * 1024
_CHUNK_MESSAGES: Final = 4096
_BEFORE_MS: Final = 60_000
"""How far a client's clock may be ahead of this one for the first tries to find its message."""
_AFTER_MS: Final = 300_000
"""The same behind; and how long a message may have been on its way."""
_MILLISECOND: Final = timedelta(milliseconds=1)


class Span(NamedTuple):
    """A span of store times, both ends included, in epoch milliseconds."""

    begin_ms: int
    end_ms: int


def spans_of(month_ms: int, now_ms: int, asked: Span, local: tzinfo) -> list[Span]:
    """Return the spans to be searched, in their order.

    Args:
        month_ms: of the id: milliseconds since the start of its month.
        now_ms: the id's month is this one, or the one before if its time is still to come.
        asked: nothing outside it is searched.
        local: the time zone of this machine.
    """
    spans = []
    for zone in dict.fromkeys((UTC, local)):
        made_ms = _made_ms(month_ms, now_ms, zone)
        spans.append(Span(made_ms - _BEFORE_MS, made_ms + _AFTER_MS))
    cut = [
        Span(max(span.begin_ms, asked.begin_ms), min(span.end_ms, asked.end_ms)) for span in spans
    ]
    return [span for span in (*dict.fromkeys(cut), asked) if span.begin_ms <= span.end_ms]


def _made_ms(month_ms: int, now_ms: int, zone: tzinfo) -> int:
    """Return the latest time that lies so far behind the start of its month, and not ahead."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(zone)
    start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if _epoch_ms(start) + month_ms > now_ms + _AFTER_MS:
        start = (start - timedelta(days=1)).replace(day=1)
    return _epoch_ms(start) + month_ms


def _epoch_ms(at: datetime) -> int:
    return (at - datetime.fromtimestamp(0, UTC)) // _MILLISECOND


class UniqueIdSearch:
    """One search in one topic."""

    def __init__(
        self,
        store: MessageStore,
        topic: str,
        queue_nums: int,
        unique_id: str,
        bytes_max: int = SCAN_BYTES_MAX,
    ) -> None:
        """Search in `store`, which is only read.

        Args:
            store: open.
            topic: of the message.
            queue_nums: its queues.
            unique_id: as it stands in the message's properties.
            bytes_max: what all spans may read together.
        """
        self._store = store
        self._topic = topic
        self._queue_nums = queue_nums
        self._unique_id = unique_id
        self._needle = unique_id.encode()
        self._bytes_left = bytes_max

    def run(self, spans: Sequence[Span]) -> list[bytes]:
        """Return the records of the first span that has some, as they are stored.

        Raises:
            CorruptRecordError: a record is not what was written.
        """
        for span in spans:
            found: list[bytes] = []
            for queue_id in range(self._queue_nums):
                for record in self._scan(queue_id, span):
                    if len(found) < FOUND_MAX:
                        found.append(record)
            if found or self._bytes_left <= 0:
                return found
        return []

    def _scan(self, queue_id: int, span: Span) -> Iterator[bytes]:
        """Yield the matching records of a queue that were stored in the span."""
        store, topic = self._store, self._topic
        offset = store.offset_by_time(topic, queue_id, span.begin_ms)
        while self._bytes_left > 0:
            plan = store.plan_get(topic, queue_id, offset, _CHUNK_MESSAGES, _CHUNK_BYTES, None)
            if plan.status is not GetStatus.FOUND:
                return
            chunk = store.read_ranges(plan.ranges, may_block=True)
            if chunk is None:
                return  # deleted meanwhile
            self._bytes_left -= len(chunk)
            yield from self._matches(chunk, span)
            offset = plan.next_offset
            if store.store_time(topic, queue_id, offset - 1) > span.end_ms:
                return

    def _matches(self, chunk: bytes, span: Span) -> Iterator[bytes]:
        """Yield the records of a chunk that have the id; records are looked at only if one may."""
        at = chunk.find(self._needle)
        start = 0
        while at >= 0:
            record = read_record(chunk, start, check_crc=False)
            end = start + record.total_size
            if end > at:
                first = record.properties_start
                said = decode_properties(chunk[first : first + record.properties_size])
                is_in = span.begin_ms <= record.store_at_ms <= span.end_ms
                if is_in and said.get(names.UNIQ_KEY) == self._unique_id:
                    yield chunk[start:end]
                at = chunk.find(self._needle, end)
            start = end
