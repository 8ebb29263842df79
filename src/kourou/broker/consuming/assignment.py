"""Assignment of queues by the broker to a member of a group (request 400). Pure.

    mode PULL                             the strategy's share of all queues
    mode POP, share number not positive   every broker of the topic as one queue -1: all members
      or at least the other members'      pop all of its queues
      count
    mode POP, members <= queues           the member's share and those of the next members, in a
                                          ring
    mode POP, members > queues            one queue, by the member's index

The answer None differs from an empty list: the member then keeps its queues.

Source: QueryAssignmentProcessor.doLoadBalance and allocate4Pop, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kourou.model.allocation import Allocate, allocate_averagely, allocate_by_circle
from kourou.model.queue import MessageQueue
from kourou.protocol.queue_assignment import MessageRequestMode, SetMessageRequestMode

STRATEGIES: Final[Mapping[str, Allocate]] = MappingProxyType(
    {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}
)
"""Strategies that a member may name; the broker does not know any others."""

ALL_QUEUES: Final = -1
"""The queue id that stands for all queues of a broker."""


def assign(
    queues: Sequence[MessageQueue],
    consumer_ids: Sequence[str],
    self_id: str,
    strategy: Allocate,
    mode: SetMessageRequestMode,
) -> list[MessageQueue]:
    """Return the queues of one member, sorted and unique; none if it is not among the ids.

    Args:
        queues: queues of the topic on all brokers, sorted; at least one.
        consumer_ids: client ids of the group's members that this broker knows, sorted.
        self_id: client id of the member.
        strategy: allocates the queues to members.
        mode: how the group reads the topic.
    """
    if mode.mode is MessageRequestMode.PULL:
        found = strategy(queues, consumer_ids, self_id)
    elif not 0 < mode.pop_share_queue_num < len(consumer_ids) - 1:
        found = [MessageQueue(one.topic, one.broker_name, ALL_QUEUES) for one in queues]
    elif self_id not in consumer_ids:
        found = []
    elif len(consumer_ids) <= len(queues):
        index, count = consumer_ids.index(self_id), len(consumer_ids)
        found = [
            queue
            for step in range(mode.pop_share_queue_num + 1)
            for queue in strategy(queues, consumer_ids, consumer_ids[(index + step) % count])
        ]
    else:
        found = [queues[consumer_ids.index(self_id) % len(queues)]]
    return sorted(set(found))
