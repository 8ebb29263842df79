"""A member's share as a broker says it (400), for consumers with `client_rebalance=False`.

The broker shares queues out among the members whom it knows, by AVG or AVG_BY_CIRCLE. An error, or
an answer without queues to go by, leaves the member what it has; an empty list takes all away.

A broker may say that a group is to pop a topic. Popping is not built: the topic is then refused,
by name and with what to do, and what the member has of it stays as it is. To pull instead would
hand messages out twice, once to this member and once to those that pop.

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
from kourou.protocol.bodies import MessageRequestMode, QueryAssignment


class ServerAssignment:
    """Asks brokers for a member's share.

    Args:
        instance: the client's connections, routes and id.
        group: the consumer group.
        allocation: the strategy, whose name the broker is told.
        subscriptions: by topic; gets the topics of messages that the group failed to consume while
            it popped, so that these are not left behind.
    """

    @classmethod
    def wanted(
        cls,
        instance: ClientInstance,
        group: str,
        config: PushConsumerConfig,
        subscriptions: MutableMapping[str, SubscriptionData],
    ) -> Self | None:
        """Return one if the config says so, else None."""
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
        self._popped: dict[str, str] = {}  # topic of retries -> topic, of those put in here

    async def share(self, topic: str, address: str) -> list[MessageQueue] | None:
        """Return this member's queues of a topic, sorted; None: those that it has.

        Raises:
            UsageError: the topic is to be popped.
            TransportError, RemoteError: the broker did not tell.
        """
        self._forget_left()
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
                f"the broker at {address} wants group {self._group} to pop topic {topic}, which is "
                f"not built: have it pulled (kourou group set-mode {self._group} {topic} pull), or "
                "share queues out by the members (client_rebalance=True)"
            )
        if not is_retry_topic(topic):
            self._subscribe_popped(topic)
        return sorted({one.message_queue for one in found})

    def _subscribe_popped(self, topic: str) -> None:
        """Consume what is left of the time when the group popped the topic."""
        retries = f"{retry_topic(self._group)}_{topic}"
        if retries not in self._subscriptions:
            now_ms = self._instance.runtime.clock.now_ms()
            self._subscriptions[retries] = parse_tags(retries, SUB_ALL, now_ms)
            self._popped[retries] = topic

    def _forget_left(self) -> None:
        for retries, topic in list(self._popped.items()):
            if topic not in self._subscriptions:
                del self._popped[retries]
                self._subscriptions.pop(retries, None)
