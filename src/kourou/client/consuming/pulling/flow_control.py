"""What can be changed of a push consumer while it runs: pauses, limits, threads."""

from __future__ import annotations

import dataclasses
from abc import ABC
from typing import Any, TypedDict, Unpack

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.listener_threads import ListenerThreads
from kourou.client.consuming.pulling.held_queues import HeldQueues
from kourou.client.instance import ClientInstance
from kourou.errors import UsageError
from kourou.model.queue import MessageQueue


class LiveOptions(TypedDict, total=False):
    """What `reconfigure` can change; see `PushConsumerConfig` for each."""

    consume_threads: int
    pull_interval_ms: int
    pull_batch_size: int
    pull_batch_bytes: int
    pull_threshold_count: int
    pull_threshold_size_bytes: int
    pull_threshold_topic_count: int | None
    pull_threshold_topic_size_bytes: int | None
    consume_max_span: int


class FlowControl(ABC):
    """Pausing, resuming and changing a push consumer, before the start or while it runs."""

    _config: PushConsumerConfig
    _instance: ClientInstance
    _held: HeldQueues
    _threads: ListenerThreads | None
    _consumption: Any

    def pause(self, *queues: MessageQueue) -> None:
        """Pull these queues no more; without any, all of this consumer.

        It stays a member with its queues: nobody else consumes them meanwhile. What was pulled
        before, or is on its way, is still consumed.

        Args:
            queues: this member's, or such as it may get later.
        """
        self._held.flow.pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Pull these queues again; without any, all, also those that were paused one by one."""
        self._held.flow.resume(queues)

    def is_paused(self, queue: MessageQueue) -> bool:
        """Return whether the queue is paused, by itself or with all."""
        return self._held.flow.is_paused(queue)

    @property
    def consume_threads(self) -> int:
        """How many messages are given to listeners at a time."""
        return self._config.consume_threads

    @consume_threads.setter
    def consume_threads(self, count: int) -> None:
        self.reconfigure(consume_threads=count)

    def reconfigure(self, **options: Unpack[LiveOptions]) -> None:
        """Change options; they hold from the next pull or call of the listener on.

        With fewer `consume_threads` no call is cut short: there are fewer when some have ended.

        Raises:
            ConfigError: a value is out of its range; nothing is changed.
            UsageError: an option can be set only before the consumer is made, or there is none.
            ClosedError: the consumer is closed.
        """
        if not self._instance.is_new:
            self._instance.check_open()
        for name in options:
            if name not in LiveOptions.__annotations__:
                raise UsageError(
                    f"{name} is nothing that can be changed of a consumer that was made: "
                    f"{', '.join(sorted(LiveOptions.__annotations__))} can"
                )
        config = dataclasses.replace(self._config, **options)
        if config.consume_threads != self._config.consume_threads:
            self._resize(config.consume_threads)
        self._config = self._held.flow.config = config

    def _resize(self, count: int) -> None:
        if self._threads is not None:
            self._threads.resize(count)
        if self._consumption is not None:
            self._consumption.resize(count)
