"""Polling: gives the messages of the queues that a pull consumer has, in what order it wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from enum import Enum, auto

from kourou.client.consuming.consumer import Consumer
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.listener_threads import ListenerThreads
from kourou.client.consuming.offsets.offset_store import RemoteOffsets, commit_each
from kourou.client.consuming.polling.polled_queue import PolledQueue
from kourou.client.consuming.polling.polled_queues import PolledQueues
from kourou.client.consuming.polling.queue_access import MESSAGES_MAX, QueueAccess
from kourou.client.consuming.polling.queue_turns import QueueCallback, QueueTurns
from kourou.client.consuming.watching.consume_hooks import ConsumeContext, ConsumeOutcome
from kourou.client.consuming.watching.queue_state import QueueState
from kourou.client.instance import ClientInstance
from kourou.errors import ClosedError, UsageError
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData


class Mode(Enum):
    """How a consumer came to the queues that it polls."""

    NONE = auto()
    ASSIGNED = auto()
    SUBSCRIBED = auto()


class Polling(QueueAccess, Consumer):
    """The calls of a pull consumer about the queues that it has.

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
        self._polled = PolledQueues(
            instance,
            group,
            config,
            subscriptions=self._subscriptions,
            offsets=RemoteOffsets(instance, group, config.request_timeout_ms),
            on_pulled=self._stats.count_pulled,
            turns_of=self._turns_of,
        )

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are polled now, sorted.

        Raises:
            ClosedError: the consumer is closed, or was never started.
        """
        self._instance.check_open()
        return self._polled.queues

    async def poll(
        self, timeout_ms: int | None = None, max_messages: int | None = None
    ) -> list[MessageExt]:
        """Return the next messages; acknowledge those of the poll before. Cancelling takes none.

        Args:
            timeout_ms: how long to wait for the first message; None for `poll_timeout_ms`.
            max_messages: None for `poll_batch_size`.

        Returns:
            Messages of each queue in offset order; none if none came within the timeout.

        Raises:
            UsageError: no queue was assigned and no topic subscribed; another task polls; an
                argument is out of its range.
            ClosedError: the consumer is not open.
            RemoteError: a broker cannot filter as `subscribe` asked for since the last poll.
        """
        self._instance.check_open()
        limit = self._config.poll_batch_size if max_messages is None else max_messages
        timeout_ms = self._config.poll_timeout_ms if timeout_ms is None else timeout_ms
        if self._mode is Mode.NONE:
            raise UsageError("nothing to poll: assign queues, or subscribe topics")
        if self._is_polling:
            raise UsageError("another task polls this consumer: only one at a time may")
        if not 1 <= limit <= MESSAGES_MAX:
            raise UsageError(f"max_messages is {limit}: allowed are 1 to {MESSAGES_MAX}")
        if timeout_ms < 0:
            raise UsageError(f"timeout_ms is {timeout_ms}: not negative")
        self._polled.acknowledge()
        self._is_polling = True
        try:
            messages = await self._polled.take(limit, timeout_ms / 1000)
        finally:
            self._is_polling = False
        if messages:
            self._note(messages)
        return messages

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Step through the messages; asking for the next acknowledges the one before.

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
        """Commit that all messages given are done, or an offset of one queue.

        Returns when the broker has it in memory; it writes offsets to its disk every 5 seconds, so
        that a crash of the broker may take back the last ones. An offset may also go back.

        Args:
            queue: None for all queues that are polled.
            offset: the group has consumed everything below it; only with a queue. None: what was
                given of the queue.

        Raises:
            UsageError: the offset is negative or without a queue; the queue is not polled.
            GroupNotFoundError: the broker does not know the group, and does not create it.
            TopicNotFoundError: a topic was deleted, or deleted and made again: what was given was
                of the one before. The next poll goes on in the new one.
            TransportError, RemoteError: as `pull`. Of several queues some may be committed.
        """
        self._instance.check_open()
        if offset is not None:
            if queue is None:
                raise UsageError("commit an offset of which queue?")
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
        """Commit that all messages given are done, without waiting for the brokers' answers.

        A failure is logged, and made up for by the next commit. What `auto_commit` does now and
        then, for who has it off.

        Raises:
            ClosedError: the consumer is not open.
        """
        self._instance.check_open()
        self._polled.acknowledge()
        self._instance.tasks.start(self._polled.persist, "commit soon")

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another queue offset: the next poll gives what is stored from there on.

        What the last poll gave of the queue is neither acknowledged nor not: the offset sought is
        what is committed next.

        Raises:
            UsageError: the queue is not polled here, or does not hold the offset.
            TransportError, RemoteError: as `pull`; the position is as before.
        """
        self._polled.get(queue)
        low, high = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        if not low <= offset <= high:
            raise UsageError(f"{queue} holds {low} to {high}: cannot seek {offset}")
        self._polled.move(queue, offset)

    async def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Go on at the oldest message that is stored.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        self._polled.move(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the newest message.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        self._polled.move(queue, await self.max_offset(queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at the first message stored at a time or later; behind the newest if none is.

        Args:
            queue: one that is polled.
            timestamp_ms: epoch milliseconds, by the broker's clock.

        Raises:
            UsageError, TransportError, RemoteError: as `seek`.
        """
        self._polled.get(queue)
        self._polled.move(queue, await self.offset_for_time(queue, timestamp_ms))

    def position(self, queue: MessageQueue) -> int | None:
        """Return the queue offset of what the next poll gives; None while that is not known.

        Raises:
            UsageError: the queue is not polled here.
        """
        return self._polled.get(queue).position

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull and give nothing of these queues until `resume`; they stay this consumer's.

        Raises:
            UsageError: one is not polled here; nothing has changed then.
        """
        self._polled.pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with paused queues.

        Raises:
            UsageError: one is not polled here; nothing has changed then.
        """
        self._polled.resume(queues)

    def _turns_of(self, polled: PolledQueue) -> QueueTurns | None:
        """Return what calls the callback of the queue's topic; None if it has none."""
        callback = self._queue_callbacks.get(polled.queue.topic)
        if callback is None:
            return None
        if self._threads is None:
            self._threads = ListenerThreads(self._config.schedule_threads, f"kourou-{self.group}")
        return QueueTurns(polled, callback, self._threads, self._config.schedule_delay_ms)

    def _note(self, messages: list[MessageExt]) -> None:
        """Count messages given, and tell the hooks: one call for those of each topic."""
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
        failing = set(self._polled.failing)
        return {
            one.queue: QueueState(
                len(one),
                one.size_bytes,
                one.done_offset,
                one.max_offset,
                one.queue in failing,
                self._polled.problem(one.queue),
            )
            for one in self._polled.polled_queues
        }
