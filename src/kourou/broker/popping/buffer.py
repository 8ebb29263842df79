"""Merge buffer of checkpoints (`enablePopBufferMerge`): most are acknowledged and never stored.

A checkpoint stays in memory until all its messages are acknowledged, and is then forgotten. If that
takes too long, it is stored with the bits of the acks so far; later acks are stored as without a
buffer. The group's offset follows the checkpoints of a queue in order: it passes one that is wholly
acknowledged or stored. So a kill loses no message. It loses the acks of the checkpoints that were
not stored, of up to `pop_ck_stay_buffer_time_ms` (10 s): their messages are delivered again.

    state      meaning                           acks
    buffered   in memory only                    accepted until shortly before it is due
    storing    it was due, or was not accepted   refused: the caller stores them
    done       acknowledged or stored            unknown: the caller stores them

So the log may hold a checkpoint of a queue without those of earlier pops. A start that concludes
from a stored checkpoint that the group may commit the offset after it would lose their messages: it
may do so only from the committed offset on, without a gap.

Java joins the parts of a key without separator, so that queue 1 with offset 11 and queue 11 with
offset 1 collide; here keys are tuples. Java also visits all checkpoints each 5 ms; here those that
are due are in a heap.

Source: PopBufferMergeService.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.pop_config import PopConfig

MARGIN_MS: Final = 1_500
"""A checkpoint, or an ack, is not accepted within this time before the checkpoint is due."""
RETRY_MS: Final = 1_000
"""Time until a checkpoint that could not be stored is due again."""

_LAG_MARGIN_MS: Final = 1_000
_CLOCK_BACK_MS: Final = 1_000
_AT_ONCE: Final = -(2**63)


class PoppedQueue(NamedTuple):
    """A queue as popped by one group; the offset is committed for it."""

    topic: str
    group: str
    queue_id: int


class ToStore(NamedTuple):
    """A checkpoint to store, with its bits, in one of the revive queues."""

    checkpoint: PopCheckpoint
    revive_queue_id: int


class Commit(NamedTuple):
    """The offset that a group may commit, if it is higher than the committed one."""

    queue: PoppedQueue
    offset: int


class Scan(NamedTuple):
    """Results of a scan: checkpoints to store, and offsets to commit."""

    store: list[ToStore]
    commits: list[Commit]


@dataclass(slots=True, eq=False)
class _Entry:
    """A checkpoint; None if the pop only moved the offset past messages that did not match."""

    checkpoint: PopCheckpoint | None
    next_offset: int
    revive_queue_id: int = 0
    is_storing: bool = False
    is_done: bool = False


class MergeBuffer:
    """Buffered checkpoints of a broker, and the order of commits of each queue."""

    def __init__(self, config: Callable[[], PopConfig]) -> None:
        """Create an empty buffer.

        Args:
            config: returns the current options.
        """
        self._config = config
        self._entries: dict[CheckpointKey, _Entry] = {}
        self._queues: dict[PoppedQueue, deque[_Entry]] = {}
        self._touched: dict[PoppedQueue, None] = {}  # whose first entry may be done
        self._due: list[tuple[int, int, CheckpointKey]] = []  # heap of (time, number, key)
        self._number = 0
        self._last_ms = 0
        self._is_slow = False
        self._is_stopped = False

    def __len__(self) -> int:
        """Return the number of checkpoints that are buffered, or are being stored."""
        return len(self._entries)

    @property
    def offset_count(self) -> int:
        """Number of pops whose offsets are not committed yet."""
        return sum(map(len, self._queues.values()))

    @property
    def is_serving(self) -> bool:
        """Whether checkpoints and acks may be accepted: no stop, and no checkpoint stored late."""
        return not self._is_slow and not self._is_stopped

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing left to store or to commit."""
        return not self._entries and not self._queues

    @property
    def next_due_ms(self) -> int | None:
        """Time before which no checkpoint must be stored, in epoch ms; None if there is none."""
        return self._due[0][0] if self._due else None

    def latest_offset(self, queue: PoppedQueue) -> int | None:
        """Return the offset at which the next pop begins, if it is above the committed one."""
        entries = self._queues.get(queue)
        return entries[-1].next_offset if entries else None

    def add(
        self, checkpoint: PopCheckpoint, next_offset: int, revive_queue_id: int, now_ms: int
    ) -> bool:
        """Buffer a checkpoint instead of storing it.

        Args:
            checkpoint: of a pop that is about to be answered.
            next_offset: the offset that the group may commit after it.
            revive_queue_id: the queue in which it is stored when it is due.
            now_ms: the current time.

        Returns:
            False if the buffer does not accept it: call `add_storing`.
        """
        config, key = self._config(), checkpoint.key
        queue = _queue_of(key)
        if (
            not config.enable_pop_buffer_merge
            or not self.is_serving
            or checkpoint.revive_at_ms - now_ms < config.pop_ck_stay_buffer_time_out_ms + MARGIN_MS
            or len(self._entries) >= config.pop_ck_max_buffer_size
            or len(self._queues.get(queue, ())) >= config.pop_ck_offset_max_queue_size
            or key in self._entries
        ):
            return False
        self._append(queue, _Entry(checkpoint, next_offset, revive_queue_id))
        due_ms = min(
            checkpoint.revive_at_ms - config.pop_ck_stay_buffer_time_out_ms,
            key.pop_time_ms + config.pop_ck_stay_buffer_time_ms,
        )
        self._add_due(due_ms, key)
        return True

    def add_storing(self, checkpoint: PopCheckpoint, next_offset: int) -> bool:
        """Add a checkpoint that the caller stores; `stored` or `dropped` must follow.

        The offset must not pass it before, nor before the checkpoints that precede it.

        Returns:
            False if a checkpoint of the same key is here: its messages must not be delivered.
        """
        if checkpoint.key in self._entries:
            return False
        entry = _Entry(checkpoint, next_offset, is_storing=True)
        self._append(_queue_of(checkpoint.key), entry)
        return True

    def add_skipped(self, queue: PoppedQueue, next_offset: int) -> None:
        """Let the offset follow a read that found no message for the group."""
        self._queues.setdefault(queue, deque()).append(_Entry(None, next_offset, is_done=True))
        self._touched[queue] = None

    def ack(self, key: CheckpointKey, offsets: Iterable[int], now_ms: int) -> bool:
        """Acknowledge messages of a buffered checkpoint; other offsets are ignored.

        Returns:
            False if the buffer does not accept the ack: the caller stores it.
        """
        config, entry = self._config(), self._entries.get(key)
        if entry is None or entry.is_storing or entry.checkpoint is None:
            return False
        checkpoint = entry.checkpoint
        if (
            not config.enable_pop_buffer_merge
            or not self.is_serving
            or checkpoint.revive_at_ms - now_ms < config.pop_ck_stay_buffer_time_out_ms + MARGIN_MS
            or now_ms - key.pop_time_ms > config.pop_ck_stay_buffer_time_ms - MARGIN_MS
        ):
            return False
        checkpoint.ack_all(offsets)
        if checkpoint.is_acknowledged:
            self._end(key, entry)
        return True

    def scan(self, now_ms: int, store_max: int) -> Scan:
        """Return the checkpoints that are due, and the offsets that may be committed.

        The caller stores the former, and calls `stored` or `store_failed` for each. It commits the
        latter at once, without waiting in between. It scans again at `next_due_ms`.

        Args:
            now_ms: the current time.
            store_max: limit on the checkpoints to store.
        """
        if now_ms < self._last_ms - _CLOCK_BACK_MS:
            self._make_all_due()
        self._last_ms = now_ms
        store = self._take_due(now_ms, store_max)
        commits = self.take_commits()
        if self._is_slow and self.is_empty:
            self._is_slow = False
        return Scan(store, commits)

    def note_lag(self, lag_ms: int) -> None:
        """Stop serving if checkpoints were stored too long after they were due; all are then due.

        The buffer serves again when it is empty.
        """
        limit_ms = self._config().pop_ck_stay_buffer_time_out_ms - _LAG_MARGIN_MS
        if lag_ms > limit_ms and not self._is_slow:
            self._is_slow = True
            self._make_all_due()

    def stop(self) -> None:
        """Accept nothing more; all checkpoints are due. Scan until the buffer is empty."""
        self._is_stopped = True
        self._make_all_due()

    def take_commits(self) -> list[Commit]:
        """Return the offsets that may be committed since the last call, one for each queue."""
        commits = []
        touched, self._touched = self._touched, {}
        for queue in touched:
            entries = self._queues.get(queue)
            passed = None
            while entries and entries[0].is_done:
                passed = entries.popleft().next_offset
            if entries is not None and not entries:
                del self._queues[queue]
            if passed is not None:
                commits.append(Commit(queue, passed))
        return commits

    def stored(self, key: CheckpointKey) -> None:
        """Note that the checkpoint is stored: the offset may pass it."""
        entry = self._entries.get(key)
        if entry is not None and entry.is_storing:
            self._end(key, entry)

    def store_failed(self, key: CheckpointKey, now_ms: int) -> None:
        """Note that a checkpoint that was due could not be stored; it is due again soon."""
        entry = self._entries.get(key)
        if entry is not None and entry.is_storing:
            entry.is_storing = False
            self._add_due(now_ms + RETRY_MS, key)

    def dropped(self, key: CheckpointKey) -> None:
        """Remove the checkpoint of a pop that delivers nothing; the next pop reads its messages.

        The pop still has the lock of the queue, so that no later checkpoint is behind this one.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        queue = _queue_of(key)
        entries = self._queues.get(queue)
        if entries is not None and entry in entries:
            entries.remove(entry)
            if not entries:
                del self._queues[queue]
            self._touched[queue] = None

    def clear_queue(self, queue: PoppedQueue) -> None:
        """Commit nothing for checkpoints of earlier pops of the queue: its offset was reset."""
        self._queues.pop(queue, None)
        self._touched.pop(queue, None)

    def remove_topic(self, topic: str) -> None:
        """Remove all checkpoints of the topic."""
        self._remove(lambda queue: queue.topic == topic)

    def remove_group(self, group: str) -> None:
        """Remove all checkpoints of the group."""
        self._remove(lambda queue: queue.group == group)

    def _append(self, queue: PoppedQueue, entry: _Entry) -> None:
        assert entry.checkpoint is not None
        self._entries[entry.checkpoint.key] = entry
        self._queues.setdefault(queue, deque()).append(entry)

    def _add_due(self, at_ms: int, key: CheckpointKey) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_ms, self._number, key))

    def _make_all_due(self) -> None:
        self._due = [(_AT_ONCE, number, key) for number, key in enumerate(self._entries)]
        self._number = len(self._due)

    def _take_due(self, now_ms: int, store_max: int) -> list[ToStore]:
        found: list[ToStore] = []
        while self._due and self._due[0][0] <= now_ms and len(found) < store_max:
            _, _, key = heapq.heappop(self._due)
            entry = self._entries.get(key)
            if entry is not None and not entry.is_storing and entry.checkpoint is not None:
                entry.is_storing = True
                found.append(ToStore(entry.checkpoint, entry.revive_queue_id))
        return found

    def _end(self, key: CheckpointKey, entry: _Entry) -> None:
        del self._entries[key]
        entry.is_done = True
        self._touched[_queue_of(key)] = None

    def _remove(self, is_removed: Callable[[PoppedQueue], bool]) -> None:
        for key in [key for key in self._entries if is_removed(_queue_of(key))]:
            del self._entries[key]
        for queue in [queue for queue in self._queues if is_removed(queue)]:
            self.clear_queue(queue)


def _queue_of(key: CheckpointKey) -> PoppedQueue:
    return PoppedQueue(key.topic, key.group, key.queue_id)
