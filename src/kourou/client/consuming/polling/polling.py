"""Polling: returns messages of a pull consumer's queues, and moves its position in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from enum import Enum, auto

from kourou.client.consuming.acknowledging.acknowledgements import store_dead_letter
from kourou.client.consuming.consumer import Consumer
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.listener_threads import ListenerThreads
from kourou.client.consuming.offsets.offset_store import RemoteOffsets, commit_each
from kourou.client.consuming.polling.polled_queue import PolledQueue
from kourou.client.consuming.polling.polled_queues import PolledQueues, poll_terms
from kourou.client.consuming.polling.queue_access import MESSAGES_MAX, QueueAccess
from kourou.client.consuming.polling.queue_turns import QueueCallback, QueueTurns
from kourou.client.consuming.pulling.queue_fetcher import FetchContext
from kourou.client.consuming.watching.consume_hooks import ConsumeContext, ConsumeOutcome
from kourou.client.health import QueueState
from kourou.client.instance import ClientInstance
from kourou.errors import ClosedError, UsageError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.record.decode import UndecodableMessage


class Mode(Enum):
    """The way in which a consumer's queues are chosen."""

    NONE = auto()
    ASSIGNED = auto()
    SUBSCRIBED = auto()


class Polling(QueueAccess, Consumer):
    """The methods of a pull consumer for the queues that it polls.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: limits and timeouts.
    """

    def __init__(self, instance: ClientInstance, group: str, config: PullConsumerConfig) -> None:
        QueueAccess.__init__(self, instance, group, config)
        Consumer.__init__(self, instance, group)
        self._mode = Mode.NONE
        self._is_polling = False
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._queue_callbacks: dict[str, QueueCallback] = {}  # by topic
        self._threads: ListenerThreads | None = None
        context = FetchContext(
            instance=instance,
            group=group,
            config=config,
            terms=poll_terms(config),
            offsets=RemoteOffsets(instance, group, config.request_timeout_ms),
            on_pulled=self._stats.count_pulled,
            store_dead_letter=self._store_dead_letter,
        )
        self._polled = PolledQueues(context, config, self._subscriptions, self._turns_of)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are currently polled, sorted.

        Raises:
            ClosedError: the consumer is closed, or was never started.
        """
        self._instance.check_open()
        return self._polled.queues

    async def poll(
        self, timeout_ms: int | None = None, max_messages: int | None = None
    ) -> list[MessageExt]:
        """Return the next messages; acknowledge those of the previous poll.

        Cancelling removes no messages, but the previous poll's stay acknowledged.

        Args:
            timeout_ms: time to wait for the first message; None: `poll_timeout_ms`.
            max_messages: None: `poll_batch_size`.

        Returns:
            Messages of each queue in offset order; none if none arrived within the timeout.

        Raises:
            UsageError: no queue is assigned and no topic subscribed; another task polls; or an
                argument is out of its range.
            ClosedError: the consumer is not open.
            RemoteError: a broker cannot filter by a subscription made since the last poll.
        """
        self._instance.check_open()
        limit = self._config.poll_batch_size if max_messages is None else max_messages
        timeout_ms = self._config.poll_timeout_ms if timeout_ms is None else timeout_ms
        if self._mode is Mode.NONE:
            raise UsageError("nothing to poll: assign queues, or subscribe topics")
        if self._is_polling:
            raise UsageError("another task polls this consumer: only one task may poll at a time")
        if not 1 <= limit <= MESSAGES_MAX:
            raise UsageError(f"max_messages is {limit}: allowed are 1 to {MESSAGES_MAX}")
        if timeout_ms < 0:
            raise UsageError(f"timeout_ms is {timeout_ms}: must not be negative")
        self._polled.acknowledge()
        self._is_polling = True
        try:
            messages = await self._polled.take(limit, timeout_ms / 1000)
        finally:
            self._is_polling = False
        if messages:
            self._report(messages)
        return messages

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Iterate over the messages; requesting the next one acknowledges the one before.

        Ends when the consumer closes.

        Raises:
            UsageError, ClosedError: as `poll`.
        """
        self._instance.check_open()
        while True:
            try:
                messages = await self.poll(max_messages=1)
            except ClosedError:
                return
            for message in messages:
                yield message

    async def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Acknowledge and commit all returned messages, or commit an offset of one queue.

        Returns when the broker has the offset in memory. It writes offsets to disk every 5 seconds,
        so a crash of the broker may lose the last ones. An offset may also be lower than before.

        Args:
            queue: None: all queues that are polled.
            offset: the group has consumed all messages below it; requires a queue. None: the offset
                behind the returned messages of the queue.

        Raises:
            UsageError: the offset is negative or without a queue, or the queue is not polled.
            GroupNotFoundError: the broker does not know the group, and does not create it.
            TopicNotFoundError: a topic was deleted, or deleted and created again: the messages
                belonged to the old topic. The next poll continues in the new one.
            TransportError, RemoteError: as `pull`. Some of several queues may be committed.
        """
        self._instance.check_open()
        if offset is not None:
            if queue is None:
                raise UsageError(f"commit offset {offset} without a queue: pass the queue")
            await self.commit_offset(queue, offset)
            return
        polled = self._polled.polled_queues if queue is None else [self._polled.get(queue)]
        for one in polled:
            one.acknowledge()
        offsets = {one.queue: one.committable for one in polled}

        async def commit(queue: MessageQueue) -> None:
            offset = offsets[queue]
            if offset is not None:
                await self._commit_offset(queue, offset, self._polled.topic_begin(queue))

        await commit_each([queue for queue, at in offsets.items() if at is not None], commit)

    def commit_soon(self) -> None:
        """Acknowledge and commit all returned messages without waiting for the brokers.

        A failure is logged; the next commit includes the offsets. Does once what `auto_commit` does
        periodically.

        Raises:
            ClosedError: the consumer is not open.
        """
        self._instance.check_open()
        self._polled.acknowledge()
        self._instance.tasks.start(self._polled.persist, "commit soon")

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another queue offset: the next poll returns messages from there on.

        Messages of the queue from the last poll no longer affect the committed offset: the new
        offset is committed next.

        Raises:
            UsageError: the queue is not polled by this consumer, or the offset is outside its
                bounds.
            TransportError, RemoteError: as `pull`; the position is unchanged.
        """
        self._polled.get(queue)
        low, high = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        if not low <= offset <= high:
            raise UsageError(f"cannot seek {offset}: {queue} has offsets {low} to {high}")
        self._polled.move(queue, offset)

    async def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Continue at the oldest stored message.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        self._polled.move(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue behind the newest message.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        self._polled.move(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message stored at a time or later, or behind the newest message.

        Args:
            queue: a polled queue.
            timestamp_ms: epoch milliseconds, by the broker's clock.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        self._polled.move(queue, await self.offset_for_time(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int | None:
        """Return the queue offset of the next message to poll; None until it is known.

        Raises:
            UsageError: the queue is not polled by this consumer.
        """
        return self._polled.get(queue).position

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Stop pulling and polling these queues until `resume`; they stay assigned.

        Raises:
            UsageError: one is not polled by this consumer; nothing is changed.
        """
        self._polled.pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Resume paused queues.

        Raises:
            UsageError: one is not polled by this consumer; nothing is changed.
        """
        self._polled.resume(queues)

    def _turns_of(self, polled: PolledQueue) -> QueueTurns | None:
        """Return the turns of a queue whose topic has a callback, else None."""
        callback = self._queue_callbacks.get(polled.queue.topic)
        if callback is None:
            return None
        if self._threads is None:
            self._threads = ListenerThreads(self._config.schedule_threads, f"kourou-{self.group}")
        return QueueTurns(polled, callback, self._threads, self._config.schedule_delay_ms)

    def _report(self, messages: list[MessageExt]) -> None:
        """Count returned messages, and call the hooks once for each topic."""
        by_topic: dict[str, list[MessageExt]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for topic, some in by_topic.items():
            context = ConsumeContext(self.group, some)
            self._hooks.before(context)
            context.outcome = ConsumeOutcome.SUCCESS
            self._hooks.after(context)
            self._stats.count_consumed(topic, len(some), 0.0, is_ok=True)

    def _queue_states(self) -> Mapping[MessageQueue, QueueState]:
        return self._polled.states()

    async def _store_dead_letter(
        self, queue: MessageQueue, undecodable: UndecodableMessage
    ) -> bool:
        timeout_s = self._config.request_timeout_ms / 1000
        return await store_dead_letter(
            self._instance, self.group, queue, undecodable, timeout_s=timeout_s
        )
