"""CONSISTENT_HASH: a member that comes or goes moves about its own share, and no other queue; pure.

Each member has some points on a ring of 2**32 places, each queue one. A queue belongs to the next
point at or after its own, beyond the last to the first.

    point of a member  MD5 of `<client id>-<k>`, k from 0; of two at one place the later id counts
    point of a queue   MD5 of `MessageQueue [topic=T, brokerName=B, queueId=0]`
    place              the first four bytes of the MD5, big-endian

What does not change from pass to pass is kept: the points of a list of queues, the ring of a list
of ids. A member then looks only at the arcs that end at its own points.

Source: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from hashlib import md5
from typing import Final

from kourou.errors import ConfigError
from kourou.model.kept import Kept
from kourou.model.queue import MessageQueue

VIRTUAL_NODES: Final = 10
"""Java's points of a member."""
VIRTUAL_NODES_MAX: Final = 1_000
"""So many points of 1,000 members take a second to make."""
_IDS_KEPT_MAX: Final = 16_384
"""Client ids whose points are kept."""
_BITS: Final = 32
_PLACE_MAX: Final = (1 << _BITS) - 1


class ConsistentHash:
    """The strategy, for any number of groups and topics.

    Args:
        virtual_nodes: points of each member; the same for all of them. More make shares more even.

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
        self._rings = Kept(self._make_ring)
        self._points = Kept(_queue_points)

    def __call__(
        self, queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
    ) -> list[MessageQueue]:
        """Return the own share, in the order of `queues`."""
        if self_id not in consumer_ids or not queues:
            return []
        ring, points = self._rings.get(consumer_ids), self._points.get(queues)
        index = consumer_ids.index(self_id)
        own: list[int] = []
        for place in _member_places(self_id, self._virtual_nodes):
            own += _arc(ring, place, index, points)
        return [queues[at] for at in sorted(set(own))]

    def _make_ring(self, ids: tuple[str, ...]) -> list[int]:
        """Return the points of all members, sorted: `place << 32 | index of the id`."""
        return sorted(
            place << _BITS | index
            for index, consumer_id in enumerate(ids)
            for place in _member_places(consumer_id, self._virtual_nodes)
        )

    def __repr__(self) -> str:
        return f"ConsistentHash({self._virtual_nodes})"


def place_of(key: str) -> int:
    """Return the place of a key on the ring, 0 to 2**32 - 1."""
    digest = md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def queue_key(queue: MessageQueue) -> str:
    """Return the text of which a queue's place is made: that of Java's MessageQueue."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


@lru_cache(maxsize=_IDS_KEPT_MAX)
def _member_places(consumer_id: str, virtual_nodes: int) -> tuple[int, ...]:
    return tuple(place_of(f"{consumer_id}-{number}") for number in range(virtual_nodes))


def _queue_points(queues: tuple[MessageQueue, ...]) -> list[int]:
    """Return the points of all queues, sorted: `place << 32 | index of the queue`."""
    return sorted(place_of(queue_key(queue)) << _BITS | at for at, queue in enumerate(queues))


def _arc(ring: list[int], place: int, index: int, points: list[int]) -> list[int]:
    """Return the queues' indexes between the point before `place` and it, `place` included.

    None where another member, of a higher index, has a point at the same place.
    """
    after = bisect_right(ring, place << _BITS | _PLACE_MAX)
    if ring[after - 1] & _PLACE_MAX != index:
        return []
    first = bisect_left(ring, place << _BITS)  # several may share the place
    before = ring[first - 1] >> _BITS
    low, high = _above(points, before), _above(points, place)
    found = points[low:high] if first else points[low:] + points[:high]
    return [point & _PLACE_MAX for point in found]


def _above(points: list[int], place: int) -> int:
    """Return the index of the first point beyond a place."""
    return bisect_right(points, place << _BITS | _PLACE_MAX)
