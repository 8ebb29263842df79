"""Choice of the queue for a send, and of the broker for a receive; cache of the queues of routes.

Messages of one group go to the same queue as with RocketMQ's proxy, so that their order survives a
change from one to the other.

Source: SendMessageActivity.java, ReceiveMessageActivity.java, MessageQueueSelector.java,
apache/rocketmq 5.5.0; the consistent hash of Guava (Hashing.consistentHash), which follows
"A Fast, Minimal Memory, Consistent Hash Algorithm" by Lamping and Veach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute
from kourou.protocol.hashing import java_string_hash
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code
from kourou.proxy.status import proxy_refusal

_MULTIPLIER: Final = 2_862_933_555_777_941_757
_MASK: Final = (1 << 64) - 1
_HALF: Final = 1 << 31

ListQueues = Callable[[str, TopicRoute], Sequence[MessageQueue]]


class QueueCache:
    """Queues of topics, listed once for each route object.

    Args:
        list_queues: lists the queues of a topic and its route.
        topics_max: number of topics; the oldest is evicted first.
    """

    def __init__(self, list_queues: ListQueues, topics_max: int) -> None:
        self._list_queues = list_queues
        self._topics_max = topics_max
        self._by_topic: dict[str, tuple[TopicRoute, Sequence[MessageQueue]]] = {}

    def __len__(self) -> int:
        """Return the number of cached topics."""
        return len(self._by_topic)

    def queues(self, topic: str, route: TopicRoute) -> Sequence[MessageQueue]:
        """Return the queues of a route, which is the same object while it has not changed."""
        cached = self._by_topic.get(topic)
        if cached is not None and cached[0] is route:
            return cached[1]
        queues = self._list_queues(topic, route)
        self._by_topic[topic] = route, queues
        while len(self._by_topic) > self._topics_max:
            del self._by_topic[next(iter(self._by_topic))]
        return queues


class Turns:
    """Numbers that grow with each send of a proxy.

    Attributes:
        following: the next one.
    """

    def __init__(self, first: int) -> None:
        self.following = first

    def take(self) -> int:
        """Return the next one."""
        self.following += 1
        return self.following - 1


def ordering_key(messages: Sequence[v2.Message]) -> str:
    """Return the text whose messages must share a queue; empty if any queue will do."""
    if len(messages) != 1:
        return ""
    system = messages[0].system_properties
    return system.message_group or system.lite_topic


def sending_queue(queues: Sequence[MessageQueue], key: str, turn: int) -> MessageQueue:
    """Return the queue for a send.

    Args:
        queues: writable queues, sorted by broker name and queue id.
        key: from `ordering_key`.
        turn: a number that grows with each send without a key.

    Raises:
        CallRefusedError: FORBIDDEN; there is no queue.
    """
    if not queues:
        raise proxy_refusal(Code.FORBIDDEN, "no writable queue")
    if not key:
        return queues[turn % len(queues)]
    return queues[consistent_hash(java_string_hash(key), len(queues))]


def receiving_broker(queues: Sequence[MessageQueue], broker_name: str, turn: int) -> str:
    """Return the name of the broker from which a receive pops.

    Args:
        queues: readable queues.
        broker_name: the broker of the request; another one serves if it is empty or unknown.
        turn: a number that grows with each receive.

    Raises:
        CallRefusedError: FORBIDDEN; there is no queue.
    """
    brokers = sorted({queue.broker_name for queue in queues})
    if not brokers:
        raise proxy_refusal(Code.FORBIDDEN, "no readable queue")
    return broker_name if broker_name in brokers else brokers[turn % len(brokers)]


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of a signed number, from 0 to `buckets` - 1.

    If buckets are added, only the values that move to them change their bucket.
    """
    state = value & _MASK
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _MASK
        draw = (state >> 33) + 1
        if draw == _HALF:  # a negative number in Java's int
            return candidate
        following = int((candidate + 1) / (draw / _HALF))
        if following >= buckets:
            return candidate
        candidate = following
