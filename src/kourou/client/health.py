"""Health reports of producers and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kourou.model.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a client, from its own observations: no request is sent for it.

    Attributes:
        is_open: the client is started and not closed.
        problems: descriptions of the current problems; empty if there are none.
    """

    is_open: bool
    problems: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        """Whether the client is open and has no problems."""
        return self.is_open and not self.problems


@dataclass(frozen=True, slots=True)
class ProducerHealth(Health):
    """Health of a producer.

    Attributes:
        in_flight: number of messages being sent.
    """

    in_flight: int


@dataclass(frozen=True, slots=True)
class ConsumerHealth(Health):
    """Health of a consumer.

    Attributes:
        queues: the assigned queues, sorted.
        lag: for each queue that was pulled, the number of stored messages that are not yet
            consumed, as of the last pull. Messages that the filter excludes count.
        held_messages: number of messages that are pulled or popped and not yet consumed.
        held_bytes: size of their bodies in bytes.
        lost_acks: number of popped messages since the start that were consumed and could not be
            acknowledged in time: they are delivered again.
    """

    queues: tuple[MessageQueue, ...]
    lag: Mapping[MessageQueue, int]
    held_messages: int
    held_bytes: int
    lost_acks: int = 0

    @property
    def lag_messages(self) -> int:
        """The total lag of all queues."""
        return sum(self.lag.values())


@dataclass(frozen=True, slots=True)
class SimpleConsumerHealth(Health):
    """Health of a simple consumer.

    Attributes:
        held_messages: number of messages that arrived after their `receive` was cancelled.
        renewals: number of messages that are renewed in the background.
    """

    held_messages: int
    renewals: int


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
