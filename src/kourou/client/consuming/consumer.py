"""Consumer: what push and pull consumers offer alike to those who watch them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from kourou.client.consuming.membership.rebalance_loop import QueuesChanged, RebalanceLoop
from kourou.client.consuming.watching.consume_hooks import ConsumeHook, ConsumeHooks
from kourou.client.consuming.watching.consume_stats import (
    SAMPLE_INTERVAL_MS,
    ConsumerStats,
    TopicStats,
)
from kourou.client.consuming.watching.consume_traces import consume_traces
from kourou.client.consuming.watching.queue_state import QueueState
from kourou.client.health import ConsumerHealth
from kourou.client.instance import ClientInstance
from kourou.model.queue import MessageQueue


class Consumer(ABC):
    """Hooks, statistics and health of a consumer.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
    """

    _rebalance: RebalanceLoop

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self.group = group
        self._instance = instance
        self._hooks = ConsumeHooks()
        for hook in consume_traces(instance, group):
            self._hooks.add(hook)
        self._stats = ConsumerStats(instance.runtime.clock.now_ms())
        self._queues_changed: list[QueuesChanged] = []

    @property
    def client_id(self) -> str:
        """What brokers call this consumer."""
        return self._instance.client_id

    def add_hook(self, hook: ConsumeHook) -> None:
        """Have `hook` called around each consumption, after those that were added before."""
        self._hooks.add(hook)

    def on_queues_changed(self, listener: QueuesChanged) -> QueuesChanged:
        """Have `listener` called when this member's queues of a subscribed topic have changed.

        It is called on the event loop with the topic, all its queues and those that this member has
        now, both sorted; what it raises is logged.

        Returns:
            `listener`, so that this also is a decorator.
        """
        self._queues_changed.append(listener)
        return listener

    def stats(self) -> dict[str, TopicStats]:
        """Return how each topic was consumed in the last minute, by topic."""
        return self._stats.all_topics()

    def health(self) -> ConsumerHealth:
        """Return how the consumer is, at this moment. Asks nobody; may be called at any time.

        Raises:
            ForkedError: it belongs to the process from which this one was forked.
        """
        states = dict(sorted(self._queue_states().items()))
        problems = self._instance.problems()
        problems += [f"no broker answers pulls of {q}" for q, s in states.items() if s.is_failing]
        problems += self._own_problems()
        problems += self._rebalance.problems()
        problems += self._listener_problems()
        problems += [f"{queue}: {one.problem}" for queue, one in states.items() if one.problem]
        return ConsumerHealth(
            is_open=self._instance.is_open,
            problems=tuple(problems),
            queues=tuple(states),
            lag={
                queue: max(0, one.max_offset - (one.done_offset or 0))
                for queue, one in states.items()
                if one.max_offset is not None
            },
            held_messages=sum(one.held_messages for one in states.values()),
            held_bytes=sum(one.held_bytes for one in states.values()),
        )

    def _listener_problems(self) -> list[str]:
        """Return what keeps messages from being given to listeners; none without listeners."""
        return []

    def _own_problems(self) -> list[str]:
        """Return what is wrong with the way in which the program uses the consumer."""
        return []

    @abstractmethod
    def _queue_states(self) -> Mapping[MessageQueue, QueueState]:
        """Return how each queue is."""

    def _tell_queues_changed(
        self, topic: str, queues: list[MessageQueue], own: list[MessageQueue]
    ) -> None:
        for listener in self._queues_changed:
            listener(topic, queues, own)

    def _start_sampling(self) -> None:
        async def sample() -> None:
            self._stats.sample(self._instance.runtime.clock.now_ms())

        self._instance.tasks.start_periodic(sample, SAMPLE_INTERVAL_MS, "statistics")
