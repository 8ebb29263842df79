"""State of one queue of a consumer, for health checks and statistics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of a consumer.

    Attributes:
        held_messages: messages pulled and not done, or not returned by `poll` yet.
        held_bytes: total size of their bodies.
        done_offset: the queue offset below which all messages are done; None if not known yet.
        max_offset: the queue offset of the next message to be stored; None before the first pull.
        is_failing: the broker does not answer pulls, or refuses them.
        problem: why the queue is not pulled, if for another reason than `is_failing`.
    """

    held_messages: int
    held_bytes: int
    done_offset: int | None
    max_offset: int | None
    is_failing: bool
    problem: str | None = None
