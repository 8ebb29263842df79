"""Revives messages that were not acknowledged in time: one loop for each queue of the revive topic.

    read      checkpoints and acks that the timer has delivered, into a `ReviveWindow`
    wait      until the invisible time of the first checkpoint is over, and the timer has delivered
              all that was due by then; the acks in the queue are read after that
    revive    store what is not acknowledged in the retry topic (`revive_store.py`)
    commit    the revive offset: that of the last record that is not needed any more, as in Java

A queue that holds records, or for which the timer does, is read although there are fewer queues by
now, or the cluster was renamed: its messages are invisible until then.

Source: PopReviveService.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.periodic_tasks import wait_woken
from kourou.broker.popping.ack_writer import AckWriter
from kourou.broker.popping.checkpoint import (
    CheckpointKey,
    PopCheckpoint,
    checkpoint_of,
    is_relayed,
    key_of_ack,
)
from kourou.broker.popping.foreign_revivals import ForeignRevivals
from kourou.broker.popping.in_flight import InFlight
from kourou.broker.popping.pop_counts import ACK, CHECKPOINT, PopCounts
from kourou.broker.popping.revive_log import REVIVE_PREFIX, ReviveLog, log_end_of
from kourou.broker.popping.revive_store import Revived, ReviveStore
from kourou.broker.popping.revive_window import HeldCheckpoint, ReviveWindow
from kourou.broker.pulling.long_polling import Arrived
from kourou.broker.timer.timers import Timers
from kourou.decimals import decimal_or
from kourou.errors import MalformedBodyError, MalformedMessageError
from kourou.model import properties as names
from kourou.model.properties import decode_properties
from kourou.protocol.popping.revive_records import (
    CHECKPOINT_TAG,
    decode_ack,
    decode_checkpoint,
)
from kourou.protocol.popping.topic_names import REVIVE_GROUP
from kourou.protocol.record.read import read_record
from kourou.store.message_store import GetRequest, GetResult

log = logging.getLogger(__name__)

READ_RECORDS: Final = 256
READ_BYTES: Final = 1024 * 1024
TOGETHER_MAX: Final = 32
"""Limit on the checkpoints of one queue that are revived at the same time."""
ARRIVAL_DELAY_MS: Final = 100
"""How long records may wait until they are read; checkpoints arrive a second before they are due.
"""
LEVEL_RETRY_MS: Final = 10
"""How often to look whether the timer has delivered all that is due."""
REFUSED_RETRY_MS: Final = 1_000
"""Delay before another attempt after the store has refused a message."""
FAILED_RETRY_MS: Final = 1_000
WAIT_MS_MAX: Final = 30_000
"""Longest interval between two looks while checkpoints wait, in case the clock is set forward."""
_NOWHERE: Final = 2**62
"""A position beyond all of the log."""


@dataclass(frozen=True, slots=True)
class ReviveParts:
    """Components that all loops use.

    Attributes:
        writer: tells whether an ack of a checkpoint is being stored.
        foreign: revives the checkpoints of other brokers.
        recovery_is_complete: whether the checkpoints from before the start are all known.
        revived: messages that were revived before a kill, by their checkpoint.
        early_acked: messages whose ack the timer delivered before a kill, but not their checkpoint.
        releasing: checkpoints whose messages are being made visible before their time.
        taken: checkpoints that came due before those from before the start were all known.
    """

    context: BrokerContext
    offsets: ConsumerOffsets
    timers: Timers
    in_flight: InFlight
    writer: AckWriter
    store: ReviveStore
    foreign: ForeignRevivals
    counts: PopCounts
    recovery_is_complete: Callable[[], bool]
    revived: dict[CheckpointKey, set[int]] = field(default_factory=dict)
    early_acked: dict[CheckpointKey, set[int]] = field(default_factory=dict)
    releasing: set[CheckpointKey] = field(default_factory=set)
    taken: set[CheckpointKey] = field(default_factory=set)


def is_served(checkpoint: PopCheckpoint, context: BrokerContext) -> bool:
    """Return whether topic and group of a checkpoint exist, and its group was not deleted since.

    A topic may have been deleted and created again: see `PopCheckpoint.covers`.
    """
    key, groups = checkpoint.key, context.groups
    return (
        context.topics.get(key.topic) is not None
        and groups.get(key.group) is not None
        and not groups.was_deleted_after(key.group, checkpoint.log_end)
    )


class Revives:
    """The loops of all revive queues."""

    def __init__(self, parts: ReviveParts, revive_log: ReviveLog) -> None:
        """Create the loops of all queues of revive topics, even if pops use fewer of them."""
        self._parts = parts
        context = parts.context
        count = context.config.pop.revive_queue_num
        queues = {(revive_log.topic, queue_id) for queue_id in range(count)}
        for topic_config in context.topics:  # the timer may still hold checkpoints for each queue
            if topic_config.name.startswith(REVIVE_PREFIX):
                queue_nums = max(topic_config.read_queue_nums, topic_config.write_queue_nums)
                queues |= {(topic_config.name, queue_id) for queue_id in range(queue_nums)}
        for topic, queue_ids in context.store.reader.queues().items():
            if topic.startswith(REVIVE_PREFIX):
                queues |= {(topic, queue_id) for queue_id in queue_ids}
        self._loops = {queue: ReviveLoop(parts, *queue) for queue in sorted(queues)}
        self._recovered_position: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()

    def note_revived(self, revived: Mapping[CheckpointKey, set[int]], log_position: int) -> None:
        """Note messages that were revived before a kill, after the offset that was saved.

        They lie in the log from `log_position` on. Another kill must find them again, until the
        revive offsets have passed their checkpoints.
        """
        self._parts.revived.update(revived)
        self._recovered_position = log_position

    def note_early_acked(self, acked: Mapping[CheckpointKey, set[int]]) -> None:
        """Note messages whose ack was delivered before a kill; the queues do not read it again."""
        for key, offsets in acked.items():
            self._parts.early_acked.setdefault(key, set()).update(offsets)

    def ack_early(self, checkpoint: PopCheckpoint) -> None:
        """Acknowledge the messages of a checkpoint that `note_early_acked` named."""
        checkpoint.ack_all(self._parts.early_acked.get(checkpoint.key, ()))

    def was_taken(self, key: CheckpointKey) -> bool:
        """Return whether a checkpoint came due since the start; known until `forget_taken`."""
        return key in self._parts.taken

    def forget_taken(self) -> None:
        """Forget them: all checkpoints from before the start are known."""
        self._parts.taken.clear()

    def revived_before(self, key: CheckpointKey) -> set[int]:
        """Return the offsets of a checkpoint's messages that were revived before a kill."""
        return self._parts.revived.get(key, set())

    @property
    def revived_position(self) -> int:
        """The position of the log before which revived messages are counted in revive offsets."""
        loops = self._loops.values()
        positions = [revive.revived_position for revive in loops]
        if self._recovered_position is not None:
            if all(revive.has_passed_start for revive in loops):
                self._recovered_position = None
                self._parts.revived.clear()
            else:
                positions.append(self._recovered_position)
        return min(positions)

    @property
    def next_offsets(self) -> dict[tuple[str, int], int]:
        """The first offset of each revive queue, by topic and queue id, that is not read yet."""
        return {queue: revive.window.next_offset for queue, revive in self._loops.items()}

    @property
    def is_behind(self) -> bool:
        """Whether a revived message is not counted in the offset of its revive queue."""
        return self.revived_position < _NOWHERE

    @property
    def topics(self) -> set[str]:
        """The names of all revive topics."""
        return {topic for topic, _ in self._loops}

    async def wait_read(self) -> None:
        """Wait until the records that are in the queues now are read."""
        await asyncio.gather(*[revive.wait_read() for revive in self._loops.values()])

    @property
    def loops(self) -> Sequence[ReviveLoop]:
        """All loops."""
        return list(self._loops.values())

    def start(self) -> None:
        """Begin to revive."""
        loop = asyncio.get_running_loop()
        for (topic, queue_id), revive in self._loops.items():
            task = loop.create_task(revive.run(), name=f"revive {topic} {queue_id}")
            self._tasks.add(task)

    async def stop(self) -> None:
        """Begin no more, and return when what is in progress has ended."""
        for revive in self._loops.values():
            revive.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._parts.foreign.stop()
        while self._releases:
            await asyncio.wait(self._releases)

    def abandon(self) -> None:
        """Stop at once, like a killed process."""
        for task in (*self._tasks, *self._releases):
            task.cancel()
        self._parts.foreign.abandon()

    def on_arrivals(self, arrivals: Iterable[Arrived]) -> None:
        """Have new records read; called once per loop iteration."""
        for arrival in arrivals:
            if arrival.topic.startswith(REVIVE_PREFIX):
                revive = self._loops.get((arrival.topic, arrival.queue_id))
                if revive is not None:
                    revive.on_arrival()

    def release(self, checkpoints: Sequence[PopCheckpoint], revive_queue: int) -> None:
        """Make messages of checkpoints visible at once: no client has received them."""
        for checkpoint in checkpoints:
            task = asyncio.get_running_loop().create_task(self._release(checkpoint, revive_queue))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, checkpoint: PopCheckpoint, revive_queue: int) -> None:
        """Revive messages before their time; what cannot be revived stays in flight until then."""
        parts, key, copy = self._parts, checkpoint.key, replace(checkpoint)
        parts.releasing.add(key)
        try:
            revived = await parts.store.revive(copy, revive_queue, is_delivered=False)
        except OSError as error:
            revived = Revived(is_done=False, reason=str(error))
        finally:
            parts.releasing.discard(key)
        left = [] if revived.is_done else copy.unacked()
        if left:
            log.warning("pop.not_released key=%s reason=%s", key, revived.reason)
        done = [offset for offset in checkpoint.unacked() if offset not in left]
        if done:
            parts.in_flight.revive(key, done)
            parts.writer.add_unanswered(key, done, (revive_queue, checkpoint.revive_at_ms))


class ReviveLoop:
    """The loop of one revive queue.

    Attributes:
        topic, queue_id: the queue.
    """

    def __init__(self, parts: ReviveParts, topic: str, queue_id: int) -> None:
        self.topic, self.queue_id = topic, queue_id
        self._parts = parts
        context = parts.context
        self._reader, self._writer = context.store.reader, context.store.writer
        self._clock = context.clock
        self._broker_name = context.config.broker_name
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._read_waiters: list[tuple[int, asyncio.Future[None]]] = []
        committed = parts.offsets.query(REVIVE_GROUP, topic, queue_id)
        self._start_end = end = self._reader.max_offset(topic, queue_id)
        # The end of the log at the start: the checkpoints of later pops are all known.
        self._started_at = parts.context.store.writer.appended_position
        self._revived_at: dict[int, int] = {}  # revive offset -> position of the log
        self._committed = -1 if committed is None else min(committed, end - 1)
        self.window = ReviveWindow(self._committed, self._is_served)

    @property
    def revived_position(self) -> int:
        """The position of the log before which revived messages are counted in `_committed`."""
        return min(self._revived_at.values(), default=_NOWHERE)

    @property
    def has_passed_start(self) -> bool:
        """Whether all records from before the start are handled."""
        return self._committed >= self._start_end - 1

    @property
    def lag(self) -> int:
        """Number of records that are not handled."""
        end = self._reader.max_offset(self.topic, self.queue_id)
        return max(0, end - 1 - self._committed)

    @property
    def latency_ms(self) -> int:
        """Time for which the first checkpoint has been due."""
        due_ms = self.window.next_due_ms
        return 0 if due_ms is None else max(0, self._clock.now_ms() - due_ms)

    def on_arrival(self) -> None:
        """Have new records read soon."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ARRIVAL_DELAY_MS / 1000, self._wake.set)

    async def wait_read(self) -> None:
        """Wait until the records that are in the queue now are read."""
        end = self._reader.max_offset(self.topic, self.queue_id)
        if self.window.next_offset < end:
            waiter = asyncio.get_running_loop().create_future()
            self._read_waiters.append((end, waiter))
            self._wake.set()
            await waiter

    def stop(self) -> None:
        """Have the loop end."""
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Revive until stopped; a failing iteration is logged, and tried again."""
        is_failing = False
        while not self._is_stopping:
            try:
                wait_ms = await self._step()
                is_failing = False
            except Exception:  # a failure must not stop the loop for good
                if not is_failing:
                    log.exception(
                        "revive.failed topic=%s queue_id=%d offset=%d",
                        self.topic, self.queue_id, self.window.next_offset,
                    )  # fmt: skip
                is_failing, wait_ms = True, FAILED_RETRY_MS
            await wait_woken(self._wake, wait_ms)
            if wait_ms != 0:
                self._cancel_timer()
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _step(self) -> int | None:
        """Read and revive what is due; return the time to the next step in ms, None for none."""
        level_ms = self._parts.timers.level_ms
        is_at_end = await self._read()
        level_ms = min(level_ms, self._clock.now_ms())  # the clock may have been set back
        self._note_read()
        due = self.window.due(level_ms, TOGETHER_MAX, is_at_end=is_at_end)
        if due:
            await asyncio.gather(*[self._revive(held) for held in due])
        self._commit()
        if not is_at_end or len(due) == TOGETHER_MAX:
            return 0
        next_ms = self.window.next_step_ms
        if next_ms is None:
            return None
        return max(LEVEL_RETRY_MS, min(next_ms - self._clock.now_ms(), WAIT_MS_MAX))

    # Revive

    async def _revive(self, held: HeldCheckpoint) -> None:
        """Revive the messages of one checkpoint, or make it due again later."""
        parts, window = self._parts, self.window
        checkpoint = held.checkpoint
        if checkpoint.is_foreign:
            self._begin_foreign(held)
            return
        if (
            parts.writer.has_unstored(checkpoint.key)
            or checkpoint.key in parts.releasing
            or parts.in_flight.has_changing(checkpoint.key)  # or both would deliver the message
        ):
            window.defer(held, self._clock.now_ms() + LEVEL_RETRY_MS)
            return
        self._take(held)
        if checkpoint.is_acknowledged:
            window.settle(held)
            return
        self._revived_at.setdefault(
            held.revive_offset, parts.context.store.writer.appended_position
        )
        try:
            revived = await parts.store.revive(checkpoint, self.queue_id)
        except Exception:
            window.defer(held, self._clock.now_ms() + REFUSED_RETRY_MS)
            raise
        if revived.is_done:
            window.settle(held)
            return
        self._defer_refused(held, revived)

    def _defer_refused(self, held: HeldCheckpoint, revived: Revived) -> None:
        log.warning("revive.refused key=%s reason=%s", held.checkpoint.key, revived.reason)
        self.window.defer(held, self._clock.now_ms() + REFUSED_RETRY_MS)

    def _begin_foreign(self, held: HeldCheckpoint) -> None:
        """Begin to revive another broker's messages, which may take long, or defer that."""

        def done(revived: Revived) -> None:
            if revived.is_done:
                self.window.settle(held)
            else:
                self._defer_refused(held, revived)
            self._wake.set()

        held.is_taken = True
        if self._parts.foreign.begin(held.checkpoint, self.queue_id, done):
            position = self._parts.context.store.writer.appended_position
            self._revived_at.setdefault(held.revive_offset, position)
        else:
            self.window.defer(held, self._clock.now_ms() + REFUSED_RETRY_MS)

    def _take(self, held: HeldCheckpoint) -> None:
        """Take the messages of a due checkpoint from those in flight: an ack comes too late now.

        Of a known checkpoint, any message that is not in flight is acknowledged or revived already,
        also if no ack was read: the timer may have left it out, or may deliver it later because the
        clock was set back; or this is a second copy of the checkpoint.
        """
        if held.is_taken:
            return
        held.is_taken = True
        in_flight, checkpoint = self._parts.in_flight, held.checkpoint
        if not self._parts.recovery_is_complete():
            self._parts.taken.add(checkpoint.key)
        left = in_flight.unacked(checkpoint.key)
        if left or self._is_known(checkpoint):
            checkpoint.ack_all(set(checkpoint.offsets).difference(left))
        in_flight.revive(checkpoint.key, checkpoint.offsets)

    def _is_known(self, checkpoint: PopCheckpoint) -> bool:
        """Return whether all of its messages that are in flight are known to be so.

        Those of pops since the start are, also before all from before it are.
        """
        if self._parts.recovery_is_complete():
            return True
        return checkpoint.log_end is not None and checkpoint.log_end >= self._started_at

    def _is_served(self, checkpoint: PopCheckpoint) -> bool:
        if checkpoint.is_foreign or is_served(checkpoint, self._parts.context):
            return True
        self._parts.in_flight.settle(checkpoint.key)
        return False

    def _commit(self) -> None:
        offset = self.window.committable_offset
        if offset > self._committed:
            self._committed = offset
            self._parts.offsets.commit(REVIVE_GROUP, self.topic, self.queue_id, offset)
            for handled in [one for one in self._revived_at if one <= offset]:
                del self._revived_at[handled]

    # Read

    def _note_read(self) -> None:
        """Complete the waiters for records that are read now."""
        for end, waiter in self._read_waiters:
            if end <= self.window.next_offset and not waiter.done():
                waiter.set_result(None)
        self._read_waiters = [one for one in self._read_waiters if not one[1].done()]

    async def _read(self) -> bool:
        """Read the records that are there; return whether none are left."""
        window = self.window
        while not window.is_full:
            first = window.next_offset
            if first >= self._reader.max_offset(self.topic, self.queue_id):
                return True
            found = await self._get(GetRequest(first, READ_RECORDS, READ_BYTES, None))
            for record in found.records():
                self._read_record(record)
            next_offset = found.plan.next_offset
            if next_offset > window.next_offset:
                window.read_other(next_offset - 1)  # expired or damaged
            elif not found.plan.count:
                raise OSError(f"{self.topic} cannot be read at queue offset {first}")
            await asyncio.sleep(0)
        return False

    async def _get(self, get_request: GetRequest) -> GetResult:
        """Read records; damaged ones are logged and skipped, so that they block no others."""
        found = self._reader.get_resident(self.topic, self.queue_id, get_request)
        if found is not None:
            return found
        found = await self._parts.context.offload(
            self._reader.get, self.topic, self.queue_id, get_request, skip_damaged=True
        )
        self._writer.write_repaired(found.repaired)
        for damage in found.skipped:
            log.error(
                "revive_record.damaged topic=%s queue_id=%d queue_offset=%d reason=%s",
                self.topic, self.queue_id, damage.queue_offset, damage.reason,
            )  # fmt: skip
        return found

    def _read_record(self, record: bytes) -> None:
        """Add one record to the window."""
        header = read_record(record, check_crc=False)
        offset = header.queue_offset
        properties = decode_properties(header.properties(record))
        delivered_ms = decimal_or(properties.get(names.TIMER_DELIVER_MS, ""), 0)
        is_direct = names.TIMER_DEQUEUE_MS not in properties
        try:
            if properties.get(names.TAGS) == CHECKPOINT_TAG:
                checkpoint = checkpoint_of(
                    decode_checkpoint(header.body(record)),
                    self._broker_name,
                    log_end_of(properties),
                    relayed=is_relayed(properties),
                )
                self._parts.counts.on_read(CHECKPOINT, checkpoint.key, self.queue_id)
                for settled in (self._parts.revived, self._parts.early_acked):
                    checkpoint.ack_all(settled.get(checkpoint.key, ()))
                is_unknown = not checkpoint.is_foreign and not self._is_known(checkpoint)
                if is_unknown and is_served(checkpoint, self._parts.context):
                    self._parts.in_flight.add(checkpoint)
                self.window.read_checkpoint(offset, checkpoint, delivered_ms, is_direct=is_direct)
            else:
                ack = decode_ack(header.body(record))
                key = key_of_ack(ack, self._broker_name)
                self._parts.counts.on_read(ACK, key, self.queue_id)
                if not self._parts.recovery_is_complete():
                    self._parts.in_flight.ack_all(key, ack.offsets)
                self.window.read_ack(offset, key, ack.offsets, delivered_ms, is_direct=is_direct)
        except (MalformedBodyError, MalformedMessageError) as error:
            log.error(  # noqa: TRY400 - no traceback needed
                "revive_record.passed_over topic=%s queue_id=%d queue_offset=%d reason=%s",
                self.topic, self.queue_id, offset, error,
            )  # fmt: skip
            self.window.read_other(offset)
