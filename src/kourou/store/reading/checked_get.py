"""A read of a queue that hands out nothing but what was stored in it.

What this process wrote and is in memory is believed. All else is compared: whether the record is
whole, and whether it is the one of that queue and offset, since a queue entry that rotted on the
device may name another one. (Only the read of `plain_get` remembers what was compared before.)

    found                        at once (`get_resident`)    where it may wait (`get_checked`)
    not in memory                left to the other           read
    an entry that rotted         left to the other           found anew in the log
    a damaged record             left to the other           refused by name; those before it are
                                                             handed out first; skipped when told

Both run on any thread beside the one that writes; what is to be mended in files is handed back.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kourou.errors import CorruptRecordError, DamagedRecordError
from kourou.store.config import BELIEVED_BYTES, StoreConfig
from kourou.store.formats import ENTRY, ENTRY_BYTES, RECORD_START, QueueEntry
from kourou.store.log.commitlog import CommitLog
from kourou.store.log.record_check import RecordCheck, Wanted
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
from kourou.store.reading.queue_repair import SEARCH_BYTES_MAX, Damage, QueueRepair
from kourou.store.reading.sealed_run import Run, SealedRunCheck

_SEALED: Final = SealedRunCheck()
_TOGETHER_MIN: Final = 4
"""Records of which it is worth to look at all together first."""
_ROUNDS_MAX: Final = 64
"""Places that one read mends or skips; the next read goes on."""


class Asked(NamedTuple):
    """What a reader asks of a queue.

    Attributes:
        accepts: asked for each entry's tags code; None takes all.
        may_match: asked for each entry's extension unit, where there is one; None takes all.
    """

    offset: int
    max_messages: int
    max_bytes: int
    accepts: Accepts | None
    may_match: Callable[[ExtensionUnit], bool] | None = None


class Mended(NamedTuple):
    """A queue entry that is to be written again."""

    topic: str
    queue_id: int
    queue_offset: int
    entry: QueueEntry


class Found(NamedTuple):
    """What a read hands out.

    Attributes:
        plan: the outcome, and where the reader goes on.
        body: the records as they are stored; empty unless the outcome is FOUND.
        mended: entries that were found anew.
        skipped: damaged messages that the reader goes on behind.
    """

    plan: GetPlan
    body: bytes
    mended: Sequence[Mended] = ()
    skipped: Sequence[Damage] = ()

    def records(self) -> Iterator[bytes]:
        """Return each record by itself."""
        at = 0
        while at < len(self.body):
            size = RECORD_START.unpack_from(self.body, at)[0]
            yield self.body[at : at + size]
            at += size


class QueueReading(NamedTuple):
    """What a read needs beside what it is asked.

    Attributes:
        queue: None if there is none.
        floor: records of the log below are of an earlier topic of the same name.
        search_bytes_max: see `QueueRepair`.
        believed_bytes: behind the log's end so many may count as in memory ever since they were
            written; what is older may have been read anew, together with its neighbours.
    """

    log: CommitLog
    queue: ConsumeQueue | None
    config: StoreConfig
    floor: int = 0
    search_bytes_max: int = SEARCH_BYTES_MAX
    believed_bytes: int = BELIEVED_BYTES

    def view(self) -> LogView:
        """Return the log as it is now."""
        log, config = self.log, self.config
        end = log.written_position
        unchecked_below = end - self.believed_bytes
        return LogView(log.min_position, end, config.commitlog_segment_bytes, unchecked_below)

    def check(self, queue: ConsumeQueue) -> RecordCheck:
        """Return what compares the queue's records."""
        has_extension = isinstance(queue, ExtendedQueue)
        return RecordCheck(
            queue.topic, queue.queue_id, self.config.delay_levels_ms, has_extension=has_extension
        )


def get_resident(reading: QueueReading, asked: Asked) -> Found | None:
    """Return what the reader gets if that is in memory and as it was stored; else None."""
    queue = reading.queue
    read = None if queue is None else _resident_entries(queue)
    limits = (asked.max_messages, asked.max_bytes)
    try:
        plan = plan_get(
            queue, reading.view(), reading.config, asked.offset, limits,
            accepts=asked.accepts, read=read,
        )  # fmt: skip
        if not plan.count:
            is_settled = plan.suspect is None and plan.status is not GetStatus.OFFSET_FOUND_NULL
            return Found(plan, b"") if is_settled else None
        body = read_resident_ranges(reading.log, plan.ranges)
    except (BlockingIOError, CorruptRecordError):
        return None
    if body is None or queue is None:
        return None
    if plan.wanted and first_wrong(reading.check(queue), body, plan.wanted) is not None:
        return None
    return Found(plan, body)


def _resident_entries(queue: ConsumeQueue) -> ReadEntries:
    def read(queue_offset: int, count: int) -> bytes:
        data = queue.read_resident(queue_offset, count)
        if data is None:
            raise BlockingIOError(errno.EAGAIN, "queue entries are not in memory")
        return data

    return read


def get_checked(reading: QueueReading, asked: Asked, *, skip_damaged: bool = False) -> Found:
    """Return what the reader gets; may wait for the device.

    Raises:
        DamagedRecordError: the first message cannot be read, and `skip_damaged` is False.
        CorruptRecordError: the queue's file is missing or cut short.
        OSError: the device fails.
    """
    if reading.queue is None:
        plan = plan_get(None, reading.view(), reading.config, asked.offset, (0, 0), accepts=None)
        return Found(plan, b"")
    return _CheckedGet(reading, reading.queue, asked, skip_damaged=skip_damaged).run()


class _CheckedGet:
    """One read that may have to mend what it meets."""

    def __init__(
        self, reading: QueueReading, queue: ConsumeQueue, asked: Asked, *, skip_damaged: bool
    ) -> None:
        self._reading = reading
        self._log = reading.log
        self._queue = queue
        self._view = reading.view()
        self._config = reading.config
        self._asked = asked
        self._skip_damaged = skip_damaged
        self._check = reading.check(queue)
        self._repair = QueueRepair(
            reading.log, queue, self._check, floor=reading.floor, bytes_max=reading.search_bytes_max
        )  # fmt: skip
        self._found: dict[int, QueueEntry] = {}
        self._removed: set[int] = set()
        self._skipped: list[Damage] = []
        self._unreadable: dict[int, str] = {}  # physical offset -> what the device said

    def run(self) -> Found:
        """Read until there is something to hand out, or to tell."""
        offset = self._asked.offset
        for _ in range(_ROUNDS_MAX):
            self._view = self._reading.view()
            plan = self._plan(offset)
            body = self._read(plan) if plan.count else b""
            if body is None:
                continue  # a segment was removed since the plan was made, and the log knows
            wrong = first_wrong(self._check, body, plan.wanted)
            if wrong is None and (plan.count or plan.suspect is None):
                return self._answer(plan, body)
            damage = self._look(plan, wrong)
            if damage is None:
                continue
            if wrong is not None and wrong[0] > 0:
                return self._answer(*_cut(plan, body, wrong[0]))
            if not self._skip_damaged:
                raise damaged_error(damage)
            self._skipped.append(damage)
            offset = damage.queue_offset + 1
        return self._answer(self._nothing(offset), b"")

    def _plan(self, offset: int) -> GetPlan:
        asked = self._asked
        plan = plan_get(
            self._queue, self._view, self._config, offset, (asked.max_messages, asked.max_bytes),
            accepts=asked.accepts, read=self._entries, is_checked=True, removed=self._removed,
        )  # fmt: skip
        segments, byte = self._queue.segments, offset * ENTRY_BYTES
        is_there = segments.first <= byte < segments.end and offset >= self._queue.min_offset
        if plan.status is GetStatus.OFFSET_FOUND_NULL and is_there:
            raise CorruptRecordError(
                segments.name(byte),
                byte % segments.file_bytes,
                "the file is missing or cut short; a restart makes the queue anew from the log",
            )
        return plan

    def _entries(self, queue_offset: int, count: int) -> bytes:
        """Return entries of the queue, what was found anew in its place."""
        data = self._queue.read(queue_offset, count)
        if not self._found:
            return data
        return _laid_over(data, queue_offset, self._found)

    def _read(self, plan: GetPlan) -> bytes | None:
        """Return the records that the plan lists; zeros where none can be read; None if gone."""
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
        """Return the range's records, zeros for those that the device cannot read."""
        parts = []
        for wanted in plan.wanted:
            if position <= wanted.physical_offset < position + size:
                try:
                    data = self._log.read(wanted.physical_offset, wanted.size)
                except OSError as error:
                    self._unreadable[wanted.physical_offset] = f"it cannot be read: {error}"
                    data = b""
                parts.append(data.ljust(wanted.size, b"\0"))
        return b"".join(parts)

    def _look(self, plan: GetPlan, wrong: tuple[int, str] | None) -> Damage | None:
        """Look for the first message that cannot be handed out; return why it is not there."""
        if wrong is not None:
            at, position, *_ = plan.wanted[wrong[0]]
            reason = self._unreadable.get(position, wrong[1])
        else:
            assert plan.suspect is not None
            at, reason = plan.suspect, "its queue entry names no place in the log"
        looked = self._repair.look_for(at, reason)
        if at in looked.found and ENTRY.pack(*looked.found[at]) != self._entries(at, 1):
            self._found.update(looked.found)
            return None
        if looked.is_gone:
            self._removed.add(at)
            return None
        queue = self._queue
        return looked.damage or Damage(
            queue.topic, queue.queue_id, at, self._log.segments.name(looked.found[at][0]),
            self._log.file_offset(looked.found[at][0]), reason,
        )  # fmt: skip

    def _nothing(self, offset: int) -> GetPlan:
        low, high = self._queue.min_offset, self._queue.max_offset
        return GetPlan(GetStatus.NO_MATCHED_MESSAGE, offset, low, high, [], 0)

    def _answer(self, plan: GetPlan, body: bytes) -> Found:
        queue = self._queue
        mended = [
            Mended(queue.topic, queue.queue_id, offset, entry)
            for offset, entry in sorted(self._found.items())
        ]
        return Found(plan, body, mended, self._skipped)


def _laid_over(data: bytes, queue_offset: int, found: Mapping[int, QueueEntry]) -> bytes:
    patched = bytearray(data)
    for index in range(len(data) // ENTRY_BYTES):
        entry = found.get(queue_offset + index)
        if entry is not None:
            ENTRY.pack_into(patched, index * ENTRY_BYTES, *entry)
    return bytes(patched)


def first_wrong(
    check: RecordCheck, body: bytes, wanted: Sequence[Wanted]
) -> tuple[int, str] | None:
    """Return the number of the first record that is not the one wanted, and why."""
    if len(wanted) >= _TOGETHER_MIN:
        run = Run(*zip(*wanted, strict=True))
        if _SEALED.is_certain(check.topic, check.queue_id, run, body):
            return None
    return check.first_wrong(body, wanted)


def _cut(plan: GetPlan, body: bytes, count: int) -> tuple[GetPlan, bytes]:
    """Return the plan and its bytes up to the message number `count`."""
    kept = plan.wanted[:count]
    cut = plan._replace(
        next_offset=plan.wanted[count].queue_offset,
        ranges=[(one.physical_offset, one.size) for one in kept],
        count=count,
        wanted=kept,
        suspect=None,
    )
    return cut, body[: sum(one.size for one in kept)]


def damaged_error(damage: Damage) -> DamagedRecordError:
    """Return what a reader is told of a damaged message."""
    return DamagedRecordError(
        damage.file, damage.file_offset, damage.reason,
        topic=damage.topic, queue_id=damage.queue_id, queue_offset=damage.queue_offset,
    )  # fmt: skip
