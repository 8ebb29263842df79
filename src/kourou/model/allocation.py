"""Allocation strategies: assign a topic's queues to the members of a group; pure functions.

Each member computes the allocation itself from the same two sorted lists. All members of a group
must therefore use the same strategy. A strategy is a callable with the arguments

    queues        all readable queues of one topic, sorted
    consumer_ids  the client ids of the group's members, sorted, without duplicates
    self_id       the member's own client id; an id that is not in the list gets no queues

that returns the member's own queues. Users may supply any such callable.

    AVG                       consecutive queues; the first members get one more
    AVG_BY_CIRCLE             round robin
    CONSISTENT_HASH           `consistent_hash.py`: few queues move when a member joins or leaves
    CONFIG                    `ConfiguredQueues`: the queues named by the user
    MACHINE_ROOM              `MachineRooms`: the queues of brokers named `room@name`
    MACHINE_ROOM_NEARBY-...   `NearbyMachineRooms`: the queues of the member's own room first

Source: AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle,
AllocateMessageQueueByConfig, AllocateMessageQueueByMachineRoom, AllocateMachineRoomNearby,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kourou.errors import ConfigError, UsageError
from kourou.model.queue import MessageQueue
from kourou.model.sequence_cache import SequenceCache
from kourou.model.topic import is_retry_topic

Allocate = Callable[[Sequence[MessageQueue], Sequence[str], str], Sequence[MessageQueue]]
"""A strategy: (sorted queues, sorted client ids, own id) -> own queues."""

NEARBY_PREFIX: Final = "MACHINE_ROOM_NEARBY-"
"""Prefix of the name of `NearbyMachineRooms`; the name of the inner strategy follows."""


def allocate_averagely(
    queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
) -> list[MessageQueue]:
    """Return the member's share of consecutive queues; the first members get one more.

    Seven queues for three members: 0 1 2 | 3 4 | 5 6.
    """
    if self_id not in consumer_ids:
        return []
    index = consumer_ids.index(self_id)
    share, remainder = divmod(len(queues), len(consumer_ids))
    start = index * share + min(index, remainder)
    return list(queues[start : start + share + (index < remainder)])


def allocate_by_circle(
    queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
) -> list[MessageQueue]:
    """Return every n-th queue, starting at the member's index (round robin).

    Seven queues for three members: 0 3 6 | 1 4 | 2 5.
    """
    if self_id not in consumer_ids:
        return []
    return list(queues[consumer_ids.index(self_id) :: len(consumer_ids)])


class ConfiguredQueues:
    """CONFIG: assign the queues that the user names, regardless of the other members.

    Nothing checks that every queue of a topic is named by exactly one member. A named queue that
    the topic does not have yet is assigned once it exists. The queues of the group's retry topic,
    unless one of them is named, are allocated with AVG; in Java no member consumes them.

    Args:
        queues: of one or several topics, in any order.

    Raises:
        ConfigError: no queue is given, or an element is not a `MessageQueue`.
    """

    name: Final = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        named = list(queues)
        for queue in named:
            if not isinstance(queue, MessageQueue):
                raise ConfigError(f"configured queue {queue!r} is not a MessageQueue")
        if not named:
            raise ConfigError("no queue is configured: name the queues of this consumer")
        self._named = frozenset(named)
        self._topics = frozenset(queue.topic for queue in named)

    def __call__(
        self, queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
    ) -> list[MessageQueue]:
        """Return the configured queues among `queues`."""
        if queues and queues[0].topic not in self._topics and is_retry_topic(queues[0].topic):
            return allocate_averagely(queues, consumer_ids, self_id)
        return [queue for queue in queues if queue in self._named]

    def __repr__(self) -> str:
        return f"ConfiguredQueues({sorted(self._named)})"


class MachineRooms:
    """MACHINE_ROOM: assign the queues of brokers in the given rooms evenly; others stay unassigned.

    A broker's room is the part of its name before its only `@`: `room1@broker-a`. Each member gets
    consecutive queues, and the remaining queues go to the first members, one each: seven queues for
    three members are 0 1 6 | 2 3 | 4 5.

    Args:
        rooms: the same for all members.

    Raises:
        ConfigError: no room is given, or one is not a str.
    """

    name: Final = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset([rooms] if isinstance(rooms, str) else rooms)
        if not self._rooms or not all(isinstance(room, str) for room in self._rooms):
            raise ConfigError(f"machine rooms are {rooms!r}: pass the names of one or more rooms")
        self._queues_in_rooms = SequenceCache(self._select_queues)

    def __call__(
        self, queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
    ) -> list[MessageQueue]:
        """Return the member's share of the queues in these rooms."""
        if self_id not in consumer_ids:
            return []
        room_queues = self._queues_in_rooms.get(queues)
        index, count = consumer_ids.index(self_id), len(consumer_ids)
        share, remainder = divmod(len(room_queues), count)
        own = room_queues[index * share : (index + 1) * share]
        return own + room_queues[count * share + index :][:1] if index < remainder else own

    def _select_queues(self, queues: tuple[MessageQueue, ...]) -> list[MessageQueue]:
        return [queue for queue in queues if _room_of(queue.broker_name) in self._rooms]

    def __repr__(self) -> str:
        return f"MachineRooms({sorted(self._rooms)})"


class NearbyMachineRooms:
    """MACHINE_ROOM_NEARBY: assign each room's queues to the members in that room, if it has any.

    Queues of a room without members are allocated among all members, room by room in the order of
    the room names.

    Args:
        queue_room: returns a queue's room, such as `lambda queue: queue.broker_name.split("@")[0]`.
            It must always return the same room for a queue, because results are cached.
        consumer_room: returns the room of a client id, under the same condition.
        inner: the strategy that allocates the queues of one room.

    Raises:
        ConfigError: an argument is not callable.
    """

    def __init__(
        self,
        queue_room: Callable[[MessageQueue], str],
        consumer_room: Callable[[str], str],
        inner: Allocate = allocate_averagely,
    ) -> None:
        for name, function in (("queue_room", queue_room), ("consumer_room", consumer_room)):
            if not callable(function):
                raise ConfigError(f"{name} is {function!r}: pass a function that returns a room")
        if not callable(inner):
            raise ConfigError(f"inner is {inner!r}: pass a strategy, such as ConsistentHash()")
        self._queue_room = queue_room
        self._consumer_room = consumer_room
        self.inner = inner
        self._queues_by_room = SequenceCache(self._queue_rooms)
        self._members_by_room = SequenceCache(self._member_rooms)

    @property
    def name(self) -> str:
        """Java's name of the strategy; it contains the name of the inner one."""
        return NEARBY_PREFIX + strategy_name(self.inner)

    def __call__(
        self, queues: Sequence[MessageQueue], consumer_ids: Sequence[str], self_id: str
    ) -> list[MessageQueue]:
        """Return the member's share.

        Raises:
            UsageError: `queue_room` or `consumer_room` returned no room.
        """
        if self_id not in consumer_ids:
            return []
        queues_by_room, members_by_room = (
            self._queues_by_room.get(queues),
            self._members_by_room.get(consumer_ids),
        )
        own_room = self._consumer_room(self_id)
        nearby = queues_by_room.get(own_room)
        own = list(self.inner(nearby, members_by_room[own_room], self_id)) if nearby else []
        for room, room_queues in queues_by_room.items():
            if room not in members_by_room:
                own += self.inner(room_queues, consumer_ids, self_id)
        return own

    def _queue_rooms(self, queues: tuple[MessageQueue, ...]) -> dict[str, tuple[MessageQueue, ...]]:
        """Return the queues by room, in the order of the rooms' names."""
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self._queue_room(queue)
            if not room:
                raise UsageError(f"queue_room returned no room for {queue}")
            found.setdefault(room, []).append(queue)
        return {room: tuple(found[room]) for room in sorted(found)}

    def _member_rooms(self, consumer_ids: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for consumer_id in consumer_ids:
            room = self._consumer_room(consumer_id)
            if not room:
                raise UsageError(f"consumer_room returned no room for client id {consumer_id}")
            found.setdefault(room, []).append(consumer_id)
        return {room: tuple(ids) for room, ids in found.items()}


def strategy_name(allocation: object) -> str:
    """Return the name of a strategy, as used in logs and in requests to brokers."""
    if allocation is allocate_averagely:
        return "AVG"
    if allocation is allocate_by_circle:
        return "AVG_BY_CIRCLE"
    name = getattr(allocation, "name", None) or getattr(allocation, "__name__", None)
    return name if isinstance(name, str) else type(allocation).__name__


def _room_of(broker_name: str) -> str | None:
    """Return the part before the only `@`; None if there is no such `@`, or nothing after it."""
    parts = broker_name.rstrip("@").split("@")  # Java's split drops empty parts at the end
    return parts[0] if len(parts) == 2 else None
