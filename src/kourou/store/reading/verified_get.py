"""Verified reads of a queue: return only records that were stored in it.

Records that this process wrote and that are in memory are trusted. All others are verified: the
record must be whole, and belong to that queue and offset, because a corrupt queue entry may refer
to another record. (Only the fast path in `fast_get` remembers earlier verifications.)

    found                        `get_resident`, never waits    `get_verified`, may wait
    not in memory                None                           reads it
    a corrupt queue entry        None                           repairs it from the log
    a damaged record             None                           returns those before it; if it is
                                                                first, raises or (on request) skips

Both run on any thread while another thread writes. Repaired entries are returned; the caller writes
them to the files.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kourou.errors import CorruptRecordError, DamagedRecordError
from kourou.protocol.record.check import ExpectedRecord, RecordCheck
from kourou.protocol.record.check_columns import ColumnCheck, EntryColumns
from kourou.protocol.record.scan import split_records
from kourou.store.config import BELIEVED_BYTES, StoreConfig
from kourou.store.formats import ENTRY, ENTRY_BYTES, QueueEntry
from kourou.store.log.commitlog import CommitLog
from kourou.store.log.record_reader import read_resident_ranges
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.extended_queue import ExtendedQueue
from kourou.store.queues.queue_extension import ExtensionUnit
from kourou.store.reading.get_plan import (
    Accepts,
    GetPlan,
    GetStatus,
    LogView,
    ReadEntries,
    plan_get,
)
from kourou.store.reading.queue_repair import SEARCH_BYTES_MAX, Damage, QueueRepair, RepairedEntry

_COLUMN_CHECK: Final = ColumnCheck()
_TOGETHER_MIN: Final = 4
"""The number of records from which verifying all in one pass pays."""
_ROUNDS_MAX: Final = 64
"""The most repairs and skips of one read; the next read continues."""


class GetRequest(NamedTuple):
    """A request to read a queue.

    Attributes:
        accepts: called with each entry's tags code; None accepts all.
        may_match: called with each entry's extension unit, if it has one; None accepts all.
    """

    offset: int
    max_messages: int
    max_bytes: int
    accepts: Accepts | None
    may_match: Callable[[ExtensionUnit], bool] | None = None


class GetResult(NamedTuple):
    """The result of a read.

    Attributes:
        plan: the status and the next offset.
        body: the stored records; empty unless the status is FOUND.
        repaired: queue entries repaired from the log.
        skipped: damaged messages that the read skipped.
    """

    plan: GetPlan
    body: bytes
    repaired: Sequence[RepairedEntry] = ()
    skipped: Sequence[Damage] = ()

    def records(self) -> Iterator[bytes]:
        """Yield the records one by one."""
        return split_records(self.body)


class ReadContext(NamedTuple):
    """The context of a read: log, queue and limits.

    Attributes:
        queue: None if it does not exist.
        floor: records below this log position belong to a deleted topic of the same name.
        search_bytes_max: see `QueueRepair`.
        believed_bytes: this many bytes before the log's end count as in memory since they were
            written; older pages may have been read from the device again.
    """

    log: CommitLog
    queue: ConsumeQueue | None
    config: StoreConfig
    floor: int = 0
    search_bytes_max: int = SEARCH_BYTES_MAX
    believed_bytes: int = BELIEVED_BYTES

    def view(self) -> LogView:
        """Return the current state of the log."""
        log, config = self.log, self.config
        end = log.written_position
        unverified_below = end - self.believed_bytes
        return LogView(log.min_position, end, config.commitlog_segment_bytes, unverified_below)

    def check(self, queue: ConsumeQueue) -> RecordCheck:
        """Return the verifier of the queue's records."""
        has_extension = isinstance(queue, ExtendedQueue)
        return RecordCheck(
            queue.topic, queue.queue_id, self.config.delay_levels_ms, has_extension=has_extension
        )


def get_resident(context: ReadContext, request: GetRequest) -> GetResult | None:
    """Return the result of the read if all of it is in memory and valid; else None."""
    queue = context.queue
    read = None if queue is None else _resident_entries(queue)
    limits = (request.max_messages, request.max_bytes)
    try:
        plan = plan_get(
            queue, context.view(), context.config, request.offset, limits,
            accepts=request.accepts, read=read,
        )  # fmt: skip
        if not plan.count:
            is_settled = plan.suspect is None and plan.status is not GetStatus.OFFSET_FOUND_NULL
            return GetResult(plan, b"") if is_settled else None
        body = read_resident_ranges(context.log, plan.ranges)
    except (BlockingIOError, CorruptRecordError):
        return None
    if body is None or queue is None:
        return None
    if plan.expected and first_wrong(context.check(queue), body, plan.expected) is not None:
        return None
    return GetResult(plan, body)


def _resident_entries(queue: ConsumeQueue) -> ReadEntries:
    def read(queue_offset: int, count: int) -> bytes:
        data = queue.read_resident(queue_offset, count)
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "queue entries are not in memory")
        return data

    return read


def get_verified(
    context: ReadContext, request: GetRequest, *, skip_damaged: bool = False
) -> GetResult:
    """Return the result of the read; may wait for the device.

    Raises:
        DamagedRecordError: the first message is damaged, and `skip_damaged` is False.
        CorruptRecordError: the queue's file is missing or cut short.
        OSError: the device fails.
    """
    if context.queue is None:
        plan = plan_get(None, context.view(), context.config, request.offset, (0, 0), accepts=None)
        return GetResult(plan, b"")
    return _VerifiedGet(context, context.queue, request, skip_damaged=skip_damaged).run()


class _VerifiedGet:
    """One verified read; repairs corrupt queue entries."""

    def __init__(
        self, context: ReadContext, queue: ConsumeQueue, request: GetRequest, *, skip_damaged: bool
    ) -> None:
        self._context = context
        self._log = context.log
        self._queue = queue
        self._view = context.view()
        self._config = context.config
        self._request = request
        self._skip_damaged = skip_damaged
        self._check = context.check(queue)
        self._repair = QueueRepair(
            context.log, queue, self._check, floor=context.floor, bytes_max=context.search_bytes_max
        )  # fmt: skip
        self._found: dict[int, QueueEntry] = {}
        self._removed: set[int] = set()
        self._skipped: list[Damage] = []
        self._unreadable: dict[int, str] = {}  # physical offset -> the device's error

    def run(self) -> GetResult:
        """Repeat plan and read until there is a result or an error."""
        offset = self._request.offset
        for _ in range(_ROUNDS_MAX):
            self._view = self._context.view()
            plan = self._plan(offset)
            body = self._read(plan) if plan.count else b""
            if body is None:
                continue  # a segment was removed meanwhile; the next plan takes that into account
            wrong = first_wrong(self._check, body, plan.expected)
            if wrong is None and (plan.count or plan.suspect is None):
                return self._answer(plan, body)
            damage = self._repair_first(plan, wrong)
            if damage is None:
                continue
            if wrong is not None and wrong[0] > 0:
                return self._answer(*_first_messages(plan, body, wrong[0]))
            if not self._skip_damaged:
                raise damaged_error(damage)
            self._skipped.append(damage)
            offset = damage.queue_offset + 1
        return self._answer(self._nothing_found(offset), b"")

    def _plan(self, offset: int) -> GetPlan:
        request = self._request
        plan = plan_get(
            self._queue, self._view, self._config, offset,
            (request.max_messages, request.max_bytes),
            accepts=request.accepts, read=self._entries, verify_all=True, removed=self._removed,
        )  # fmt: skip
        segments, byte = self._queue.segments, offset * ENTRY_BYTES
        is_there = segments.first <= byte < segments.end and offset >= self._queue.min_offset
        if plan.status is GetStatus.OFFSET_FOUND_NULL and is_there:
            raise CorruptRecordError(
                segments.name(byte),
                byte % segments.file_bytes,
                "the file is missing or cut short; a restart rebuilds the queue from the log",
            )
        return plan

    def _entries(self, queue_offset: int, count: int) -> bytes:
        """Return entries of the queue, with the repaired ones in their places."""
        data = self._queue.read(queue_offset, count)
        if not self._found:
            return data
        return _with_repaired(data, queue_offset, self._found)

    def _read(self, plan: GetPlan) -> bytes | None:
        """Return the plan's records, zeros for unreadable ones; None if a segment was removed."""
        parts = []
        for position, size in plan.ranges:
            try:
                data = self._log.read(position, size)
            except FileNotFoundError:
                if position < self._log.min_position:
                    return None
                data = b""
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                data = self._read_each(plan, position, size)
            parts.append(data.ljust(size, b"\0"))
        return b"".join(parts)

    def _read_each(self, plan: GetPlan, position: int, size: int) -> bytes:
        """Return the range's records, zeros for unreadable ones."""
        parts = []
        for expected in plan.expected:
            if position <= expected.physical_offset < position + size:
                try:
                    data = self._log.read(expected.physical_offset, expected.size)
                except OSError as error:
                    self._unreadable[expected.physical_offset] = f"it cannot be read: {error}"
                    data = b""
                parts.append(data.ljust(expected.size, b"\0"))
        return b"".join(parts)

    def _repair_first(self, plan: GetPlan, wrong: tuple[int, str] | None) -> Damage | None:
        """Try to repair the entry of the first invalid message; return the damage if that fails."""
        if wrong is not None:
            at, position, *_ = plan.expected[wrong[0]]
            reason = self._unreadable.get(position, wrong[1])
        else:
            assert plan.suspect is not None
            at, reason = plan.suspect, "its queue entry refers to no position in the log"
        result = self._repair.search(at, reason)
        if at in result.found and ENTRY.pack(*result.found[at]) != self._entries(at, 1):
            self._found.update(result.found)
            return None
        if result.is_removed:
            self._removed.add(at)
            return None
        queue = self._queue
        return result.damage or Damage(
            queue.topic, queue.queue_id, at, self._log.segments.name(result.found[at][0]),
            self._log.file_offset(result.found[at][0]), reason,
        )  # fmt: skip

    def _nothing_found(self, offset: int) -> GetPlan:
        low, high = self._queue.min_offset, self._queue.max_offset
        return GetPlan(GetStatus.NO_MATCHED_MESSAGE, offset, low, high, [], 0)

    def _answer(self, plan: GetPlan, body: bytes) -> GetResult:
        queue = self._queue
        repaired = [
            RepairedEntry(queue.topic, queue.queue_id, offset, entry)
            for offset, entry in sorted(self._found.items())
        ]
        return GetResult(plan, body, repaired, self._skipped)


def _with_repaired(data: bytes, queue_offset: int, found: Mapping[int, QueueEntry]) -> bytes:
    patched = bytearray(data)
    for index in range(len(data) // ENTRY_BYTES):
        entry = found.get(queue_offset + index)
        if entry is not None:
            ENTRY.pack_into(patched, index * ENTRY_BYTES, *entry)
    return bytes(patched)


def first_wrong(
    check: RecordCheck, body: bytes, expected: Sequence[ExpectedRecord]
) -> tuple[int, str] | None:
    """Return the index of the first record that is not the expected one, and the reason."""
    if len(expected) >= _TOGETHER_MIN:
        columns = EntryColumns(*zip(*expected, strict=True))
        if _COLUMN_CHECK.is_certain(check.topic, check.queue_id, columns, body):
            return None
    return check.first_wrong(body, expected)


def _first_messages(plan: GetPlan, body: bytes, count: int) -> tuple[GetPlan, bytes]:
    """Return the plan and its bytes reduced to the first `count` messages."""
    first = plan.expected[:count]
    cut = plan._replace(
        next_offset=plan.expected[count].queue_offset,
        ranges=[(one.physical_offset, one.size) for one in first],
        count=count,
        expected=first,
        suspect=None,
    )
    return cut, body[: sum(one.size for one in first)]


def damaged_error(damage: Damage) -> DamagedRecordError:
    """Return the error for a reader of a damaged message."""
    return DamagedRecordError(
        damage.file, damage.file_offset, damage.reason,
        topic=damage.topic, queue_id=damage.queue_id, queue_offset=damage.queue_offset,
    )  # fmt: skip
