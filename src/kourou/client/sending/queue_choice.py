"""Which queue a message goes to: each in turn, or as the caller says.

A `QueueSelector` is any function of the topic's queues and the message. The queues are sorted by
(broker name, queue id), the same in every producer, in Python and Java, as long as the topic's
route is the same; those of an ordered topic are in the order that its configuration lists.

Source: SelectMessageQueueByHash, SelectMessageQueueByRandom, TopicPublishInfo.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from kourou.errors import NoRouteError, UsageError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute, publish_queues
from kourou.protocol.hashing import java_string_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Returns one of the queues, which are at least one, for the message."""


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key: |its Java hash| modulo the number of queues."""
    return queues[abs(java_string_hash(sharding_key)) % len(queues)]


def by_sharding_key(sharding_key: str) -> QueueSelector:
    """Return a selector that takes the queue of `sharding_key`, as Java's selector by hash does."""
    return lambda queues, _: queue_of_key(queues, sharding_key)


def at_random(rng: random.Random | None = None) -> QueueSelector:
    """Return a selector that takes any queue; `rng` decides, if given."""
    chance = rng or random.Random()
    return lambda queues, _: queues[chance.randrange(len(queues))]


def in_machine_rooms(rooms: Iterable[str]) -> QueueSelector:
    """Return a selector that takes the queues of some machine rooms in turn.

    A broker's room is what stands before the `@` of its name, such as `room1@broker-a`, as
    consumers that share queues by machine room read it. Where no broker is in one of the rooms,
    the selector raises `UsageError`: a message that must stay in a room is not sent elsewhere.
    """
    wanted = frozenset(rooms)
    taken = 0

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        nonlocal taken
        near = [queue for queue in queues if _room(queue.broker_name) in wanted]
        if not near:
            names = ", ".join(sorted(wanted))
            raise UsageError(f"topic {message.topic} has no queue in the machine rooms {names}")
        taken += 1
        return near[(taken - 1) % len(near)]

    return select


class RoundRobin:
    """Takes the queues of one topic in turn, from a random start.

    The start differs between producers, so that many short-lived ones do not all fill queue 0.
    """

    def __init__(self, topic: str, start: int) -> None:
        self._topic = topic
        self._next = start
        # What follows from a route, as long as it is the one: listing the queues takes a while.
        self._route: TopicRoute | None = None
        self._queues: tuple[MessageQueue, ...] = ()

    def queues(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the queues that may be chosen from, at least one.

        Raises:
            NoRouteError: no queue of the topic can be written.
        """
        if route is not self._route:
            self._route, self._queues = route, tuple(publish_queues(self._topic, route))
        if not self._queues:
            raise NoRouteError(f"topic {self._topic} has no queue that can be written")
        return self._queues

    def choose(
        self,
        route: TopicRoute,
        avoid: str | None = None,
        preferences: Sequence[Callable[[str], bool]] = (),
    ) -> MessageQueue:
        """Return the next queue whose broker is not `avoid`; any, if there is no other broker.

        Args:
            route: the topic's.
            avoid: name of the broker where the last try of this message failed.
            preferences: what the broker's name should satisfy, the most wanted first; a queue that
                satisfies none is taken where there is no other.

        Raises:
            NoRouteError: no queue of the topic can be written.
        """
        count = len(self.queues(route))
        if avoid is None and not preferences:
            return self._take()
        for is_preferred in preferences or (_is_any,):
            for _ in range(count):
                queue = self._take()
                if queue.broker_name != avoid and is_preferred(queue.broker_name):
                    return queue
        return self._take()

    def restart(self, start: int) -> None:
        """Go on from another place, so that producers that failed together do not stay together."""
        self._next = start

    def _take(self) -> MessageQueue:
        queue = self._queues[self._next % len(self._queues)]
        self._next += 1
        return queue


def _is_any(_: str) -> bool:
    return True


def _room(broker_name: str) -> str | None:
    room, at, _ = broker_name.partition("@")
    return room if at else None
