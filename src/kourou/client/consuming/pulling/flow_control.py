"""Changes of a running push consumer: pauses, limits, threads."""

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
    """The options that `reconfigure` can change; see `PushConsumerConfig` for each."""

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
    """Pauses, resumes and reconfigures a push consumer, before the start or while it runs."""

    _config: PushConsumerConfig
    _instance: ClientInstance
    _held: HeldQueues
    _threads: ListenerThreads | None
    _consumption: Any

    def pause(self, *queues: MessageQueue) -> None:
        """Stop pulling these queues; without arguments, all queues.

        The consumer stays a member and keeps its queues: no other member consumes them meanwhile.
        Messages already pulled, or being pulled, are still consumed.

        Args:
            queues: queues held now, or that may be assigned later.
        """
        self._held.flow.pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Resume pulling these queues; without arguments, all, individually paused ones too."""
        self._held.flow.resume(queues)

    def is_paused(self, queue: MessageQueue) -> bool:
        """Return whether the queue is paused, individually or with all queues."""
        return self._held.flow.is_paused(queue)

    @property
    def consume_threads(self) -> int:
        """Number of listener calls that may run at a time."""
        return self._config.consume_threads

    @consume_threads.setter
    def consume_threads(self, count: int) -> None:
        self.reconfigure(consume_threads=count)

    def reconfigure(self, **options: Unpack[LiveOptions]) -> None:
        """Change options, with effect from the next pull or listener call on.

        Lowering `consume_threads` cuts no call short: the number falls as running calls end.

        Raises:
            ConfigError: a value is out of its range; nothing is changed.
            UsageError: an option does not exist or cannot be changed after construction.
            ClosedError: the consumer is closed.
        """
        if not self._instance.is_new:
            self._instance.check_open()
        for name in options:
            if name not in LiveOptions.__annotations__:
                raise UsageError(
                    f"{name} cannot be changed after the consumer is constructed: allowed are "
                    f"{', '.join(sorted(LiveOptions.__annotations__))}"
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
