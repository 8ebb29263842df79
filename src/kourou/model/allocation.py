"""The strategies by which a topic's queues are shared out among the members of a group; pure.

Every member computes the same division from the same two sorted lists, so nobody has to agree on
anything: all members of a group must use one strategy. Each is a callable of

    queues        all readable queues of one topic, sorted
    consumer_ids  the client ids of the group's members, sorted, each once
    self_id       the own client id; one that is not among the ids gets nothing

that returns the own queues. Any function of this shape is a strategy too.

    AVG                       neighbouring queues, the first members one more
    AVG_BY_CIRCLE             dealt out like cards
    CONSISTENT_HASH           `consistent_hash.py`: a member that comes or goes moves few queues
    CONFIG                    `ConfiguredQueues`: those that the user names
    MACHINE_ROOM              `MachineRooms`: those of brokers named `room@name`
    MACHINE_ROOM_NEARBY-...   `NearbyMachineRooms`: those of the own room first

Source: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle,
AllocateMessageQueueByConfig, AllocateMessageQueueByMachineRoom, AllocateMachineRoomNearby,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kourou.errors import ConfigError, UsageError
from kourou.model.kept import Kept
from kourou.model.queue import MessageQueue
from kourou.model.topic import is_retry_topic

Allocate = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]
"""A strategy: (sorted queues, sorted client ids, own id) -> own queues."""

NEARBY: Final = "MACHINE_ROOM_NEARBY-"
"""What the name of a strategy that prefers its own room begins with; its inner one's follows."""


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


class ConfiguredQueues:
    """CONFIG: this member has the queues that its user names, whatever the others have.

    Each member names its own, and nobody sees to it that every queue has an owner. Of the queues
    named, those that the topic has are this member's; one that comes later is taken then. Retries
    come by a topic of the group that users do not think of: unless its queues are named, they are
    shared out averagely. (In Java nobody reads them then.)

    Args:
        queues: of one or several topics; in any order.

    Raises:
        ConfigError: there is none, or one is no `MessageQueue`.
    """

    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        named = list(queues)
        for queue in named:
            if not isinstance(queue, MessageQueue):
                raise ConfigError(f"a configured queue is {queue!r}: give MessageQueue objects")
        if not named:
            raise ConfigError("no queue is configured: name those that this consumer is to have")
        self._named = frozenset(named)
        self._topics = frozenset(queue.topic for queue in named)

    def __call__(
        self, queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
    ) -> list[MessageQueue]:
        """Return those of `queues` that were named."""
        if queues and queues[0].topic not in self._topics and is_retry_topic(queues[0].topic):
            return allocate_averagely(queues, consumer_ids, self_id)
        return [queue for queue in queues if queue in self._named]

    def __repr__(self) -> str:
        return f"ConfiguredQueues({sorted(self._named)})"


class MachineRooms:
    """MACHINE_ROOM: queues of brokers in these rooms, averagely; those of others nobody has.

    A broker's room is what stands before the one `@` of its name: `room1@broker-a`. What is left
    over by a division goes to the first members, one each: seven queues for three members are
    0 1 6 | 2 3 | 4 5.

    Args:
        rooms: the same for all members.

    Raises:
        ConfigError: there is none.
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset([rooms] if isinstance(rooms, str) else rooms)
        if not self._rooms or not all(isinstance(room, str) for room in self._rooms):
            raise ConfigError(f"the machine rooms are {rooms!r}: give the names of one or more")
        self._inside = Kept(self._queues_inside)

    def __call__(
        self, queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
    ) -> list[MessageQueue]:
        """Return the own share of the queues in these rooms."""
        if self_id not in consumer_ids:
            return []
        inside = self._inside.get(queues)
        index, count = consumer_ids.index(self_id), len(consumer_ids)
        share, rest = divmod(len(inside), count)
        own = inside[index * share : (index + 1) * share]
        return own + inside[count * share + index :][:1] if index < rest else own

    def _queues_inside(self, queues: tuple[MessageQueue, ...]) -> list[MessageQueue]:
        return [queue for queue in queues if _room_of(queue.broker_name) in self._rooms]

    def __repr__(self) -> str:
        return f"MachineRooms({sorted(self._rooms)})"


class NearbyMachineRooms:
    """MACHINE_ROOM_NEARBY: queues go to members in their own room, if it has any.

    Queues of a room without members are shared out among all, room by room in the order of their
    names. How a room is shared out says another strategy.

    Args:
        queue_room: a queue's room, such as `lambda queue: queue.broker_name.split("@")[0]`. Always
            the same for the same queue: what it says is remembered.
        consumer_room: the room of a client id; likewise.
        inner: shares out each room's queues.

    Raises:
        ConfigError: `inner` or a resolver cannot be called.
    """

    def __init__(
        self,
        queue_room: Callable[[MessageQueue], str],
        consumer_room: Callable[[str], str],
        inner: Allocate = allocate_averagely,
    ) -> None:
        for what, function in (("queue_room", queue_room), ("consumer_room", consumer_room)):
            if not callable(function):
                raise ConfigError(f"{what} is {function!r}: give a function that returns a room")
        if not callable(inner):
            raise ConfigError(f"inner is {inner!r}: give a strategy, such as ConsistentHash()")
        self._queue_room = queue_room
        self._consumer_room = consumer_room
        self.inner = inner
        self._queues_by_room = Kept(self._queue_rooms)
        self._members_by_room = Kept(self._member_rooms)

    @property
    def name(self) -> str:
        """Java's name of it: that of the inner strategy is in it."""
        return NEARBY + strategy_name(self.inner)

    def __call__(
        self, queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
    ) -> list[MessageQueue]:
        """Return the own share.

        Raises:
            UsageError: a resolver returned no room.
        """
        if self_id not in consumer_ids:
            return []
        rooms, members = self._queues_by_room.get(queues), self._members_by_room.get(consumer_ids)
        here = self._consumer_room(self_id)
        nearby = rooms.get(here)
        own = list(self.inner(nearby, members[here], self_id)) if nearby else []
        for room, inside in rooms.items():
            if room not in members:
                own += self.inner(inside, consumer_ids, self_id)
        return own

    def _queue_rooms(self, queues: tuple[MessageQueue, ...]) -> dict[str, tuple[MessageQueue, ...]]:
        """Return the queues by room, in the order of the rooms' names."""
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self._queue_room(queue)
            if not room:
                raise UsageError(f"queue_room gave no room for {queue}")
            found.setdefault(room, []).append(queue)
        return {room: tuple(found[room]) for room in sorted(found)}

    def _member_rooms(self, consumer_ids: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for consumer_id in consumer_ids:
            room = self._consumer_room(consumer_id)
            if not room:
                raise UsageError(f"consumer_room gave no room for client id {consumer_id}")
            found.setdefault(room, []).append(consumer_id)
        return {room: tuple(ids) for room, ids in found.items()}


def strategy_name(allocation: object) -> str:
    """Return what a strategy is called, in logs and to brokers."""
    if allocation is allocate_averagely:
        return "AVG"
    if allocation is allocate_by_circle:
        return "AVG_BY_CIRCLE"
    name = getattr(allocation, "name", None) or getattr(allocation, "__name__", None)
    return name if isinstance(name, str) else type(allocation).__name__


def _room_of(broker_name: str) -> str | None:
    """Return the part before the one `@`; None if there is none, or nothing after it."""
    parts = broker_name.rstrip("@").split("@")  # Java's split drops empty parts at the end
    return parts[0] if len(parts) == 2 else None
