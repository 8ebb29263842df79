"""Common base of the blocking push and pull consumers."""

from __future__ import annotations

from typing import TypeVar

from kourou.blocking.background import Blocking, MessageIterator, loop_method
from kourou.client.consuming.consumer import Consumer as AsyncConsumer
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.queue import MessageQueue

ConsumerT = TypeVar("ConsumerT", PushConsumer, PullConsumer)


class Consumer(Blocking[ConsumerT]):
    """Iteration, hooks, statistics and health of a consumer."""

    @property
    def client_id(self) -> str:
        """The client id by which brokers identify this consumer."""
        return self._client.client_id

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues currently assigned to this consumer, sorted."""
        return self._client.queues

    def __iter__(self) -> MessageIterator:
        """Return an iterator over the messages; it ends when the consumer closes."""
        return MessageIterator(lambda: aiter(self._client))

    on_queues_changed = loop_method(AsyncConsumer.on_queues_changed)
    add_hook = loop_method(AsyncConsumer.add_hook)
    stats = loop_method(AsyncConsumer.stats)
    health = loop_method(AsyncConsumer.health)
