"""How one queue of a consumer is, for those who watch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of a consumer.

    Attributes:
        held_messages: pulled and not done, or not given yet.
        held_bytes: of their bodies.
        done_offset: the queue offset below which all is done; None if that is not known yet.
        max_offset: the queue offset that the next message will have; None before the first pull.
        is_failing: its broker does not answer pulls, or refuses them.
        problem: what keeps it from being pulled, in words, if it is another reason.
    """

    held_messages: int
    held_bytes: int
    done_offset: int | None
    max_offset: int | None
    is_failing: bool
    problem: str | None = None
