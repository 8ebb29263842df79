"""Rebuilds the queue entries of scanned records; the log takes precedence over the queues' files.

    found                            action
    record without queue entry       add the entry
    queue lacks entries before it    add the queue to `incomplete`; the caller scans the whole log
    gap in a queue, after damage     add entries that point at the damaged bytes, with tags code 0
    gap in a queue otherwise         add blanks, as where older records expired
    offset 0 again                   restart the queue: Java deleted the topic, without a note

Ordinary records, in the order of their queue, take about 1.5 us.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kourou.model.properties import INNER_MULTI_QUEUE_OFFSET, TAGS
from kourou.model.sysflag import INNER_BATCH, TRANSACTION_PREPARED
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.record.keys import is_visible, light_queues, message_count, queue_tags_code
from kourou.protocol.record.scan import Fields, ScannedRecord
from kourou.store.config import StoreConfig
from kourou.store.log.damage import DamagedSpan
from kourou.store.log.log_scan import LogScan
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.consumequeue_table import ConsumeQueueTable

log = logging.getLogger(__name__)

_ROUND_RECORDS: Final = 256
"""The number of records after which long tails are written and progress is reported."""
_GAP_ENTRIES_MAX: Final = 1024
_RECORD_BYTES_MIN: Final = 91
_UNUSUAL_FLAGS: Final = TRANSACTION_PREPARED | INNER_BATCH
_LIGHT_OFFSETS: Final = INNER_MULTI_QUEUE_OFFSET.encode()
_TAGS_NAME: Final = TAGS.encode()
_TAGS_START: Final = f"\x02{TAGS}\x01".encode()
_CODES_MAX: Final = 4096
_SCHEDULE: Final = SCHEDULE_TOPIC.encode()


class Replay:
    """One pass over the scanned records.

    Attributes:
        touched: queues with a scanned record.
        incomplete: queues whose files lack entries from before the scan.
        records: the number of scanned records.
        entries: the number of queue entries added.
        last: the last record with a queue entry.
        last_store_at_ms: the latest store time.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        config: StoreConfig,
        deleted_below: Mapping[str, int],
        *,
        is_full: bool,
    ) -> None:
        """Begin a pass.

        Args:
            queues: the queues that get the entries.
            config: for the delay levels.
            deleted_below: by topic, the log position below which its records are deleted.
            is_full: whether the scan begins at the log's begin.
        """
        self._queues = queues
        self._delay_levels_ms = config.delay_levels_ms
        self._deleted_below = deleted_below
        self._is_full = is_full
        self._by_key: dict[tuple[bytes, int], ConsumeQueue] = {}  # queues for the fast path
        self._codes: dict[bytes, int] = {}  # by the encoded tag
        self._damaged: list[DamagedSpan] = []
        self.touched: set[ConsumeQueue] = set()
        self.incomplete: list[ConsumeQueue] = []
        self.records = 0
        self.entries = 0
        self.last: AppendedRecord | None = None
        self.last_store_at_ms = 0

    def run(self, scan: LogScan, on_round: Callable[[], None]) -> None:
        """Process all records of the scan; stop early at a queue that lacks earlier entries.

        `on_round` is called after every 256 records.
        """
        self._damaged = scan.damaged
        by_key, put = self._by_key, self._queues.put
        records = fast = last_store_at_ms = 0
        for fields in scan.records():
            position, size, queue_id, queue_offset, flags, store_at_ms, topic, properties = fields
            records += 1
            if store_at_ms > last_store_at_ms:  # noqa: PLR1730 - a call would cost more
                last_store_at_ms = store_at_ms
            queue = by_key.get((topic, queue_id))
            if (
                queue is None
                or queue.max_offset != queue_offset
                or flags & _UNUSUAL_FLAGS
                or _LIGHT_OFFSETS in properties
            ):
                self._replay_record(fields)
                if self.incomplete:
                    break
            else:
                fast += 1
                code = self._code(topic, properties, store_at_ms)
                self.last = AppendedRecord(
                    position, queue_offset, size, queue.topic, queue_id, code, store_at_ms
                )
                put(queue, self.last)
            if not records % _ROUND_RECORDS:
                self._queues.flush_long()
                on_round()
        self.records += records
        self.entries += fast
        self.last_store_at_ms = last_store_at_ms

    def follow(self, records: Iterable[Fields]) -> list[AppendedRecord]:
        """Add the queue entries of records that continue the log; return those that got one.

        For a pass that lasts as long as the store is open, after a scan has completed the queues.
        """
        arrivals = []
        by_key, put = self._queues.by_key, self._queues.put  # without the queues of deleted topics
        for fields in records:
            position, size, queue_id, queue_offset, flags, store_at_ms, topic, properties = fields
            queue = by_key.get((topic, queue_id))
            if (
                queue is None
                or queue.max_offset != queue_offset
                or flags & _UNUSUAL_FLAGS
                or topic == _SCHEDULE
                or _LIGHT_OFFSETS in properties
            ):
                before = self.last
                self._replay_record(fields)
                if self.last is not None and self.last is not before:
                    arrivals.append(self.last)
                continue
            code = self._code(topic, properties, store_at_ms)
            self.last = AppendedRecord(
                position, queue_offset, size, queue.topic, queue_id, code, store_at_ms
            )
            put(queue, self.last)
            queue.next_offset = queue_offset + 1
            arrivals.append(self.last)
        return arrivals

    def _code(self, topic: bytes, properties: bytes, store_at_ms: int) -> int:
        """Return the tags code of a record in an ordinary topic, cached because tags repeat."""
        at = properties.rfind(_TAGS_START) + len(_TAGS_START)
        end = properties.find(b"\x02", at)
        if at < len(_TAGS_START) or end < 0:
            if _TAGS_NAME not in properties:
                return 0
            return queue_tags_code(topic, properties, store_at_ms, self._delay_levels_ms)
        tags = properties[at:end]
        code = self._codes.get(tags)
        if code is None:
            if len(self._codes) >= _CODES_MAX:
                self._codes.clear()
            code = queue_tags_code(topic, properties, store_at_ms, self._delay_levels_ms)
            self._codes[tags] = code
        return code

    def _replay_record(self, fields: Fields) -> None:
        """Add the queue entries of one record of any kind."""
        record = ScannedRecord._make(fields)
        topic = record.topic.decode()
        below = self._deleted_below.get(topic, 0)
        if not is_visible(record.sys_flag) or record.position < below:
            return
        properties = record.properties
        appended = AppendedRecord(
            record.position,
            record.queue_offset,
            record.size,
            topic,
            record.queue_id,
            queue_tags_code(record.topic, properties, record.store_at_ms, self._delay_levels_ms),
            record.store_at_ms,
            message_count(record.sys_flag, properties),
        )
        if record.sys_flag & INNER_BATCH and not self._queues.of_topic(topic):
            self._queues.add_batch_topic(topic)
        queue = self._put(topic, record.queue_id, record.queue_offset, appended)
        if queue is not None and not below and record.topic != _SCHEDULE:
            self._by_key[record.topic, record.queue_id] = queue
        for name, queue_offset in light_queues(properties):
            self._put(name, 0, queue_offset, appended)
        self.last = appended

    def _put(
        self, topic: str, queue_id: int, queue_offset: int, record: AppendedRecord
    ) -> ConsumeQueue | None:
        """Add the entry at the record's queue offset; return the queue, None if none was added."""
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            if not self._queues.accepts(topic, queue_id):
                return None
            queue = self._queues.get_or_add(topic, queue_id)
        is_first = queue not in self.touched
        if is_first and not self._continue_queue(queue, queue_offset, record.physical_offset):
            self.incomplete.append(queue)
            return None
        if queue_offset == 0 < queue.max_offset:
            self._reset(queue, 0)
        gap = queue_offset - queue.max_offset
        if gap < 0 or gap > self._gap_max():
            log.error(
                "record.skipped physical_offset=%d queue=%s queue_offset=%d expected=%d",
                record.physical_offset,
                queue.segments.directory,
                queue_offset,
                queue.max_offset,
            )
            return None
        if gap and self._damaged:
            span = self._span_after(queue)
            queue.fill_to(queue_offset, span.position, span.size)
        self._queues.put_at(queue, queue_offset, record)
        queue.next_offset = queue.max_offset
        self._queues.flush_long()
        self.entries += 1
        return queue

    def _gap_max(self) -> int:
        """Return the largest plausible gap in a queue, in messages."""
        return max(_GAP_ENTRIES_MAX, sum(span.size for span in self._damaged) // _RECORD_BYTES_MIN)

    def _span_after(self, queue: ConsumeQueue) -> DamagedSpan:
        """Return the damaged span that contains the queue's next message."""
        before = queue.entry(queue.max_offset - 1)
        last_position = -1 if before is None else before.physical_offset
        return next(
            (span for span in self._damaged if span.position > last_position), self._damaged[-1]
        )

    def _continue_queue(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
        """Let the queue continue at the offset of its first scanned record.

        Returns:
            Whether the queue has the entries before it, or needs none.
        """
        self.touched.add(queue)
        if queue.has_entry_before(queue_offset, physical_offset):
            queue.restart_at(queue_offset)
        elif self._is_full or queue_offset == 0:
            self._reset(queue, queue_offset)
        else:
            return False
        if self._is_full and not self._damaged:
            queue.min_offset = queue_offset  # entries before it have no record
        return True

    def _reset(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Restart the queue at an offset; its earlier entries are obsolete."""
        queue.restart_at(0)
        self._queues.truncate(queue)
        queue.start_at(queue_offset)
