"""Messages of the timer topic that need not be delivered, by the positions of their records.

A component that stores a message and finds out before it is due that nothing needs it marks it
here; so the timer need not read it. Marks are only in memory: after a start, `Timers.skips_due`
decides. Pure.
"""

from __future__ import annotations

from typing import Final

from kourou.store.timer.layouts import PRECISION_MS

POSITIONS_MAX: Final = 1_000_000
"""Limit on marks; each takes 70 bytes until the second of its message is over."""


class NeedlessRecords:
    """Marks of messages for one topic.

    Attributes:
        topic: the target topic of the messages.
        by_second: second of the slot of a message -> log positions of the records.
    """

    def __init__(self, positions_max: int = POSITIONS_MAX) -> None:
        """Start empty; further messages than `positions_max` are not marked."""
        self.topic = ""
        self.by_second: dict[int, set[int]] = {}
        self._positions_max = positions_max
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, due_at_ms: int, position: int) -> bool:
        """Mark a message; return False if there is no room. It must not be marked twice."""
        if self._count >= self._positions_max:
            return False
        second = (due_at_ms - 1) // PRECISION_MS
        positions = self.by_second.get(second)
        if positions is None:
            positions = self.by_second[second] = set()
        positions.add(position)
        self._count += 1
        return True

    def drop_before(self, second: int) -> None:
        """Drop the marks of messages in the slots before this second, which are done."""
        for earlier in [one for one in self.by_second if one < second]:
            self._count -= len(self.by_second.pop(earlier))
