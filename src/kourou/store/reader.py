"""The read interface of the store: offsets, reads of queues, records and queue entries.

All methods may run on any thread while another thread writes, because some may wait for the device.
The methods that never wait say so, for example `get_resident` and `entry_if_resident`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kourou.errors import MalformedMessageError
from kourou.protocol.record.read import read_checked
from kourou.store.config import BELIEVED_BYTES, StoreConfig
from kourou.store.formats import ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.lifecycle import StoreFiles
from kourou.store.log.commitlog import CommitLog
from kourou.store.log.record_reader import read_record_at, read_resident_ranges
from kourou.store.queues.batch_queue import BatchQueue
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.extended_queue import ExtendedQueue
from kourou.store.queues.queue_extension import ExtensionUnit, is_address
from kourou.store.reading.batch_get import get_batches, get_batches_resident
from kourou.store.reading.fast_get import FastGet, FastGetResult
from kourou.store.reading.verified_get import (
    GetRequest,
    GetResult,
    ReadContext,
    get_resident,
    get_verified,
)

_NO_TIME_RUN_MAX: Final = 1024
"""The most consecutive entries without a time that are tried; a page holds 205 entries."""
_REMOVED: Final = -1


class StoreReader:
    """The read operations of an open store; `MessageStore.reader`.

    Attributes:
        visible_position: the byte of the log up to which records have queue entries; advanced by
            `StoreWriter.dispatch`.
    """

    def __init__(self, files: StoreFiles, config: StoreConfig) -> None:
        self._files = files
        self._log = log = files.log
        self._queues = queues = files.queues
        self._config = config
        self._believed_bytes = config.believed_bytes or BELIEVED_BYTES
        self._fast = FastGet(log, config.delay_levels_ms, believed_bytes=self._believed_bytes)
        self.visible_position = log.written_position
        for queue in queues:
            # Entries in the files may be corrupt; later entries are made by this process.
            queue.unverified_below = queue.max_offset

    @property
    def min_position(self) -> int:
        """The byte at which the log begins: records below are removed."""
        return self._log.min_position

    @property
    def written_position(self) -> int:
        """Records below are in the files: they survive a kill of the process."""
        return self._log.written_position

    @property
    def synced_position(self) -> int:
        """Records below are on the device: they survive a power cut."""
        return self._log.synced_position

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the queue's first message; 0 if there is no such queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last visible message; 0 if there is none."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def next_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the queue's next appended message gets."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.next_offset

    def queues(self) -> dict[str, list[int]]:
        """Return the queue ids of each topic that hold, or held, messages."""
        return self._queues.queue_ids()

    def get_resident(self, topic: str, queue_id: int, request: GetRequest) -> GetResult | None:
        """Return the messages of a read; None if only `get` can answer, which may wait.

        Verifies records that this process did not write; see `kourou.store.reading.verified_get`.
        """
        context = self._context(topic, queue_id)
        if isinstance(context.queue, BatchQueue):
            return get_batches_resident(context, context.queue, request)
        if isinstance(context.queue, ExtendedQueue):
            request = _with_unit_filters(context.queue, request, may_block=False)
        return get_resident(context, request)

    def get_fast(
        self, topic: str, queue_id: int, offset: int, max_messages: int, max_bytes: int
    ) -> FastGetResult | None:
        """Return the messages of a read without a filter, if all are in memory; never waits.

        None if `get_resident` must answer instead. Only on the thread that writes.
        """
        if self._config.resident_bytes:
            return None
        queue = self._queues.get(topic, queue_id)
        return self._fast.get(queue, offset, max_messages, max_bytes)

    def get(
        self, topic: str, queue_id: int, request: GetRequest, *, skip_damaged: bool = False
    ) -> GetResult:
        """Return the verified messages of a read; may wait for the device.

        Corrupt queue entries are repaired from the log: pass `GetResult.repaired` to
        `write_repaired`. The result ends before a damaged message, or with `skip_damaged` skips it.

        Raises:
            DamagedRecordError: the first message is damaged.
            CorruptRecordError: the queue's file is missing or cut short.
            OSError: the device fails.
        """
        context = self._context(topic, queue_id)
        if isinstance(context.queue, BatchQueue):
            return get_batches(context, context.queue, request, skip_damaged=skip_damaged)
        if isinstance(context.queue, ExtendedQueue):
            request = _with_unit_filters(context.queue, request)
        return get_verified(context, request, skip_damaged=skip_damaged)

    def _context(self, topic: str, queue_id: int) -> ReadContext:
        return ReadContext(
            self._log,
            self._queues.get(topic, queue_id),
            self._config,
            self.topic_begin(topic),
            believed_bytes=self._believed_bytes,
        )

    def topic_begin(self, topic: str) -> int:
        """Return the byte of the log below which records belong to a deleted topic of this name."""
        return self._files.state.deleted_topics.get(topic, 0)

    def first_position(self, topic: str) -> int:
        """Return the byte of the log at which the topic's first message begins.

        The visible end of the log if it has no message. May wait for the device.
        """
        queues = self._queues.of_topic(topic)
        firsts = [queue.entry(queue.min_offset) for queue in queues]
        positions = [entry.physical_offset for entry in firsts if entry is not None]
        return min(positions, default=self.visible_position)

    def read_record(self, physical_offset: int) -> bytes | None:
        """Return the verified record at a byte of the log; None if no visible record begins there.

        May wait for the device.
        """
        return read_record_at(self._log, physical_offset, self.visible_position)

    def written_bytes(self, physical_offset: int, size: int) -> bytes:
        """Return written bytes of the log, visible or not, without verifying them.

        Intended for records that were just appended: the read may wait for the device for others.

        Raises:
            OSError: they cannot be read.
        """
        return self._log.read(physical_offset, size)

    def written_view(self, physical_offset: int, size: int) -> memoryview | None:
        """Return a view of written bytes of one segment, or None if it might wait for the device.

        It keeps a removed segment's space in use: do not store it.

        Raises:
            FileNotFoundError: the segment was removed.
        """
        return self._log.view_resident(physical_offset, size)

    def segment_end(self, position: int) -> int:
        """Return the end position of the log's file that contains `position`."""
        return self._log.segment_end(position)

    def record_resident(self, physical_offset: int, size: int) -> bytes | None:
        """Return the bytes of a visible record if they are in memory, without verifying them.

        None if only `read_record` can answer, which may wait and may find no record.
        """
        if not self._log.min_position <= physical_offset <= self.visible_position - size:
            return None
        return read_resident_ranges(self._log, [(physical_offset, size)])

    def entry(self, topic: str, queue_id: int, offset: int) -> QueueEntry | None:
        """Return the queue's entry at the offset: position and size of the record, and tags code.

        May wait for the device; the entry is not verified against the record.
        """
        queue = self._queues.get(topic, queue_id)
        return None if queue is None else queue.entry(offset)

    def extension_unit(self, topic: str, queue_id: int, tags_code: int) -> ExtensionUnit | None:
        """Return the extension unit that the tags code of an entry refers to; None if it does not.

        May wait for the device.
        """
        queue = self._queues.get(topic, queue_id)
        return queue.unit(tags_code) if isinstance(queue, ExtendedQueue) else None

    def entry_if_resident(self, topic: str, queue_id: int, offset: int) -> QueueEntry | None:
        """Return the entry if it exists and is in memory; it is not verified against the record."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        if isinstance(queue, BatchQueue):
            return None  # its entries must be searched
        data = queue.read_resident(offset, 1)
        if data is None or len(data) != ENTRY_BYTES:
            return None
        return QueueEntry._make(ENTRY.unpack(data))

    def own_entries(
        self, topic: str, queue_id: int, offset: int, count: int
    ) -> Sequence[QueueEntry] | None:
        """Return at most `count` entries that this process made and that are in memory.

        None if only `get` can answer, because the entries may be corrupt or not in memory. Empty
        if there is no message at the offset.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return ()
        if offset < queue.unverified_below:
            return None
        data = queue.read_resident(offset, count)
        if not data or len(data) % ENTRY_BYTES:
            return None
        return [QueueEntry._make(fields) for fields in ENTRY.iter_unpack(data)]

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the first offset whose message is not older than the time; 0 without such a queue.

        `max_offset` if all are older. With `upper`, return the last offset whose message is not
        newer; `min_offset` if all are newer. May wait for the device.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        return _offset_by_time(self._log, queue, timestamp_ms, upper=upper)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the message's store time in epoch milliseconds; -1 if there is no message."""
        entry = self.entry(topic, queue_id, offset)
        return -1 if entry is None else _store_time(self._log, entry)


def _with_unit_filters(
    queue: ExtendedQueue, request: GetRequest, *, may_block: bool = True
) -> GetRequest:
    """Return the request with filters that read the queue's extension units."""
    accepts, may_match = request.accepts, request.may_match
    if may_match is not None:

        def matches_unit(code: int) -> bool:
            unit = queue.unit(code, may_block=may_block)
            if unit is None:
                return accepts is None or is_address(code) or accepts(code)
            return may_match(unit) and (accepts is None or accepts(unit.tags_code))

        return request._replace(accepts=matches_unit)
    if accepts is None:
        return request

    def accepts_unit(code: int) -> bool:
        tags_code = queue.tags_code(code, may_block=may_block)
        return tags_code is None or accepts(tags_code)

    return request._replace(accepts=accepts_unit)


def _offset_by_time(
    log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, *, upper: bool = False
) -> int:
    """Return the first offset whose message is not older than the time.

    `max_offset` if all messages are older. With `upper`, return the last offset whose message is
    not newer; `min_offset` if all are newer.

    A corrupt entry or a damaged record has no time: the search uses the next record after it, and
    prefers a lower offset, so that no message is missed.

    Source: ConsumeQueue.binarySearchInQueueByTime and BoundaryType.java, apache/rocketmq 5.5.0.

    Raises:
        OSError: the queue or the log cannot be read.
    """
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        at, at_ms = _next_time(log, queue, middle, min(high, middle + _NO_TIME_RUN_MAX))
        if at_ms is not None and (at_ms < timestamp_ms or (upper and at_ms == timestamp_ms)):
            low = at + 1
        else:
            high = middle
    return max(low - 1, queue.min_offset) if upper else low


def _next_time(
    log: CommitLog, queue: ConsumeQueue, offset: int, stop: int
) -> tuple[int, int | None]:
    """Return the first offset whose message has a time, and the time; None if none has."""
    for at in range(offset, stop):
        entry = queue.entry(at)
        at_ms = None if entry is None else _stored_at_ms(log, entry)
        if at_ms is not None:
            return at, at_ms
    return offset, None


def _store_time(log: CommitLog, entry: QueueEntry) -> int:
    """Return the store time of the entry's record, in epoch milliseconds.

    -1 if the record is removed or damaged, or the entry has no record.
    """
    at_ms = _stored_at_ms(log, entry)
    return _REMOVED if at_ms is None else at_ms


def _stored_at_ms(log: CommitLog, entry: QueueEntry) -> int | None:
    """Return the record's store time; -1 if it is removed, None if it cannot be determined."""
    position, size, _ = entry
    if 0 <= position < log.min_position:
        return _REMOVED
    if not log.min_position <= position < position + size <= log.segment_end(position):
        return None
    try:
        header = read_checked(log.read(position, size), 0)
    except FileNotFoundError:
        return _REMOVED
    except MalformedMessageError:
        return None
    return header.store_at_ms if header.physical_offset == position else None
