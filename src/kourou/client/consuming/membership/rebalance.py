"""What a rebalance pass changes: a member's share of a topic's queues against what it has; pure.

How queues are shared out say the strategies, see `kourou.model.allocation`. For a moment two
members may see different lists: then a queue has two owners, or none, until the next pass. That is
why delivery is at least once.

Source: RebalanceImpl.rebalanceByTopic, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

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
    """Return the ids as Java sorts them, by UTF-16 units: all members must agree on the order."""
    if all(map(str.isascii, consumer_ids)):
        return sorted(consumer_ids)
    return sorted(consumer_ids, key=lambda one: one.encode("utf-16-be", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """What a pass must do: queues to release and queues to start, each sorted.

    Attributes:
        is_shared: there are other members, one of which may have had what is to be started.
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
    """Return what turns the queues `held` of one topic into this member's share.

    Costs what the strategy costs and what the share is, not what the topic has: nothing is sorted
    or copied here.

    Args:
        held: queues of the topic that this member has now.
        queues: every readable queue of the topic, sorted.
        consumer_ids: client ids of the group's live members, each once, as `java_order` has them.
        self_id: the own client id; a member that the broker does not list has no share.
        allocate: the strategy.

    Raises:
        UsageError: the strategy, a user's, gave queues that the topic has not, or no queues at all.
    """
    share = allocate(queues, consumer_ids, self_id)
    wanted = _checked(share, queues, allocate)
    return plan_share(held, wanted, is_shared=len(consumer_ids) > 1)


def plan_share(
    held: Collection[MessageQueue], wanted: Collection[MessageQueue], *, is_shared: bool = True
) -> QueueChanges:
    """Return what turns the queues `held` into the queues `wanted`."""
    now, then = frozenset(held), frozenset(wanted)
    return QueueChanges(tuple(sorted(now - then)), tuple(sorted(then - now)), is_shared)


def _checked(
    share: object, queues: Sequence[MessageQueue], allocate: Allocate
) -> Sequence[MessageQueue]:
    """Return the share if it is one. Kourou's own strategies are believed: looking costs more."""
    if _is_believed(allocate):
        return cast("Sequence[MessageQueue]", share)
    name = strategy_name(allocate)
    if isinstance(share, str) or not isinstance(share, Collection):
        raise UsageError(f"the strategy {name} returned {share!r}: a list of queues is wanted")
    known = frozenset(queues)
    for queue in share:
        if queue not in known:
            raise UsageError(f"the strategy {name} gave {queue!r}, which is none of the queues")
    return tuple(share)


def _is_believed(allocate: Allocate) -> bool:
    if isinstance(allocate, NearbyMachineRooms):
        return _is_believed(allocate.inner)
    own = (ConsistentHash, ConfiguredQueues, MachineRooms)
    return isinstance(allocate, own) or allocate in (allocate_averagely, allocate_by_circle)
