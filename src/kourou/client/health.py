"""What producers and consumers say of themselves when they are asked how they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kourou.model.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Health:
    """How a client is, as far as it has seen; nothing is asked of anybody.

    Attributes:
        is_open: it was started and is not closed.
        problems: what hinders it, in words; none if it is well.
    """

    is_open: bool
    problems: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        """Whether it is open and nothing hinders it."""
        return self.is_open and not self.problems


@dataclass(frozen=True, slots=True)
class ProducerHealth(Health):
    """How a producer is.

    Attributes:
        in_flight: messages being sent now.
    """

    in_flight: int


@dataclass(frozen=True, slots=True)
class ConsumerHealth(Health):
    """How a consumer is.

    Attributes:
        queues: those that it has, sorted.
        lag: of each queue that it has pulled, how many messages are stored and not done, as of the
            last pull: filtered ones count.
        held_messages: pulled and not done, or not given yet.
        held_bytes: of their bodies.
    """

    queues: tuple[MessageQueue, ...]
    lag: Mapping[MessageQueue, int]
    held_messages: int
    held_bytes: int

    @property
    def lag_messages(self) -> int:
        """The lag of all queues together."""
        return sum(self.lag.values())
