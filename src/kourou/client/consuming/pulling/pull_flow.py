"""What holds back the pulls of a push consumer: its limits and pauses, as they are now.

A topic's limit is shared among the queues that this member has of it, so that it changes whenever
queues come and go.

Source: RebalancePushImpl.messageQueueChanged, DefaultMQPushConsumerImpl.pullMessage,
apache/rocketmq 5.5.0. There the last topic to change sets the limits of the queues of all topics.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.model.queue import MessageQueue


class PullFlow:
    """The limits of all queues of a consumer.

    Attributes:
        config: as it is now; may be replaced at any time.
    """

    def __init__(self, config: PushConsumerConfig) -> None:
        self.config = config
        self._held: Counter[str] = Counter()  # queues by topic
        self._paused: set[MessageQueue] = set()
        self._is_paused = False
        self._resumed = asyncio.Event()

    def enter(self, queue: MessageQueue) -> None:
        """Note that this member has one more queue."""
        self._held[queue.topic] += 1

    def leave(self, queue: MessageQueue) -> None:
        """Note that this member has it no more."""
        self._held[queue.topic] -= 1
        if not self._held[queue.topic]:
            del self._held[queue.topic]

    def count_limit(self, topic: str) -> int:
        """Return above how many messages held a queue of the topic is not pulled."""
        limit = self.config.pull_threshold_topic_count
        if limit is None:
            return self.config.pull_threshold_count
        return topic_share(limit, self._held[topic])

    def size_limit_bytes(self, topic: str) -> int:
        """Return above how many bytes held a queue of the topic is not pulled."""
        limit = self.config.pull_threshold_topic_size_bytes
        if limit is None:
            return self.config.pull_threshold_size_bytes
        return topic_share(limit, self._held[topic])

    def is_full(self, held: ProcessQueue) -> bool:
        """Return whether a queue holds too much to be pulled."""
        topic = held.queue.topic
        return (
            len(held) > self.count_limit(topic)
            or held.size_bytes > self.size_limit_bytes(topic)
            or held.span > self.config.consume_max_span
        )

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pull these queues no more, whether this member has them now or later; none means all."""
        self._paused.update(queues)
        self._is_paused |= not queues

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Pull these queues again; none means all, those too that were paused by themselves."""
        self._paused.difference_update(queues)
        if not queues:
            self._paused.clear()
            self._is_paused = False
        resumed, self._resumed = self._resumed, asyncio.Event()
        resumed.set()

    def is_paused(self, queue: MessageQueue) -> bool:
        """Return whether the queue is not to be pulled."""
        return self._is_paused or queue in self._paused

    async def resumed(self, queue: MessageQueue) -> None:
        """Wait for as long as the queue is paused."""
        while self.is_paused(queue):
            await self._resumed.wait()


def topic_share(limit: int, share_count: int) -> int:
    """Return a queue's part of a limit that holds for all queues of a topic; at least 1."""
    return max(1, limit // max(1, share_count))
