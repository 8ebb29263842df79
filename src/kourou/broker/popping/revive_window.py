"""Window over one queue of the revive topic: pairs checkpoints with their acks. Pure.

Records are read in the order of the queue. A checkpoint is due when its invisible time is over and
all acks that the broker accepted before are read: then its unacknowledged messages are to be
revived. The committed offset is the last that need not be read again after a restart. It passes

- a checkpoint when it is settled: each of its messages is acknowledged, or revived, or in another
  checkpoint, and all that is stored;
- an ack when its checkpoint is settled, or cannot come any more. It passes a settled checkpoint and
  the acks before that together: read again without them, the checkpoint would bring back what they
  acknowledge.

Order of records
----------------
The timer delivers a checkpoint a second before its acks. A checkpoint of a second or less, and an
ack that comes after the invisible time, are put into the queue at once, before what a timer that
lags behind still has to deliver. They tell nothing of the timer's progress, and such an ack may
precede its checkpoint: acks without checkpoint are therefore held until the timer has delivered all
that was due before them.

The same key may come twice: a message that could not be revived gets a new checkpoint, which has
the old key if it is the first message; after a crash the old one is read again. The later
checkpoint takes over the messages that both have, and the acks of these.

Source: PopReviveService.java, apache/rocketmq 5.5.0. There the last handled checkpoint is committed
whether or not its messages are stored, acks before their checkpoint are lost, and a later
checkpoint replaces an earlier one of the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint

CHECKPOINTS_MAX: Final = 200_000
"""Default limit of checkpoints that are held; see `ReviveWindow.is_full`."""

EARLY_ACKS_MAX: Final = 100_000
"""Default limit of acks that are held without their checkpoint."""

DISORDER_MS: Final = 2_000
"""Difference of delivery times up to which records may be out of order: Java's timer delivers by
the second, in several threads."""

_SETTLED_MIN: Final = 1_000
"""Number of settled records that are not worth removing."""


@dataclass(slots=True, eq=False)
class HeldCheckpoint:
    """A checkpoint in the window.

    Attributes:
        checkpoint: changes as acks are read, also after it was returned as due.
        revive_offset: its offset in the revive queue.
        read_from: lowest offset that must be read again after a restart: its own, or that of an ack
            or a checkpoint before it.
        is_taken: its messages are being revived: an ack comes too late.
    """

    checkpoint: PopCheckpoint
    revive_offset: int
    read_from: int
    is_taken: bool = False
    is_settled: bool = False


@dataclass(slots=True, eq=False)
class _EarlyAck:
    """An ack without checkpoint; settled when the checkpoint has it, or cannot come any more."""

    offsets: Sequence[int]
    revive_offset: int
    is_settled: bool = False


class ReviveWindow:
    """Records of one revive queue, from the committed offset to the last one that was read."""

    def __init__(
        self,
        committed_offset: int,
        is_served: Callable[[PopCheckpoint], bool],
        *,
        checkpoints_max: int = CHECKPOINTS_MAX,
        early_acks_max: int = EARLY_ACKS_MAX,
    ) -> None:
        """Start behind the committed offset.

        Args:
            committed_offset: offset of the last record that was handled; -1 if there is none.
            is_served: returns whether the messages of a checkpoint may be revived: its topic and
                group exist, and were not deleted since. Asked when it is due.
            checkpoints_max: limit of checkpoints that are held; see `is_full`.
            early_acks_max: limit of acks without their checkpoint; the earliest are dropped.
        """
        self._is_served = is_served
        self._checkpoints_max = checkpoints_max
        self._early_acks_max = early_acks_max
        self._last_read = committed_offset
        self._delivered_ms = 0
        self._held: dict[CheckpointKey, list[HeldCheckpoint]] = {}
        self._early: dict[CheckpointKey, list[_EarlyAck]] = {}
        # Heaps; what is settled leaves them when it comes to the top, or in `_compact`.
        self._by_time: list[tuple[int, int, HeldCheckpoint]] = []
        self._early_by_time: list[tuple[int, int, CheckpointKey, _EarlyAck]] = []
        self._by_read: list[tuple[int, int, HeldCheckpoint | _EarlyAck]] = []
        # Of settled checkpoints that came after acks of theirs: their offset, and the first ack's.
        self._inseparable: list[tuple[int, int]] = []
        self.checkpoint_count = 0
        """Number of checkpoints that are not settled."""
        self.early_ack_count = 0
        """Number of acks that are held without their checkpoint."""
        self.unserved_count = 0
        """Number of checkpoints that were dropped because their messages are not served."""
        self.dropped_ack_count = 0
        """Number of acks that were dropped because too many lacked their checkpoint."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record to read."""
        return self._last_read + 1

    @property
    def committable_offset(self) -> int:
        """Highest offset that may be committed: no record up to it is needed any more."""
        heap = self._by_read
        while heap and heap[0][2].is_settled:
            heappop(heap)
        offset = heap[0][0] - 1 if heap else self._last_read
        if self._inseparable:
            offset = self._before_inseparable(offset)
        return offset

    def _before_inseparable(self, offset: int) -> int:
        """Return the highest offset up to this one that divides no checkpoint from its acks."""
        for last, first in sorted(self._inseparable, reverse=True):
            if first <= offset < last:
                offset = first - 1
        self._inseparable = [one for one in self._inseparable if one[0] > offset]
        return offset

    @property
    def is_full(self) -> bool:
        """Whether no more records should be read before some checkpoints are settled."""
        return self.checkpoint_count >= self._checkpoints_max

    @property
    def next_due_ms(self) -> int | None:
        """Time at which the next checkpoint may be due; None if there is none."""
        return self._by_time[0][0] if self._by_time else None

    @property
    def next_step_ms(self) -> int | None:
        """Time at which a checkpoint may be due, or an early ack is dropped; None for never."""
        due_ms, early = self.next_due_ms, self._early_by_time
        if not early or (due_ms is not None and due_ms < early[0][0]):
            return due_ms
        return early[0][0]

    def read_checkpoint(
        self,
        revive_offset: int,
        checkpoint: PopCheckpoint,
        delivered_ms: int,
        *,
        is_direct: bool = False,
    ) -> None:
        """Add a checkpoint, which the window changes from now on.

        Args:
            revive_offset: offset of its record, above all that were read.
            checkpoint: the checkpoint.
            delivered_ms: time at which the record was due in the queue.
            is_direct: it was due when it was stored. The timer, which may lag behind, has not
                delivered it.
        """
        self._advance(revive_offset, 0 if is_direct else delivered_ms)
        key, read_from = checkpoint.key, revive_offset
        for early in self._early.pop(key, ()):
            checkpoint.ack_all(early.offsets)
            read_from = min(read_from, early.revive_offset)
            early.is_settled = True
            self.early_ack_count -= 1
        held = HeldCheckpoint(checkpoint, revive_offset, read_from)
        for older in self._held.get(key, ()):
            _take_over(held, older)
        self._held.setdefault(key, []).append(held)
        self.checkpoint_count += 1
        heappush(self._by_time, (checkpoint.revive_at_ms, revive_offset, held))
        heappush(self._by_read, (held.read_from, revive_offset, held))

    def read_ack(
        self,
        revive_offset: int,
        key: CheckpointKey,
        offsets: Sequence[int],
        delivered_ms: int,
        *,
        is_direct: bool = False,
    ) -> None:
        """Apply an ack to its checkpoint, or hold it until that is read.

        Args:
            revive_offset: offset of its record, above all that were read.
            key: that of the checkpoint.
            offsets: those of the acknowledged messages.
            delivered_ms: as for `read_checkpoint`.
            is_direct: as for `read_checkpoint`.
        """
        self._advance(revive_offset, 0 if is_direct else delivered_ms)
        held = self._held.get(key)
        if held is None:
            self._hold_early(revive_offset, key, offsets, delivered_ms)
            return
        for one in held:
            one.checkpoint.ack_all(offsets)

    def read_other(self, revive_offset: int) -> None:
        """Pass a record that is neither, or all missing records up to an offset."""
        self._advance(revive_offset, 0)

    def due(self, level_ms: int, limit: int, *, is_at_end: bool) -> list[HeldCheckpoint]:
        """Return checkpoints whose messages are to be revived, at most `limit`, earliest first.

        The caller revives `checkpoint.unacked()` of each and calls `settle`, or else `defer`.
        Before the end of the queue, only those are due that precede what the timer delivered last,
        because their acks are read; if the window is full, all up to `level_ms`, so that a few acks
        may come too late.

        Args:
            level_ms: the timer had delivered all that was due up to this time before the records
                were read.
            limit: largest number of checkpoints.
            is_at_end: whether the queue had no further records.
        """
        acks_read_ms = level_ms if is_at_end else min(level_ms, self._delivered_ms - DISORDER_MS)
        due_ms = level_ms if self.is_full else acks_read_ms
        found: list[HeldCheckpoint] = []
        while self._by_time and self._by_time[0][0] <= due_ms and len(found) < limit:
            held = heappop(self._by_time)[2]
            if held.is_settled:
                continue
            if held.checkpoint.is_acknowledged:
                self.settle(held)
            elif not self._is_served(held.checkpoint):
                self.unserved_count += 1
                self.settle(held)
            else:
                found.append(held)
        while self._early_by_time and self._early_by_time[0][0] <= acks_read_ms:
            self._drop_earliest()
        return found

    def settle(self, held: HeldCheckpoint) -> None:
        """Forget a checkpoint whose messages are acknowledged, or revived and stored."""
        if held.is_settled:
            return
        held.is_settled = True
        if held.read_from < held.revive_offset:
            self._inseparable.append((held.revive_offset, held.read_from))
        self.checkpoint_count -= 1
        key = held.checkpoint.key
        others = [one for one in self._held[key] if one is not held]
        if others:
            self._held[key] = others
        else:
            del self._held[key]
        self._compact()

    def defer(self, held: HeldCheckpoint, until_ms: int) -> None:
        """Make a due checkpoint due again later, because nothing can be stored now."""
        heappush(self._by_time, (until_ms, held.revive_offset, held))

    def _advance(self, revive_offset: int, delivered_ms: int) -> None:
        if revive_offset <= self._last_read:
            raise ValueError(f"record {revive_offset} was read: the last one is {self._last_read}")
        self._last_read = revive_offset
        self._delivered_ms = max(self._delivered_ms, delivered_ms)

    def _hold_early(
        self, revive_offset: int, key: CheckpointKey, offsets: Sequence[int], delivered_ms: int
    ) -> None:
        early = _EarlyAck(offsets, revive_offset)
        self._early.setdefault(key, []).append(early)
        self.early_ack_count += 1
        heappush(self._early_by_time, (delivered_ms, revive_offset, key, early))
        heappush(self._by_read, (revive_offset, revive_offset, early))
        while self.early_ack_count > self._early_acks_max:
            self.dropped_ack_count += self._drop_earliest()

    def _drop_earliest(self) -> int:
        """Drop the early ack at the top of the heap; return 0 if a checkpoint has it."""
        _, _, key, early = heappop(self._early_by_time)
        if early.is_settled:
            return 0
        early.is_settled = True
        self.early_ack_count -= 1
        others = [one for one in self._early[key] if one is not early]
        if others:
            self._early[key] = others
        else:
            del self._early[key]
        self._compact()
        return 1

    def _compact(self) -> None:
        """Remove what is settled behind a record that is not, once it is the larger part."""
        if len(self._by_read) > 2 * (self.checkpoint_count + self.early_ack_count) + _SETTLED_MIN:
            self._by_read = [entry for entry in self._by_read if not entry[2].is_settled]
            heapify(self._by_read)


def _take_over(held: HeldCheckpoint, older: HeldCheckpoint) -> None:
    """Move the messages that two checkpoints have in common to the later one.

    One that is being revived keeps its messages.
    """
    if older.is_taken:
        return
    common = set(held.checkpoint.offsets).intersection(older.checkpoint.offsets)
    if common:
        held.checkpoint.ack_all(common.difference(older.checkpoint.unacked()))
        held.read_from = min(held.read_from, older.read_from)
        older.checkpoint = older.checkpoint.without(common)
