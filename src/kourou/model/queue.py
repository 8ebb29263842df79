"""MessageQueue: one queue of a topic on one broker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class MessageQueue:
    """One queue of a topic on one broker; sorted by (topic, broker_name, queue_id)."""

    topic: str
    broker_name: str
    queue_id: int
