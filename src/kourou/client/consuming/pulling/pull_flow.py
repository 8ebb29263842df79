"""Flow control of a push consumer's pulls: current limits and pauses.

A topic's limit is divided among the topic's queues that this member holds, so it changes whenever
queues are assigned or revoked.

Source: RebalancePushImpl.messageQueueChanged, DefaultMQPushConsumerImpl.pullMessage,
apache/rocketmq 5.5.0. In Java the topic that changed last sets the limits for queues of all topics.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.model.queue import MessageQueue


class PullFlow:
    """The limits of all queues of a consumer.

    Attributes:
        config: the current config; may be replaced at any time.
    """

    def __init__(self, config: PushConsumerConfig) -> None:
        self.config = config
        self._queue_counts: Counter[str] = Counter()  # queues by topic
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._resumed = asyncio.Event()

    @contextmanager
    def sharing(self, queue: MessageQueue) -> Iterator[None]:
        """Count a queue that this member pulls; it shares the limits of its topic."""
        counts, topic = self._queue_counts, queue.topic
        counts[topic] += 1
        try:
            yield
        finally:
            counts[topic] -= 1
            if not counts[topic]:
                del counts[topic]

    def count_limit(self, topic: str) -> int:
        """Return the number of held messages above which a queue of the topic is not pulled."""
        limit = self.config.pull_threshold_topic_count
        if limit is None:
            return self.config.pull_threshold_count
        return topic_share(limit, self._queue_counts[topic])

    def size_limit_bytes(self, topic: str) -> int:
        """Return the number of held bytes above which a queue of the topic is not pulled."""
        limit = self.config.pull_threshold_topic_size_bytes
        if limit is None:
            return self.config.pull_threshold_size_bytes
        return topic_share(limit, self._queue_counts[topic])

    def is_full(self, held: ProcessQueue) -> bool:
        """Return whether a process queue exceeds a limit, so that it is not pulled."""
        topic = held.queue.topic
        return (
            len(held) > self.count_limit(topic)
            or held.size_bytes > self.size_limit_bytes(topic)
            or held.span > self.config.consume_max_span
        )

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pause these queues, held now or later; none means all."""
        self._paused.update(queues)
        self._is_paused |= not queues

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Resume these queues; none means all, individually paused ones too."""
        self._paused.difference_update(queues)
        if not queues:
            self._paused.clear()
            self._is_paused = False
        resumed, self._resumed = self._resumed, asyncio.Event()
        resumed.set()

    def is_paused(self, queue: MessageQueue) -> bool:
        """Return whether the queue is paused."""
        return self._is_paused or queue in self._paused

    async def resumed(self, queue: MessageQueue) -> None:
        """Wait until the queue is not paused."""
        while self.is_paused(queue):
            await self._resumed.wait()


def topic_share(limit: int, share_count: int) -> int:
    """Return a queue's share of a topic's limit; at least 1."""
    return max(1, limit // max(1, share_count))
