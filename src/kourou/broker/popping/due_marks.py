"""Marks checkpoints and acks that the timer need not read when they are due.

A checkpoint whose messages are all acknowledged before it is due needs no copy in the revive queue,
and then its acks need none either (`DueCopies`). Where this broker has stored the records itself,
it knows their positions: with the last ack, all of them are marked in the timer. What is not marked
is read when it is due, and decided by `DueCopies`. So marks save time, and decide nothing else.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.popping.checkpoint import CheckpointKey
from kourou.broker.popping.in_flight import DueCopies, InFlight
from kourou.broker.timer.needless import NeedlessRecords
from kourou.protocol.popping.revive_records import CHECKPOINT_LEAD_MS

PARTIAL_MAX: Final = 100_000
"""Limit on checkpoints whose acks are remembered until the last one."""


class DueMarks:
    """Marks of the records of one broker."""

    def __init__(self, in_flight: InFlight, copies: DueCopies, needless: NeedlessRecords) -> None:
        """Mark records in `needless` once `copies` is complete."""
        self._in_flight = in_flight
        self._copies = copies
        self._needless = needless
        self._partial: dict[CheckpointKey, list[int]] = {}

    def checkpoint_stored(self, key: CheckpointKey, position: int) -> None:
        """Note the position of a checkpoint in the timer topic."""
        if self._copies.is_complete:
            self._in_flight.set_position(key, position)

    def forget(self, key: CheckpointKey) -> None:
        """Mark nothing of a checkpoint: it gets a copy, or a part of it is in another one."""
        self._in_flight.set_position(key, 0)
        self._partial.pop(key, None)

    def forget_acks(self) -> None:
        """Forget all acks: checkpoints were deleted with their topic or group."""
        self._partial.clear()

    def ack_stored(
        self, key: CheckpointKey, revive_at_ms: int, position: int, settled: int | None
    ) -> None:
        """Note the position of an ack in the timer topic, and mark the records of a last one.

        Args:
            key: of the checkpoint.
            revive_at_ms: the time at which its messages become visible.
            position: of the ack's record.
            settled: as `InFlight.ack_bits` returned it.
        """
        if settled is None:
            if len(self._partial) < PARTIAL_MAX and self._in_flight.position_of(key):
                self._partial.setdefault(key, []).append(position)
            return
        earlier = self._partial.pop(key, ())
        if settled:
            needless = self._needless
            needless.add(revive_at_ms - CHECKPOINT_LEAD_MS, settled)
            needless.add(revive_at_ms, position)
            for one in earlier:
                needless.add(revive_at_ms, one)
