"""What a producer says of itself when it is asked how it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """How a producer is, as far as it has seen; nothing is asked of anybody.

    Attributes:
        is_open: it was started and is not closed.
        problems: what hinders it, in words; none if it is well.
        in_flight: messages being sent now.
    """

    is_open: bool
    problems: tuple[str, ...]
    in_flight: int

    @property
    def is_ok(self) -> bool:
        """Whether it is open and nothing hinders it."""
        return self.is_open and not self.problems
