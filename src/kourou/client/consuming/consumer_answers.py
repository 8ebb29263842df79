"""Executes the requests of brokers to a consumer, after `client_requests` has decoded them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from kourou.client.background import BackgroundTasks
from kourou.client.config import ClientConfig
from kourou.client.consuming.acknowledging.redelivery import is_instruction, redelivery_of
from kourou.client.consuming.consumer_config import (
    ConsumerConfig,
    PushConsumerConfig,
    SimpleConsumerConfig,
)
from kourou.client.consuming.listening.listener_calls import ListenerCall
from kourou.client.consuming.listening.ordered_calls import OrderedCall
from kourou.client.consuming.membership.rebalance_loop import RebalanceLoop
from kourou.client.consuming.popping.popped_queues import PoppedQueues
from kourou.client.consuming.popping.unsettled import UnsettledMessages
from kourou.client.consuming.pulling.queue_fetcher import restore_topic
from kourou.client.consuming.watching.consume_stats import ConsumerStats, TopicStats
from kourou.client.instance import ClientInstance
from kourou.model.group import ConsumeType
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
)

_VERSION_NAME: Final = "V5_5_0"
"""Java's name of version 513, which our requests carry."""


class TargetQueues(Protocol):
    """The consumer's queues, as far as requests need them."""

    def infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Return the state of each queue in the form reported to administrators."""

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the done offset of each of the topic's queues; may be ahead of the committed."""

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the held ones of these queues at other offsets, lower or higher."""


class ConsumerAnswers:
    """Implements `client_requests.RequestTarget` for push and pull consumers.

    Args:
        instance: the client.
        group: the consumer group.
        config: its settings.
        subscriptions: by topic.
        held: its queues.
        rebalance: its rebalance loop.
        stats: its counters.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ConsumerConfig,
        *,
        subscriptions: Mapping[str, SubscriptionData],
        held: TargetQueues,
        rebalance: RebalanceLoop,
        stats: ConsumerStats,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._subscriptions = subscriptions
        self._held = held
        self._rebalance = rebalance
        self._stats = stats
        self._call: ListenerCall | None = None
        self._popped: PoppedQueues | None = None
        self._began_at_ms = 0

    def begin(self, call: ListenerCall | None, popped: PoppedQueues | None = None) -> None:
        """Record the start of the consumer, its listener and its popped queues, if it has any."""
        self._call = call
        self._popped = popped
        self._began_at_ms = self._instance.runtime.clock.now_ms()

    @property
    def tasks(self) -> BackgroundTasks:
        """Background tasks, which end with the consumer."""
        return self._instance.tasks

    def rebalance_soon(self) -> None:
        """Request a rebalance pass."""
        self._rebalance.wake()

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue the held ones of these queues at other offsets."""
        await self._held.reset(offsets)

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the done offset of each of the topic's queues."""
        return self._held.offsets_of(topic)

    def running_info(self, stacks: str | None) -> ConsumerRunningInfo:
        """Return the consumer's settings, queues, statistics and, if given, stacks."""
        topics = sorted(self._subscriptions)
        return ConsumerRunningInfo(
            properties=_running_properties(
                self._config,
                self._instance.namesrv_addresses,
                self._began_at_ms,
                consume_type=(
                    ConsumeType.PASSIVELY
                    if isinstance(self._config, PushConsumerConfig)
                    else ConsumeType.ACTIVELY
                ),
                is_ordered=isinstance(self._call, OrderedCall),
            ),
            subscriptions=[self._subscriptions[topic] for topic in topics],
            queues=self._held.infos(),
            pop_queues={} if self._popped is None else self._popped.infos(),
            statuses={topic: _status_of(self._stats.topic(topic)) for topic in topics},
            jstack=stacks,
        )

    async def consume(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Deliver one message to the listener; it is neither acknowledged nor sent back."""
        if self._call is None:
            remark = "the consumer has no listener: the program iterates over its messages"
            return ConsumeMessageDirectlyResult(ConsumeResult.LATER, remark=remark)
        restore_topic(message, self._group, self._config.namespace)
        if isinstance(self._call, OrderedCall):
            return await _consume_in_order(self._call, message)
        outcome = await self._call([message])
        return ConsumeMessageDirectlyResult(
            _result_of(outcome.error, message),
            remark=None if outcome.error is None else repr(outcome.error),
            spent_time_ms=int(outcome.elapsed_ms),
        )


class SimpleAnswers:
    """Implements `client_requests.RequestTarget` for a simple consumer.

    It has no queues and no listener.

    Args:
        instance: the client.
        config: its settings.
        subscriptions: by topic; a live view.
        unsettled: the messages that the program holds.
        stats: its counters.
    """

    def __init__(
        self,
        instance: ClientInstance,
        config: SimpleConsumerConfig,
        subscriptions: Mapping[str, SubscriptionData],
        unsettled: UnsettledMessages,
        stats: ConsumerStats,
    ) -> None:
        self._instance = instance
        self._config = config
        self._subscriptions = subscriptions
        self._unsettled = unsettled
        self._stats = stats
        self._began_at_ms = 0

    def begin(self) -> None:
        """Record the start of the consumer."""
        self._began_at_ms = self._instance.runtime.clock.now_ms()

    @property
    def tasks(self) -> BackgroundTasks:
        """Background tasks, which end with the consumer."""
        return self._instance.tasks

    def rebalance_soon(self) -> None:
        """Do nothing: a simple consumer has no queues to assign."""

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do nothing: the broker holds the offsets of pops, and has reset them."""

    def offsets_of(self, _topic: str) -> dict[MessageQueue, int]:
        """Return none: the broker holds the offsets of pops."""
        return {}

    def running_info(self, stacks: str | None) -> ConsumerRunningInfo:
        """Return the consumer's settings, messages, rates and, if given, stacks."""
        topics = sorted(self._subscriptions)
        now_s = asyncio.get_running_loop().time()
        return ConsumerRunningInfo(
            properties=_running_properties(
                self._config,
                self._instance.namesrv_addresses,
                self._began_at_ms,
                consume_type=ConsumeType.POP,
                is_ordered=self._config.ordered,
            ),
            subscriptions=[self._subscriptions[topic] for topic in topics],
            pop_queues=self._unsettled.infos(topics, now_s),
            statuses={topic: _status_of(self._stats.topic(topic)) for topic in topics},
            jstack=stacks,
        )

    async def consume(self, _message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Return that the message was not consumed."""
        remark = "the consumer has no listener: the program receives messages itself"
        return ConsumeMessageDirectlyResult(ConsumeResult.LATER, remark=remark)


async def _consume_in_order(call: OrderedCall, message: MessageExt) -> ConsumeMessageDirectlyResult:
    """Deliver one message to an ordered listener, independently of its queue's other messages."""
    time_s = asyncio.get_running_loop().time
    began_s = time_s()
    queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
    outcome = await call.for_queue(queue).deliver([message])
    result = _result_of(outcome.error, message)
    if call.is_committing and outcome.is_committed:
        result = ConsumeResult.COMMIT
    elif outcome.is_rolled_back:
        result = ConsumeResult.ROLLBACK
    return ConsumeMessageDirectlyResult(
        result,
        order=True,
        auto_commit=not call.is_committing,
        remark=None if outcome.error is None else repr(outcome.error),
        spent_time_ms=int((time_s() - began_s) * 1000),
    )


def _result_of(error: BaseException | None, message: MessageExt) -> ConsumeResult:
    """Return the listener's result; a dead letter is LATER, too, because it was not consumed."""
    if error is None or redelivery_of(error, message) is None:
        return ConsumeResult.SUCCESS
    return ConsumeResult.LATER if is_instruction(error) else ConsumeResult.THROW_EXCEPTION


def _running_properties(
    config: ClientConfig,
    namesrv_addresses: Sequence[str],
    began_at_ms: int,
    *,
    consume_type: ConsumeType,
    is_ordered: bool,
) -> dict[str, str]:
    """Return the properties that Java's tools print, and the settings under RocketMQ's names.

    Options that are None are omitted. Times are in ms, as in our config.

    Source: consumerRunningInfo of DefaultMQPushConsumerImpl and DefaultLitePullConsumerImpl,
    ConsumerRunningInfo.java.
    """
    properties = {
        "PROP_NAMESERVER_ADDR": "".join(f"{address};" for address in namesrv_addresses),
        "PROP_CONSUMEORDERLY": str(is_ordered).lower(),
        "PROP_CONSUME_TYPE": consume_type.value,
        "PROP_CLIENT_VERSION": _VERSION_NAME,
        "PROP_CONSUMER_START_TIMESTAMP": str(began_at_ms),
    }
    if isinstance(config, PushConsumerConfig):
        properties["PROP_THREADPOOL_CORE_SIZE"] = str(config.consume_threads)
    for one in dataclasses.fields(config):
        key = one.metadata.get("key")
        value = getattr(config, one.name)
        if key is not None and value is not None:
            text = _text(value)
            if text is not None:
                properties[key] = text
    return properties


def _status_of(stats: TopicStats) -> ConsumeStatus:
    """Convert the statistics of a topic to their wire form."""
    return ConsumeStatus(
        pull_rt=stats.pull_rt_ms,
        pull_tps=stats.pull_tps,
        consume_rt=stats.consume_rt_ms,
        consume_ok_tps=stats.consume_ok_tps,
        consume_failed_tps=stats.consume_failed_tps,
        consume_failed_msgs=stats.consume_failed_messages,
    )


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    return str(value) if isinstance(value, int | float | str | Path) else None
