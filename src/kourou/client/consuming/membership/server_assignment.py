"""Queue assignment by brokers (request 400), for consumers with `client_rebalance=False`.

The broker assigns queues among the members that it knows, by AVG or AVG_BY_CIRCLE. After an error,
or a response without an assignment, the member keeps its queues; an empty list revokes all.

A broker may say that the group pops a topic (`kourou group set-mode`). The assigned queues are then
popped; queue id -1 stands for all queues of a broker.

Source: RebalanceImpl.getRebalanceResultFromBroker, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from kourou.client import calls_consume
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.instance import ClientInstance
from kourou.errors import KourouError
from kourou.model.allocation import strategy_name
from kourou.model.queue import MessageQueue
from kourou.protocol.queue_assignment import MessageRequestMode, QueryAssignment


class Assignment(NamedTuple):
    """The assigned queues of one topic, sorted, and whether they are popped."""

    queues: list[MessageQueue]
    is_popped: bool


class ServerAssignment:
    """Queries brokers for a member's assigned queues.

    Args:
        instance: the client's connections, routes and id.
        group: the consumer group.
        allocation: the strategy, whose name is sent to the broker.
    """

    @classmethod
    def create(
        cls,
        instance: ClientInstance,
        group: str,
        config: PushConsumerConfig,
    ) -> Self | None:
        """Return an instance if `client_rebalance` is False, else None."""
        if config.client_rebalance:
            return None
        return cls(instance, group, config.allocation)

    def __init__(self, instance: ClientInstance, group: str, allocation: object) -> None:
        self._instance = instance
        self._group = group
        self._strategy = allocation if isinstance(allocation, str) else strategy_name(allocation)

    async def assigned_queues(self, topic: str, address: str) -> Assignment | None:
        """Return this member's assigned queues of a topic; None: keep the held queues.

        Raises:
            TransportError, RemoteError: the query failed.
        """
        asked = QueryAssignment(topic, self._group, self._instance.client_id, self._strategy)
        try:
            found = await calls_consume.assigned_queues(
                self._instance.pool, address, asked, timeout_s=self._instance.request_timeout_s
            )
        except KourouError as error:
            self._instance.routes.on_failure(topic, error)
            raise
        if found is None:
            return None
        is_popped = any(one.mode is MessageRequestMode.POP for one in found)
        return Assignment(sorted({one.message_queue for one in found}), is_popped)
