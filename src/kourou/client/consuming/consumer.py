"""Bases of consumers (hooks, statistics, health), and the groups in use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final
from weakref import WeakValueDictionary

from kourou.client.consuming.membership.rebalance_loop import QueuesChanged, RebalanceLoop
from kourou.client.consuming.watching.consume_hooks import (
    ConsumeContext,
    ConsumeHook,
    ConsumeHooks,
    ConsumeOutcome,
)
from kourou.client.consuming.watching.consume_stats import (
    SAMPLE_INTERVAL_MS,
    ConsumerStats,
    TopicStats,
)
from kourou.client.consuming.watching.consume_traces import consume_traces
from kourou.client.health import ConsumerHealth, QueueState
from kourou.client.instance import ClientInstance
from kourou.errors import InvalidGroupError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue

_topic: Final = attrgetter("topic")


class ObservedConsumer:
    """Hooks and statistics of a consumer.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self.group = group
        self._instance = instance
        self._hooks = ConsumeHooks()
        for hook in consume_traces(instance, group):
            self._hooks.add(hook)
        self._stats = ConsumerStats(instance.runtime.clock.now_ms())

    @property
    def client_id(self) -> str:
        """The client id of this consumer at brokers."""
        return self._instance.client_id

    def add_hook(self, hook: ConsumeHook) -> None:
        """Call `hook` around each consumption, after the hooks added before."""
        self._hooks.add(hook)

    def stats(self) -> dict[str, TopicStats]:
        """Return the consumption statistics of the last minute, by topic."""
        return self._stats.all_topics()

    def _report(self, messages: Sequence[MessageExt]) -> None:
        """Count returned messages, and call the hooks once for each topic."""
        topics = set(map(_topic, messages))
        by_topic: dict[str, Sequence[MessageExt]] = dict.fromkeys(topics, messages)
        if len(topics) > 1:  # else all are of one, as nearly always
            by_topic = {
                topic: [one for one in messages if one.topic == topic]
                for topic in dict.fromkeys(map(_topic, messages))
            }
        for topic, some in by_topic.items():
            if self._hooks.added:
                context = ConsumeContext(self.group, list(some))
                self._hooks.before(context)
                context.outcome = ConsumeOutcome.SUCCESS
                self._hooks.after(context)
            self._stats.count_consumed(topic, len(some), 0.0, is_ok=True)

    def _start_sampling(self) -> None:
        async def sample() -> None:
            self._stats.sample(self._instance.runtime.clock.now_ms())

        self._instance.tasks.start_periodic(sample, SAMPLE_INTERVAL_MS, "statistics")


class Consumer(ObservedConsumer, ABC):
    """A consumer of queues: their changes and health."""

    _rebalance: RebalanceLoop

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__(instance, group)
        self._queues_changed: list[QueuesChanged] = []

    def on_queues_changed(self, listener: QueuesChanged) -> QueuesChanged:
        """Call `listener` when this member's queues of a subscribed topic have changed.

        It is called on the event loop with the topic, all its queues and the queues that this
        member holds, both sorted. Exceptions that it raises are logged.

        Returns:
            `listener`, so that this can be used as a decorator.
        """
        self._queues_changed.append(listener)
        return listener

    def health(self) -> ConsumerHealth:
        """Return the consumer's current health. Sends no request; may be called at any time.

        Raises:
            ForkedError: the consumer belongs to the process from which this one was forked.
        """
        states = dict(sorted(self._queue_states().items()))
        problems = self._instance.problems()
        problems += [f"no broker answers pulls of {q}" for q, s in states.items() if s.is_failing]
        problems += self._usage_problems()
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
            lost_acks=self._lost_acks(),
        )

    def _listener_problems(self) -> list[str]:
        """Return texts of problems with calling listeners."""
        return []

    def _usage_problems(self) -> list[str]:
        """Return texts of problems with the program's use of the consumer."""
        return []

    def _lost_acks(self) -> int:
        """Return the number of consumed messages that could not be acknowledged."""
        return 0

    @abstractmethod
    def _queue_states(self) -> Mapping[MessageQueue, QueueState]:
        """Return the state of each queue held."""

    def _on_queues_changed(
        self, topic: str, queues: list[MessageQueue], own: list[MessageQueue]
    ) -> None:
        for listener in self._queues_changed:
            listener(topic, queues, own)

    def _acquire_group(self, instance_name: str | None) -> None:
        """Register this consumer as the process's member of its group.

        Raises:
            InvalidGroupError: as `ConsumerGroups.acquire`.
        """
        namesrv = self._instance.namesrv_addresses
        consumer_groups.acquire(self, self.group, namesrv, instance_name)

    def _release_group(self, instance_name: str | None) -> None:
        namesrv = self._instance.namesrv_addresses
        consumer_groups.release(self, self.group, namesrv, instance_name)


class ConsumerGroups:
    """The groups of this process's push consumers.

    A broker distinguishes the members of a group by client id. Two members with one id would be
    assigned the same queues, so RocketMQ refuses the second, and so does this registry. The
    instance name is part of the key: several members of one group may run in a process if each has
    its own.
    """

    def __init__(self) -> None:
        # Weak: a consumer that is garbage collected without being closed frees its group.
        self._owners: WeakValueDictionary[tuple[object, ...], object] = WeakValueDictionary()

    def acquire(
        self, owner: object, group: str, namesrv: tuple[str, ...], instance_name: str | None
    ) -> None:
        """Register `owner` as the consumer of `group`.

        Raises:
            InvalidGroupError: another consumer is registered with the same group, name servers and
                instance name.
        """
        if self._owners.setdefault((group, namesrv, instance_name), owner) is not owner:
            raise InvalidGroupError(
                f"The consumer group[{group}] has been created before, specify another name "
                "please: close the other consumer of this process, or set another "
                "instance_name"
            )

    def release(
        self, owner: object, group: str, namesrv: tuple[str, ...], instance_name: str | None
    ) -> None:
        """Remove the registration if it belongs to `owner`."""
        key = (group, namesrv, instance_name)
        if self._owners.get(key) is owner:
            del self._owners[key]


consumer_groups: Final = ConsumerGroups()
"""The registry of this process."""
