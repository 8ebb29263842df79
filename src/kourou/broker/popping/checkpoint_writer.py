"""Stores the checkpoints of pops, in the log or the merge buffer, and commits offsets after them.

    buffer off    all checkpoints of a pop are stored in one put; then the offsets are committed
    buffer on     what the buffer accepts is stored later, or never; the offsets of a queue are
                  committed in the order of its pops

Source: PopMessageProcessor.appendCheckPoint, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.buffer import PoppedQueue
from kourou.broker.popping.buffer_scans import BufferScans
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.due_marks import DueMarks
from kourou.broker.popping.in_flight import InFlight
from kourou.broker.popping.pop_counts import CHECKPOINT, PopCounts
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.popping.revive_log import ReviveLog
from kourou.broker.popping.revive_templates import PlainCheckpoint, ReviveText
from kourou.broker.writing.put import Done, PutResult, PutStatus
from kourou.model.topic import TIMER_TOPIC


class NewCheckpoint(NamedTuple):
    """A checkpoint of a pop, and the offset behind its messages."""

    checkpoint: PopCheckpoint
    next_offset: int

    @property
    def queue(self) -> PopQueue:
        """The queue of its messages."""
        return PopQueue(*self.checkpoint.key[:3])


class ConsecutiveCheckpoint(NamedTuple):
    """A checkpoint of `messages` consecutive messages, the first of which is at its start."""

    key: CheckpointKey
    messages: int
    next_offset: int
    invisible_ms: int


class CheckpointWriter:
    """Stores checkpoints, and moves the offsets of groups."""

    def __init__(
        self,
        context: BrokerContext,
        offsets: ConsumerOffsets,
        revive_log: ReviveLog,
        in_flight: InFlight,
        scans: BufferScans,
        counts: PopCounts,
        marks: DueMarks,
    ) -> None:
        """Store checkpoints by `revive_log` or in the buffer of `scans`, and count them."""
        self._context = context
        self._offsets = offsets
        self._revive_log = revive_log
        self._in_flight = in_flight
        self._scans = scans
        self._counts = counts
        self._marks = marks

    @property
    def _is_buffering(self) -> bool:
        config = self._context.live_config.current.pop
        return config.enable_pop_buffer_merge or not self._scans.buffer.is_empty

    def has_too_many(self, queue: PopQueue) -> bool:
        """Return whether the group gets no more messages of the queue until some are settled."""
        config = self._context.live_config.current.pop
        if not config.enable_pop_message_threshold:
            return False
        return self._in_flight.count(*queue) > config.pop_inflight_message_threshold

    def put(self, added: Sequence[NewCheckpoint], revive_queue: int, done: Done) -> None:
        """Store the checkpoints of one pop, whose queues are locked; call `done` once.

        If one of them is refused, none counts: the next pop gets their messages. If the sync takes
        long, `done` is called when it ends: until then the offset must not be committed, which
        could become durable before the checkpoint, and no other pop may get the messages.

        Raises:
            RemoteError: the timer refuses one.
        """
        now_ms = self._context.clock.now_ms()
        is_buffering = self._is_buffering
        stored: list[NewCheckpoint] = []
        for one in added:
            self._in_flight.add(one.checkpoint)
            self._count(one.queue.topic, one.queue.group)
            if not is_buffering:
                stored.append(one)
            elif not self._scans.add(one.checkpoint, one.next_offset, revive_queue):
                self._scans.buffer.add_storing(one.checkpoint, one.next_offset)
                stored.append(one)
        if not stored:
            done(PutResult(PutStatus.OK))
            return
        after = partial(self._stored, added, stored, done, is_buffering=is_buffering)
        try:
            texts = None if is_buffering else self._texts(stored, revive_queue, now_ms)
            if texts is not None:
                self._revive_log.puts.add(texts, after)
                return
            drafts = [
                self._revive_log.checkpoint_draft(
                    one.checkpoint,
                    revive_queue,
                    now_ms,
                    None if is_buffering else one.next_offset,
                )
                for one in stored
            ]
        except BaseException:
            self._drop(added)
            raise
        self._context.commit.put(drafts, now_ms, after, answers_late=False)

    def _texts(
        self, added: Sequence[NewCheckpoint], revive_queue: int, now_ms: int
    ) -> list[ReviveText] | None:
        """Return the checkpoints for `RevivePuts`; None if one must be put as a draft."""
        texts = []
        for checkpoint, next_offset in added:
            key, log_end = checkpoint.key, checkpoint.log_end
            topic, group, queue_id, start, pop_time_ms, broker_name = key
            if log_end is None:
                return None
            values = PlainCheckpoint(
                start,
                checkpoint.offsets,
                pop_time_ms,
                checkpoint.invisible_ms,
                log_end,
                next_offset,
            )
            text = self._revive_log.checkpoint_text(
                (topic, group, queue_id, broker_name), revive_queue, values, now_ms
            )
            if text is None:
                return None
            texts.append(text)
        return texts

    def put_consecutive(
        self, added: Sequence[ConsecutiveCheckpoint], revive_queue: int, done: Done
    ) -> None:
        """Store the checkpoints of one pop, whose queues are locked; call `done` once, later.

        The same as `put` without the merge buffer, for checkpoints that wait in the timer.
        """
        log_end = self._context.store.writer.appended_position
        texts = []
        for key, count, next_offset, invisible_ms in added:
            topic, group, queue_id, start, pop_time_ms, broker_name = key
            self._in_flight.add_consecutive(key, count, invisible_ms)
            self._count(topic, group)
            offsets = range(start, start + count)
            values = PlainCheckpoint(
                start, offsets, pop_time_ms, invisible_ms, log_end, next_offset
            )
            queue = (topic, group, queue_id, broker_name)
            texts.append(self._revive_log.plain_checkpoint(queue, revive_queue, values))
        self._revive_log.puts.add(texts, partial(self._stored_consecutive, added, done))

    def _stored_consecutive(
        self, added: Sequence[ConsecutiveCheckpoint], done: Done, result: PutResult
    ) -> None:
        is_stored = result.status is PutStatus.OK
        for number, (key, _, next_offset, _) in enumerate(added):
            self._counts.on_put(CHECKPOINT, key, result.status)
            if not is_stored:
                self._in_flight.settle(key)
                continue
            self.commit(PopQueue(*key[:3]), next_offset)
            self._marks.checkpoint_stored(key, result.appended[number].physical_offset)
        done(result)

    def skip(self, queue: PopQueue, next_offset: int) -> None:
        """Move the group's offset behind messages that are not delivered to it."""
        if self._scans.buffer.latest_offset(PoppedQueue(*queue)) is None:
            self.commit(queue, next_offset)
        else:
            self._scans.add_skipped(PoppedQueue(*queue), next_offset)

    def _stored(
        self,
        added: Sequence[NewCheckpoint],
        stored: Sequence[NewCheckpoint],
        done: Done,
        result: PutResult,
        *,
        is_buffering: bool,
    ) -> None:
        for one in stored:
            self._counts.on_put(CHECKPOINT, one.checkpoint.key, result.status)
        if result.status is not PutStatus.OK:
            self._drop(added)
        elif is_buffering:
            for one in stored:
                self._scans.stored(one.checkpoint.key)
        else:
            for one, record in zip(stored, result.appended, strict=True):
                self.commit(one.queue, one.next_offset)
                if record.topic == TIMER_TOPIC:
                    self._marks.checkpoint_stored(one.checkpoint.key, record.physical_offset)
        done(result)

    def _drop(self, added: Sequence[NewCheckpoint]) -> None:
        for one in added:
            self._in_flight.settle(one.checkpoint.key)
            self._scans.buffer.dropped(one.checkpoint.key)

    def _count(self, topic: str, group: str) -> None:
        stats = self._context.stats
        stats.count("GROUP_CK_NUMS", f"{topic}@{group}")
        stats.count("BROKER_CK_NUMS", self._context.config.cluster_name)

    def commit(self, queue: PopQueue, offset: int) -> None:
        """Commit an offset, unless an administrator has reset it meanwhile."""
        topic, group, queue_id = queue
        is_reset = self._offsets.is_reset(group, topic, queue_id)
        if not is_reset and self._context.topics.get(topic) is not None:
            self._offsets.commit_popped(group, topic, queue_id, offset)
