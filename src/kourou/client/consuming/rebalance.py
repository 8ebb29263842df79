"""Which queues of a topic belong to which member of a group; pure.

Every member computes the same division from the same two sorted lists, so nobody has to agree on
anything. For a moment two members may see different lists: then a queue has two owners, or none,
until the next pass. That is why delivery is at least once.

Source: RebalanceImpl.rebalanceByTopic and the AllocateMessageQueue* strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kourou.model.queue import MessageQueue

Allocate = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]
"""A strategy: (sorted queues, sorted client ids, own id) -> own queues. An own id that is not
among the ids gets nothing."""


def allocate_averagely(
    queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
) -> list[MessageQueue]:
    """Give each member a run of neighbouring queues; the first ones get one more.

    Seven queues for three members: 0 1 2 | 3 4 | 5 6.
    """
    if self_id not in consumer_ids:
        return []
    index = consumer_ids.index(self_id)
    share, rest = divmod(len(queues), len(consumer_ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def allocate_by_circle(
    queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
) -> list[MessageQueue]:
    """Deal the queues out like cards.

    Seven queues for three members: 0 3 6 | 1 4 | 2 5.
    """
    if self_id not in consumer_ids:
        return []
    return list(queues[consumer_ids.index(self_id) :: len(consumer_ids)])


STRATEGIES: Final[Mapping[str, Allocate]] = MappingProxyType(
    {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}
)
"""Strategies by the name that RocketMQ gives them. All members of a group must use one."""


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """What a pass must do: queues to release and queues to start, each sorted."""

    released: tuple[MessageQueue, ...]
    added: tuple[MessageQueue, ...]

    @property
    def is_empty(self) -> bool:
        return not self.released and not self.added


def plan_changes(
    held: Collection[MessageQueue],
    queues: Collection[MessageQueue],
    consumer_ids: Collection[str],
    self_id: str,
    allocate: Allocate,
) -> QueueChanges:
    """Return what turns the queues `held` of one topic into this member's share.

    Args:
        held: queues of the topic that this member has now.
        queues: every readable queue of the topic.
        consumer_ids: client ids of the group's live members, from the broker.
        self_id: the own client id; a member that the broker does not list has no share.
        allocate: the strategy.
    """
    wanted = set(allocate(sorted(queues), sorted(consumer_ids), self_id))
    return QueueChanges(
        released=tuple(sorted(set(held) - wanted)), added=tuple(sorted(wanted - set(held)))
    )
