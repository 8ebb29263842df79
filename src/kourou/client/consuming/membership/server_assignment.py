"""Queue assignment by brokers (request 400), for consumers with `client_rebalance=False`.

The broker assigns queues among the members that it knows, by AVG or AVG_BY_CIRCLE. After an error,
or a response without an assignment, the member keeps its queues; an empty list revokes all.

A broker may require that a group pops a topic. Pop is not implemented: the assignment then fails
with an error that names the topic and the remedy, and the member keeps its queues of the topic.
Pulling instead would deliver messages twice, to this member and to the members that pop.

Source: RebalanceImpl.getRebalanceResultFromBroker, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Self

from kourou.client import calls_consume
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.instance import ClientInstance
from kourou.errors import KourouError, UsageError
from kourou.filter.tags import parse_tags
from kourou.model.allocation import strategy_name
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.model.topic import is_retry_topic, retry_topic
from kourou.protocol.queue_assignment import MessageRequestMode, QueryAssignment


class ServerAssignment:
    """Queries brokers for a member's assigned queues.

    Args:
        instance: the client's connections, routes and id.
        group: the consumer group.
        allocation: the strategy, whose name is sent to the broker.
        subscriptions: by topic; the retry topics of pop are added, so that messages which the group
            failed to consume while it popped are not lost.
    """

    @classmethod
    def create(
        cls,
        instance: ClientInstance,
        group: str,
        config: PushConsumerConfig,
        subscriptions: MutableMapping[str, SubscriptionData],
    ) -> Self | None:
        """Return an instance if `client_rebalance` is False, else None."""
        if config.client_rebalance:
            return None
        return cls(instance, group, config.allocation, subscriptions)

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        allocation: object,
        subscriptions: MutableMapping[str, SubscriptionData],
    ) -> None:
        self._instance = instance
        self._group = group
        self._strategy = allocation if isinstance(allocation, str) else strategy_name(allocation)
        self._subscriptions = subscriptions
        self._popped: dict[str, str] = {}  # added retry topic -> its topic

    async def assigned_queues(self, topic: str, address: str) -> list[MessageQueue] | None:
        """Return this member's assigned queues of a topic, sorted; None: keep the held queues.

        Raises:
            UsageError: the broker requires that the topic is popped.
            TransportError, RemoteError: the query failed.
        """
        self._remove_unsubscribed()
        asked = QueryAssignment(topic, self._group, self._instance.client_id, self._strategy)
        try:
            found = await calls_consume.assigned_queues(
                self._instance.pool, address, asked, timeout_s=self._instance.request_timeout_s
            )
        except KourouError as error:
            if error.refresh_route:
                self._instance.routes.refresh_soon(topic)
            raise
        if found is None:
            return None
        if any(one.mode is MessageRequestMode.POP for one in found):
            raise UsageError(
                f"the broker at {address} requires group {self._group} to pop topic {topic}, which "
                f"is not implemented: switch to pull (kourou group set-mode {self._group} {topic} "
                "pull), or let the members assign queues (client_rebalance=True)"
            )
        if not is_retry_topic(topic):
            self._subscribe_popped(topic)
        return sorted({one.message_queue for one in found})

    def _subscribe_popped(self, topic: str) -> None:
        """Subscribe the topic's retry topic of pop, for messages left from earlier pops."""
        retries = f"{retry_topic(self._group)}_{topic}"
        if retries not in self._subscriptions:
            now_ms = self._instance.runtime.clock.now_ms()
            self._subscriptions[retries] = parse_tags(retries, SUB_ALL, now_ms)
            self._popped[retries] = topic

    def _remove_unsubscribed(self) -> None:
        for retries, topic in list(self._popped.items()):
            if topic not in self._subscriptions:
                del self._popped[retries]
                self._subscriptions.pop(retries, None)
