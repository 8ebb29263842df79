"""Choice of the queue for a message: in turn, or by the caller's queue or selector.

A `QueueSelector` is any function of the topic's queues and the message. The queues are sorted by
(broker name, queue id), so that all producers in Python and Java with the same route have the same
order. The queues of an ordered topic are in the order of its configuration.

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
"""Returns one of the queues, of which there is at least one, for the message."""


QueueChoice = MessageQueue | QueueSelector | None
"""A queue, a selector, or None for the next queue in turn."""


def check_queue(topic: str, queue: MessageQueue) -> None:
    """Raise unless `queue` is a queue of the topic.

    Raises:
        UsageError: the queue is of another topic, or is not a MessageQueue.
    """
    try:
        is_other = queue.topic != topic
    except AttributeError:
        raise UsageError(
            f"a message to {topic} cannot be sent to {queue!r:.100}: a queue selector must return "
            "one of the queues passed to it"
        ) from None
    if is_other:
        raise UsageError(f"a message to {topic} cannot be sent to a queue of {queue.topic}")


def resolve_queue_choice(
    message: Message,
    queue: MessageQueue | QueueSelector | None,
    sharding_key: str | None,
) -> tuple[QueueChoice, Message]:
    """Return the queue or selector for a message, and the message with its sharding key.

    Raises:
        UsageError: both a queue and a key are given, the queue is of another topic, or `queue` is
            neither a queue nor a function.
        InvalidMessageError: the key is not valid as a property.
    """
    if isinstance(queue, MessageQueue):
        check_queue(message.topic, queue)
    elif queue is not None and not callable(queue):
        raise UsageError(
            f"queue is {queue!r:.100}: pass a MessageQueue, or a function that returns one"
        )
    if sharding_key is None:
        return queue, message
    if queue is not None:
        raise UsageError("queue and sharding_key both choose the queue: pass one of them")
    properties = {**message.properties, names.SHARDING_KEY: sharding_key}
    return by_sharding_key(sharding_key), replace(message, properties=properties)


def queue_of_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key: |its Java hash| modulo the number of queues."""
    return queues[abs(java_string_hash(sharding_key)) % len(queues)]


def by_sharding_key(sharding_key: str) -> QueueSelector:
    """Return a selector of the queue of `sharding_key`, like Java's SelectMessageQueueByHash."""
    return lambda queues, _: queue_of_key(queues, sharding_key)


def at_random(rng: random.Random | None = None) -> QueueSelector:
    """Return a selector that chooses a queue at random, by `rng` if it is given."""
    generator = rng or random.Random()
    return lambda queues, _: queues[generator.randrange(len(queues))]


def in_machine_rooms(rooms: Iterable[str]) -> QueueSelector:
    """Return a selector that chooses the queues of the given machine rooms in turn.

    The machine room of a broker is the part of its name before `@`, as in `room1@broker-a`; the
    allocation strategy by machine room uses the same rule. If no broker is in one of the rooms, the
    selector raises `UsageError`, since the message must not be sent to another room.
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
    """Chooses the queues of one topic in turn, from the position `start`.

    Each producer has a random start, so that many short-lived producers do not all use queue 0.
    """

    def __init__(self, topic: str, start: int) -> None:
        self._topic = topic
        self._next = start
        # The queues of `_route` are cached, because listing them is slow.
        self._route: TopicRoute | None = None
        self._queues: tuple[MessageQueue, ...] = ()

    def queues(self, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the writable queues, at least one.

        Raises:
            NoRouteError: no queue of the topic is writable.
        """
        if route is not self._route:
            self._route, self._queues = route, tuple(publish_queues(self._topic, route))
        if not self._queues:
            raise NoRouteError(f"topic {self._topic} has no writable queue")
        return self._queues

    def choose_first(
        self, route: TopicRoute, choice: QueueChoice, message: Message
    ) -> MessageQueue:
        """Return the queue for the first try of a message.

        Raises:
            UsageError: a selector returned a queue of another topic. Exceptions of a selector are
                not caught.
            NoRouteError: no queue of the topic is writable.
        """
        if choice is None:
            if route is not self._route or not self._queues:
                return self.choose(route)
            # `choose` is inlined, because nearly all messages take this branch.
            queue = self._queues[self._next % len(self._queues)]
            self._next += 1
            return queue
        if isinstance(choice, MessageQueue):
            return choice
        queue = choice(self.queues(route), message)
        check_queue(self._topic, queue)
        return queue

    def choose(
        self,
        route: TopicRoute,
        avoid: str | None = None,
        preferences: Sequence[Callable[[str], bool]] = (),
    ) -> MessageQueue:
        """Return the next queue whose broker is not `avoid`, or any if there is no other broker.

        Args:
            route: the topic's route.
            avoid: name of the broker where the last try of this message failed.
            preferences: predicates of broker names, the most important first. A queue that
                satisfies none of them is chosen only if there is no other.

        Raises:
            NoRouteError: no queue of the topic is writable.
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
        """Continue from another position, so that producers that failed together separate."""
        self._next = start

    def _take(self) -> MessageQueue:
        queue = self._queues[self._next % len(self._queues)]
        self._next += 1
        return queue


class RoundRobins:
    """The round-robin state of each topic of one producer.

    Args:
        rng: chooses the start of each topic.
        topics_max: maximum number of topics; if a further one is added, all are removed first.
    """

    def __init__(self, rng: random.Random, topics_max: int) -> None:
        self._random = rng
        self._topics_max = topics_max
        self._round_robins: dict[str, RoundRobin] = {}

    def get(self, topic: str) -> RoundRobin:
        """Return the round-robin state of a topic."""
        round_robin = self._round_robins.get(topic)
        if round_robin is None:
            if len(self._round_robins) >= self._topics_max:
                self._round_robins.clear()
            round_robin = self._round_robins[topic] = RoundRobin(
                topic, self._random.getrandbits(16)
            )
        return round_robin


def _is_any(_: str) -> bool:
    return True


def _room(broker_name: str) -> str | None:
    room, at, _ = broker_name.partition("@")
    return room if at else None
