"""Reads of batch queues: return whole batches, each record verified.

A read at an offset inside a batch returns that batch, like Java: clients skip the messages before
their offset. A batch counts as its messages; the first batch is returned whatever their number. A
corrupt entry or record is refused with an error that names it, or skipped on request. Corrupt
entries are rebuilt from the log only at the next start.

Tags belong to the messages in the batch's body. A batch without tags of its own is returned
whatever the tag filter, and clients drop the messages they do not want. Java returns nothing.

Source: DefaultMessageStore.getMessage with BatchConsumeQueue, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final, NamedTuple

from kourou.errors import CorruptRecordError
from kourou.protocol.record.check import ExpectedRecord
from kourou.store.config import StoreConfig
from kourou.store.formats import BATCH_ENTRY_BYTES
from kourou.store.log.record_reader import read_resident_ranges
from kourou.store.queues.batch_queue import BatchEntry, BatchQueue, batch_entries
from kourou.store.reading.get_plan import (
    Accepts,
    GetPlan,
    GetStatus,
    LogView,
    ReadEntries,
    cold_below,
    get_bytes_max,
    plan_outside_queue,
)
from kourou.store.reading.queue_repair import Damage
from kourou.store.reading.verified_get import (
    GetRequest,
    GetResult,
    ReadContext,
    damaged_error,
    first_wrong,
)

_READ_ENTRIES: Final = 16
_ROUNDS_MAX: Final = 64
"""The most damaged batches that one read skips; the next read continues."""


class _Limits(NamedTuple):
    """The limits of one read."""

    max_messages: int
    max_bytes: int
    scan_messages: float
    cold_below: int
    config: StoreConfig

    @classmethod
    def of(cls, config: StoreConfig, view: LogView, max_messages: int, max_bytes: int) -> _Limits:
        """Return the limits that Java applies."""
        scan_bytes = max(config.scan_bytes_max, max_messages * BATCH_ENTRY_BYTES)
        return cls(
            max_messages,
            get_bytes_max(max_bytes),
            scan_bytes / BATCH_ENTRY_BYTES,
            cold_below(view, config),
            config,
        )

    def is_full(self, count: int, size: int, entry: BatchEntry) -> bool:
        """Tell whether the batch exceeds the limits after `count` messages of `size` bytes."""
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
    """Return the plan of a read at `offset`; its `expected` has an entry for each batch.

    Args:
        queue: the queue.
        view: the state of the log.
        config: limits.
        offset: the reader's offset.
        limits: the most messages, and the most bytes.
        accepts: called with each batch's tags code; None accepts all.
        read: replaces the queue's own read; its exceptions pass through.
        stop_before: the offset of the batch before which the plan ends.
    """
    nothing = plan_outside_queue(queue, offset)
    if nothing is not None:
        return nothing
    low, high = queue.min_offset, queue.max_offset
    bounds = _Limits.of(config, view, *limits)
    selected: list[ExpectedRecord] = []
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
            selected.append(ExpectedRecord(entry.queue_offset, *entry[:3]))
            count, size, status = count + entry.count, size + entry.size, GetStatus.FOUND
        at = entry.end
    if at == offset and suspect is None and stop_before is None:
        suspect = at  # no entry of the queue's file can be read
    ranges = [(one.physical_offset, one.size) for one in selected]
    return GetPlan(status, at, low, high, ranges, count, selected, suspect)


def get_batches_resident(
    context: ReadContext, queue: BatchQueue, request: GetRequest
) -> GetResult | None:
    """Return the result of the read if all of it is in memory and valid; else None."""
    try:
        plan = _plan(context, queue, request, request.offset, _resident_entries(queue))
        if not plan.count:
            return GetResult(plan, b"") if plan.suspect is None else None
        body = read_resident_ranges(context.log, plan.ranges)
    except (BlockingIOError, CorruptRecordError):
        return None
    if body is None or first_wrong(context.check(queue), body, plan.expected) is not None:
        return None
    return GetResult(plan, body)


def get_batches(
    context: ReadContext, queue: BatchQueue, request: GetRequest, *, skip_damaged: bool
) -> GetResult:
    """Return the result of the read; may wait for the device.

    Raises:
        DamagedRecordError: the first batch cannot be read, and `skip_damaged` is False.
        OSError: the device fails.
    """
    offset, skipped = request.offset, list[Damage]()
    for _ in range(_ROUNDS_MAX):
        plan = _plan(context, queue, request, offset)
        body = _read(context, plan)
        if body is None:
            continue  # a segment was removed meanwhile; the next plan takes that into account
        wrong = first_wrong(context.check(queue), body, plan.expected)
        if wrong is not None and wrong[0] > 0:
            cut = _plan(context, queue, request, offset, None, plan.expected[wrong[0]].queue_offset)
            return GetResult(cut, _read(context, cut) or b"", (), skipped)
        if wrong is None and (plan.count or plan.suspect is None):
            return GetResult(plan, body, (), skipped)
        damage = _damage(context, queue, plan, None if wrong is None else wrong[1])
        if not skip_damaged:
            raise damaged_error(damage)
        skipped.append(damage)
        offset = _offset_after(queue, damage.queue_offset)
    return GetResult(_plan(context, queue, request, offset, None, offset), b"", (), skipped)


def _plan(
    context: ReadContext,
    queue: BatchQueue,
    request: GetRequest,
    offset: int,
    read: ReadEntries | None = None,
    stop_before: int | None = None,
) -> GetPlan:
    return plan_batches(
        queue, context.view(), context.config, offset, (request.max_messages, request.max_bytes),
        accepts=request.accepts, read=read, stop_before=stop_before,
    )  # fmt: skip


def _read(context: ReadContext, plan: GetPlan) -> bytes | None:
    """Return the batches, zeros for unreadable ones; None if a segment was removed."""
    parts = []
    for position, size in plan.ranges:
        try:
            data = context.log.read(position, size)
        except FileNotFoundError:
            if position < context.log.min_position:
                return None
            data = b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""
        parts.append(data.ljust(size, b"\0"))
    return b"".join(parts)


def _damage(context: ReadContext, queue: BatchQueue, plan: GetPlan, reason: str | None) -> Damage:
    """Return the damage of the first batch of a plan, or of its entry if `reason` is None."""
    if reason is not None:
        first = plan.expected[0]
        position = first.physical_offset
        file, file_offset = context.log.segments.name(position), context.log.file_offset(position)
        return Damage(queue.topic, queue.queue_id, first.queue_offset, file, file_offset, reason)
    offset = plan.next_offset
    byte = queue.index_of(offset) * BATCH_ENTRY_BYTES
    return Damage(
        queue.topic, queue.queue_id, offset, queue.segments.name(byte),
        byte % queue.segments.file_bytes,
        "its queue entry refers to no batch of the log; a restart rebuilds the queue from the log",
    )  # fmt: skip


def _offset_after(queue: BatchQueue, offset: int) -> int:
    """Return the offset after the batch that contains the offset, for a read that skips it."""
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
    """Yield the entries from `index` until the first that cannot be read."""
    while index < queue.end:
        data = read(index, _READ_ENTRIES)
        data = data[: len(data) - len(data) % BATCH_ENTRY_BYTES]
        if not data:
            return
        yield from batch_entries(data)
        index += len(data) // BATCH_ENTRY_BYTES
