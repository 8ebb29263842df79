"""Computes the queue changes of a rebalance pass, and the delays of handovers; pure.

The allocation strategies in `kourou.model.allocation` decide the assignment. Two members may
briefly see different member lists; a queue then has two owners, or none, until the next pass. That
is one reason why delivery is at least once.

Source: RebalanceImpl.rebalanceByTopic, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, cast

from kourou.errors import UsageError
from kourou.model.allocation import (
    Allocate,
    ConfiguredQueues,
    MachineRooms,
    NearbyMachineRooms,
    allocate_averagely,
    allocate_by_circle,
    strategy_name,
)
from kourou.model.consistent_hash import ConsistentHash
from kourou.model.queue import MessageQueue


def java_order(consumer_ids: Collection[str]) -> list[str]:
    """Return the ids sorted by UTF-16 code units, as Java does: all members must agree."""
    if all(map(str.isascii, consumer_ids)):
        return sorted(consumer_ids)
    return sorted(consumer_ids, key=lambda one: one.encode("utf-16-be", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """The changes of a pass: queues to release and queues to start, each sorted.

    Attributes:
        is_shared: the group has other members, one of which may have held the added queues.
    """

    released: tuple[MessageQueue, ...]
    added: tuple[MessageQueue, ...]
    is_shared: bool = True

    @property
    def is_empty(self) -> bool:
        return not self.released and not self.added


def plan_changes(
    held: Collection[MessageQueue],
    queues: Sequence[MessageQueue],
    consumer_ids: Sequence[str],
    self_id: str,
    allocate: Allocate,
) -> QueueChanges:
    """Return the changes that turn the held queues of one topic into the assigned ones.

    The cost depends on the strategy and the number of assigned queues, not on the number of the
    topic's queues: those are neither sorted nor copied here.

    Args:
        held: queues of the topic that this member holds.
        queues: all readable queues of the topic, sorted.
        consumer_ids: client ids of the group's live members, unique and in `java_order`.
        self_id: this member's client id; a member missing from `consumer_ids` is assigned nothing.
        allocate: the strategy.

    Raises:
        UsageError: a user's strategy returned queues that the topic does not have, or something
            other than queues.
    """
    assigned = allocate(queues, consumer_ids, self_id)
    wanted = _checked(assigned, queues, allocate)
    return queue_changes(held, wanted, is_shared=len(consumer_ids) > 1)


def queue_changes(
    held: Collection[MessageQueue], wanted: Collection[MessageQueue], *, is_shared: bool = True
) -> QueueChanges:
    """Return the changes that turn the queues `held` into the queues `wanted`."""
    now, then = frozenset(held), frozenset(wanted)
    return QueueChanges(tuple(sorted(now - then)), tuple(sorted(then - now)), is_shared)


def _checked(
    assigned: object, queues: Sequence[MessageQueue], allocate: Allocate
) -> Sequence[MessageQueue]:
    """Return the strategy's result, validated. Kourou's own strategies are trusted, for speed."""
    if _is_trusted(allocate):
        return cast("Sequence[MessageQueue]", assigned)
    name = strategy_name(allocate)
    if isinstance(assigned, str) or not isinstance(assigned, Collection):
        raise UsageError(f"the strategy {name} returned {assigned!r}: expected a list of queues")
    known = frozenset(queues)
    for queue in assigned:
        if queue not in known:
            raise UsageError(
                f"the strategy {name} returned {queue!r}, which is not a queue of the topic"
            )
    return tuple(assigned)


def _is_trusted(allocate: Allocate) -> bool:
    if isinstance(allocate, NearbyMachineRooms):
        return _is_trusted(allocate.inner)
    own = (ConsistentHash, ConfiguredQueues, MachineRooms)
    return isinstance(allocate, own) or allocate in (allocate_averagely, allocate_by_circle)


_VALID_S: Final = 10.0
"""A delay that ended more than this many seconds ago is not valid: passes in between have failed,
so the queue may have been assigned to another member meanwhile."""


class HandoverDelays:
    """Handover delays of the queues that are assigned but not started.

    Another member may have held such a queue. It learns of the change at about the same time, and
    uses the delay to finish and commit its deliveries. If the queue is assigned to another member
    in between, the delay starts over: that member must release the queue, too.

    Args:
        delay_s: the delay of each queue in seconds.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._since_s: dict[MessageQueue, float] = {}

    def __len__(self) -> int:
        """Return the number of delayed queues."""
        return len(self._since_s)

    def note_assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Cancel the delays of the topic's queues that are not in `queues`."""
        for queue in [one for one in self._since_s if one.topic == topic and one not in queues]:
            del self._since_s[queue]

    def remaining_s(self, queue: MessageQueue, now_s: float) -> float:
        """Return the seconds left of the queue's delay; start the delay if there is none.

        At 0 the delay is over and removed: the caller starts the queue.
        """
        since_s = self._since_s.get(queue)
        if since_s is None or now_s - since_s >= self._delay_s + _VALID_S:
            since_s = self._since_s[queue] = now_s
        remaining_s = since_s + self._delay_s - now_s
        if remaining_s <= 0:
            del self._since_s[queue]
        return max(0.0, remaining_s)
