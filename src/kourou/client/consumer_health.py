"""What a consumer says of itself when it is asked how it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kourou.model.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """How a consumer is, at this moment; nothing is asked of anybody.

    Attributes:
        is_open: it was started and is not closed.
        problems: what hinders it, in words; none if it is well.
        queues: those that it has, sorted.
        lag: of each queue that it has pulled, how many messages are stored and not done, as of the
            last pull: filtered ones count.
        held_messages: pulled and not done, or not given yet.
        held_bytes: of their bodies.
    """

    is_open: bool
    problems: tuple[str, ...]
    queues: tuple[MessageQueue, ...]
    lag: Mapping[MessageQueue, int]
    held_messages: int
    held_bytes: int

    @property
    def is_ok(self) -> bool:
        """Whether it is open and nothing hinders it."""
        return self.is_open and not self.problems

    @property
    def lag_messages(self) -> int:
        """The lag of all queues together."""
        return sum(self.lag.values())
