"""CONSISTENT_HASH, an allocation strategy that moves few queues when members join or leave; pure.

Members and queues are hashed to positions on a ring of 2**32 positions: a member to several (its
virtual nodes), a queue to one. A queue is assigned to the first member position at or after its
own; behind the last member position, to the first.

    member position  MD5 of `<client id>-<k>`, k from 0; of two equal ones the later id's counts
    queue position   MD5 of `MessageQueue [topic=T, brokerName=B, queueId=0]`
    position         the first four bytes of the MD5, big-endian

The sorted positions of a list of queues and of a list of ids are cached between rebalances. A
member then examines only the arcs that end at its own positions.

Source: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from hashlib import md5
from typing import Final

from kourou.errors import ConfigError
from kourou.model.queue import MessageQueue
from kourou.model.sequence_cache import SequenceCache

VIRTUAL_NODES: Final = 10
"""Java's default number of positions of a member."""
VIRTUAL_NODES_MAX: Final = 1_000
"""Most positions of a member. The ring of 1,000 such members takes a second to compute."""
_CACHED_IDS_MAX: Final = 16_384
"""Client ids whose positions are cached."""
_BITS: Final = 32
_POSITION_MAX: Final = (1 << _BITS) - 1


class ConsistentHash:
    """The strategy. One instance may serve any number of groups and topics.

    Args:
        virtual_nodes: positions of each member; must be the same for all members. More positions
            give more even shares.

    Raises:
        ConfigError: `virtual_nodes` is not 1 to 1,000.
    """

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if type(virtual_nodes) is not int or not 1 <= virtual_nodes <= VIRTUAL_NODES_MAX:
            raise ConfigError(
                f"virtual_nodes is {virtual_nodes!r}; it must be 1 to {VIRTUAL_NODES_MAX}"
            )
        self._virtual_nodes = virtual_nodes
        self._rings = SequenceCache(self._build_ring)
        self._points = SequenceCache(_queue_points)

    def __call__(
        self, queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
    ) -> list[MessageQueue]:
        """Return the member's share, in the order of `queues`."""
        if self_id not in consumer_ids or not queues:
            return []
        ring, points = self._rings.get(consumer_ids), self._points.get(queues)
        index = consumer_ids.index(self_id)
        own: list[int] = []
        for position in _member_positions(self_id, self._virtual_nodes):
            own += _arc(ring, position, index, points)
        return [queues[at] for at in sorted(set(own))]

    def _build_ring(self, ids: tuple[str, ...]) -> list[int]:
        """Return the positions of all members, sorted: `position << 32 | index of the id`."""
        return sorted(
            position << _BITS | index
            for index, consumer_id in enumerate(ids)
            for position in _member_positions(consumer_id, self._virtual_nodes)
        )

    def __repr__(self) -> str:
        return f"ConsistentHash({self._virtual_nodes})"


def ring_position(key: str) -> int:
    """Return the position of a key on the ring, 0 to 2**32 - 1."""
    digest = md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def queue_key(queue: MessageQueue) -> str:
    """Return the key that is hashed for a queue: the text of Java's MessageQueue."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


@lru_cache(maxsize=_CACHED_IDS_MAX)
def _member_positions(consumer_id: str, virtual_nodes: int) -> tuple[int, ...]:
    return tuple(ring_position(f"{consumer_id}-{number}") for number in range(virtual_nodes))


def _queue_points(queues: tuple[MessageQueue, ...]) -> list[int]:
    """Return the positions of all queues, sorted: `position << 32 | index of the queue`."""
    return sorted(ring_position(queue_key(queue)) << _BITS | at for at, queue in enumerate(queues))


def _arc(ring: list[int], position: int, index: int, points: list[int]) -> list[int]:
    """Return the indexes of the queues on the arc that ends at `position`, `position` included.

    The list is empty if a member with a higher index has the same position.
    """
    after = bisect_right(ring, position << _BITS | _POSITION_MAX)
    if ring[after - 1] & _POSITION_MAX != index:
        return []
    first = bisect_left(ring, position << _BITS)  # several members may have this position
    previous = ring[first - 1] >> _BITS
    low, high = _index_above(points, previous), _index_above(points, position)
    arc = points[low:high] if first else points[low:] + points[:high]
    return [point & _POSITION_MAX for point in arc]


def _index_above(points: list[int], position: int) -> int:
    """Return the index of the first element whose position is greater than `position`."""
    return bisect_right(points, position << _BITS | _POSITION_MAX)
