"""What a read of a batch queue hands out: whole batches, each record compared before.

A reader inside a batch gets that batch, as Java hands it out: clients pass over the messages before
their offset. A batch counts as its messages, and the first one is handed out however many there
are. An entry or a record that is not what was written is refused by name, or passed over when told;
entries are not found anew in the log before the next start.

Tags are those of the messages, which are in the batch's body: what has no tags of its own is handed
out whatever tags are wanted, and clients leave out what they do not want. Java hands out nothing.

Source: DefaultMessageStore.getMessage with BatchConsumeQueue, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from kourou.errors import CorruptRecordError
from kourou.store.config import StoreConfig
from kourou.store.formats import BATCH_ENTRY_BYTES
from kourou.store.log.record_check import Wanted
from kourou.store.log.record_reader import read_resident_ranges
from kourou.store.queues.batch_queue import BatchEntry, BatchQueue, batch_entries
from kourou.store.reading.checked_get import Asked, Found, QueueReading, damaged_error, first_wrong
from kourou.store.reading.get_plan import (
    Accepts,
    GetPlan,
    GetStatus,
    LogView,
    ReadEntries,
    cold_below,
    get_bytes_max,
    plan_outside,
)
from kourou.store.reading.queue_repair import Damage

_READ_ENTRIES: Final = 16
_ROUNDS_MAX: Final = 64
"""Damaged batches that one read passes over; the next read goes on."""


class _Limits(NamedTuple):
    """How much one read hands out."""

    max_messages: int
    max_bytes: int
    scan_messages: float
    cold_below: int
    config: StoreConfig

    @classmethod
    def of(cls, config: StoreConfig, view: LogView, max_messages: int, max_bytes: int) -> _Limits:
        """Return what Java would hand out at most."""
        scan_bytes = max(config.scan_bytes_max, max_messages * BATCH_ENTRY_BYTES)
        return cls(
            max_messages,
            get_bytes_max(max_bytes),
            scan_bytes / BATCH_ENTRY_BYTES,
            cold_below(view, config),
            config,
        )

    def is_full(self, count: int, size: int, entry: BatchEntry) -> bool:
        """Tell whether the batch is too much for an answer of so many messages and bytes."""
        if not count:
            return False
        size += entry.size
        if count + entry.count > self.max_messages or size > self.max_bytes:
            return True
        if entry.physical_offset >= self.cold_below:
            return False
        config = self.config
        return count >= config.cold_get_messages_max or size > config.cold_get_bytes_max


def plan_batches(
    queue: BatchQueue,
    view: LogView,
    config: StoreConfig,
    offset: int,
    limits: tuple[int, int],
    *,
    accepts: Accepts | None,
    read: ReadEntries | None = None,
    stop_before: int | None = None,
) -> GetPlan:
    """Return what a reader at `offset` gets; `wanted` has an entry for each batch.

    Args:
        queue: the queue.
        view: of the log.
        config: limits.
        offset: where the reader is.
        limits: messages and bytes.
        accepts: asked for each batch's tags code; None takes all.
        read: instead of the queue's own; what it raises passes through.
        stop_before: the offset of a batch that is not handed out any more.
    """
    nothing = plan_outside(queue, offset)
    if nothing is not None:
        return nothing
    low, high = queue.min_offset, queue.max_offset
    bounds = _Limits.of(config, view, *limits)
    picked: list[Wanted] = []
    count = size = 0
    status, at, suspect = GetStatus.NO_MATCHED_MESSAGE, offset, None
    for entry in _entries(queue, offset, read or queue.read):
        if entry.queue_offset == stop_before or bounds.is_full(count, size, entry):
            break
        if entry.queue_offset - offset >= bounds.scan_messages:
            break
        if not entry.is_written or not at < entry.end <= high or entry.queue_offset < low:
            suspect = at
            break
        if entry.physical_offset < view.min_position:
            status = status if count else GetStatus.MESSAGE_WAS_REMOVING
        elif not view.can_hold(entry.physical_offset, entry.size):
            suspect = at
            break
        elif accepts is None or not entry.tags_code or accepts(entry.tags_code):
            picked.append(Wanted(entry.queue_offset, *entry[:3]))
            count, size, status = count + entry.count, size + entry.size, GetStatus.FOUND
        at = entry.end
    if at == offset and suspect is None and stop_before is None:
        suspect = at  # nothing can be read of the queue's file
    ranges = [(one.physical_offset, one.size) for one in picked]
    return GetPlan(status, at, low, high, ranges, count, picked, suspect)


def get_batches_resident(reading: QueueReading, queue: BatchQueue, asked: Asked) -> Found | None:
    """Return what the reader gets if that is in memory and as it was stored; else None."""
    try:
        plan = _plan(reading, queue, asked, asked.offset, _resident_entries(queue))
        if not plan.count:
            return Found(plan, b"") if plan.suspect is None else None
        body = read_resident_ranges(reading.log, plan.ranges)
    except (BlockingIOError, CorruptRecordError):
        return None
    if body is None or first_wrong(reading.check(queue), body, plan.wanted) is not None:
        return None
    return Found(plan, body)


def get_batches(
    reading: QueueReading, queue: BatchQueue, asked: Asked, *, skip_damaged: bool
) -> Found:
    """Return what the reader gets; may wait for the device.

    Raises:
        DamagedRecordError: the first batch cannot be read, and `skip_damaged` is False.
        OSError: the device fails.
    """
    offset, skipped = asked.offset, list[Damage]()
    for _ in range(_ROUNDS_MAX):
        plan = _plan(reading, queue, asked, offset)
        body = _read(reading, plan)
        if body is None:
            continue  # a segment was removed since the plan was made, and the log knows
        wrong = first_wrong(reading.check(queue), body, plan.wanted)
        if wrong is not None and wrong[0] > 0:
            cut = _plan(reading, queue, asked, offset, None, plan.wanted[wrong[0]].queue_offset)
            return Found(cut, _read(reading, cut) or b"", (), skipped)
        if wrong is None and (plan.count or plan.suspect is None):
            return Found(plan, body, (), skipped)
        damage = _damage(reading, queue, plan, None if wrong is None else wrong[1])
        if not skip_damaged:
            raise damaged_error(damage)
        skipped.append(damage)
        offset = _behind(queue, damage.queue_offset)
    return Found(_plan(reading, queue, asked, offset, None, offset), b"", (), skipped)


def _plan(
    reading: QueueReading,
    queue: BatchQueue,
    asked: Asked,
    offset: int,
    read: ReadEntries | None = None,
    stop_before: int | None = None,
) -> GetPlan:
    return plan_batches(
        queue, reading.view(), reading.config, offset, (asked.max_messages, asked.max_bytes),
        accepts=asked.accepts, read=read, stop_before=stop_before,
    )  # fmt: skip


def _read(reading: QueueReading, plan: GetPlan) -> bytes | None:
    """Return the batches; zeros where one cannot be read; None if its segment is gone."""
    parts = []
    for position, size in plan.ranges:
        try:
            data = reading.log.read(position, size)
        except FileNotFoundError:
            if position < reading.log.min_position:
                return None
            data = b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        parts.append(data.ljust(size, b"\0"))
    return b"".join(parts)


def _damage(reading: QueueReading, queue: BatchQueue, plan: GetPlan, reason: str | None) -> Damage:
    """Return what is to be said of the first batch of a plan, or of its entry."""
    if reason is not None:
        first = plan.wanted[0]
        position = first.physical_offset
        file, file_offset = reading.log.segments.name(position), reading.log.file_offset(position)
        return Damage(queue.topic, queue.queue_id, first.queue_offset, file, file_offset, reason)
    offset = plan.next_offset
    byte = queue.index_of(offset) * BATCH_ENTRY_BYTES
    return Damage(
        queue.topic, queue.queue_id, offset, queue.segments.name(byte),
        byte % queue.segments.file_bytes,
        "its queue entry names no batch of the log; a restart makes the queue anew from the log",
    )  # fmt: skip


def _behind(queue: BatchQueue, offset: int) -> int:
    """Return where a reader goes on that passes over the batch with the offset."""
    index = queue.index_of(offset)
    for entry in _entries_from(queue, index + 1, queue.read):
        if entry.is_written and offset < entry.queue_offset < queue.max_offset:
            return entry.queue_offset
    return queue.max_offset


def _resident_entries(queue: BatchQueue) -> ReadEntries:
    def read(index: int, count: int) -> bytes:
        data = queue.read_resident(index, count)
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "queue entries are not in memory")
        return data

    return read


def _entries(queue: BatchQueue, offset: int, read: ReadEntries) -> Iterator[BatchEntry]:
    return _entries_from(queue, queue.index_of(offset, read), read)


def _entries_from(queue: BatchQueue, index: int, read: ReadEntries) -> Iterator[BatchEntry]:
    """Return entries from a number on, up to the end of what can be read."""
    while index < queue.end:
        data = read(index, _READ_ENTRIES)
        data = data[: len(data) - len(data) % BATCH_ENTRY_BYTES]
        if not data:
            return
        yield from batch_entries(data)
        index += len(data) // BATCH_ENTRY_BYTES
