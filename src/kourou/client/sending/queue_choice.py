"""Which queue a message goes to: each in turn, or as the caller says.

A `QueueSelector` is any function of the topic's queues and the message. The queues are sorted by
(broker name, queue id), the same in every producer, in Python and Java, as long as the topic's
route is the same; those of an ordered topic are in the order that its configuration lists.

Source: SelectMessageQueueByHash, SelectMessageQueueByRandom, TopicPublishInfo.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kourou.errors import NoRouteError, UsageError
from kourou.model import properties as names
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute, publish_queues
from kourou.protocol.hashing import java_string_hash

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Returns one of the queues, which are at least one, for the message."""


Where = MessageQueue | QueueSelector | None
"""A queue, what chooses one, or None for the next in turn."""


def check_queue(topic: str, queue: MessageQueue) -> None:
    """Refuse a queue of another topic, and what is no queue.

    Raises:
        UsageError: it is one.
    """
    try:
        is_other = queue.topic != topic
    except AttributeError:
        raise UsageError(
            f"a message to {topic} cannot go to {queue!r:.100}: a function that chooses returns "
            "one of the queues that it is given"
        ) from None
    if is_other:
        raise UsageError(f"a message to {topic} cannot go to a queue of {queue.topic}")


def place(
    message: Message,
    queue: MessageQueue | QueueSelector | None,
    sharding_key: str | None,
) -> tuple[Where, Message]:
    """Return where a message goes, and the message with its sharding key.

    Raises:
        UsageError: both a queue and a key are given, or the queue is another topic's or none.
        InvalidMessageError: the key cannot be a property.
    """
    if isinstance(queue, MessageQueue):
        check_queue(message.topic, queue)
    elif queue is not None and not callable(queue):
        raise UsageError(
            f"queue is {queue!r:.100}: give a MessageQueue, or a function that chooses"
        )
    if sharding_key is None:
        return queue, message
    if queue is not None:
        raise UsageError("queue and sharding_key both say where the message goes: give one")
    properties = {**message.properties, names.SHARDING_KEY: sharding_key}
    return by_sharding_key(sharding_key), replace(message, properties=properties)


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

    def place(self, route: TopicRoute, where: Where, message: Message) -> MessageQueue:
        """Return the queue for the first try of a message.

        Raises:
            UsageError: a selector returned a queue of another topic; its own exceptions pass.
            NoRouteError: no queue of the topic can be written.
        """
        if where is None:
            if route is not self._route or not self._queues:
                return self.choose(route)
            # `choose` without its calls: nearly all messages come here.
            queue = self._queues[self._next % len(self._queues)]
            self._next += 1
            return queue
        if isinstance(where, MessageQueue):
            return where
        queue = where(self.queues(route), message)
        check_queue(self._topic, queue)
        return queue

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


class Turns:
    """The turns of the topics that one producer sends to.

    Args:
        rng: where each begins.
        topics_max: how many are kept; all begin anew when there are more.
    """

    def __init__(self, rng: random.Random, topics_max: int) -> None:
        self._random = rng
        self._topics_max = topics_max
        self._turns: dict[str, RoundRobin] = {}

    def of(self, topic: str) -> RoundRobin:
        """Return the turn of a topic."""
        turn = self._turns.get(topic)
        if turn is None:
            if len(self._turns) >= self._topics_max:
                self._turns.clear()
            turn = self._turns[topic] = RoundRobin(topic, self._random.getrandbits(16))
        return turn


def _is_any(_: str) -> bool:
    return True


def _room(broker_name: str) -> str | None:
    room, at, _ = broker_name.partition("@")
    return room if at else None
