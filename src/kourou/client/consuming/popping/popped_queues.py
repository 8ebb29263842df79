"""The queues that a push consumer pops, each with its loop of pops and its messages in hand.

A queue stands for one queue of a broker, or with id -1 for all queues of a topic on a broker. The
broker holds each pop until a message arrives. A queue that is released sends no further pop; it is
leaving until its last pop is answered, and the messages of that answer are consumed as usual.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from typing import Final

from kourou.client.background import failure_of
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.membership.pop_retry_topics import LOOK_INTERVAL_MS, PopRetryTopics
from kourou.client.consuming.membership.rebalance import QueueChanges
from kourou.client.consuming.membership.rebalance_loop import RebalanceLoop
from kourou.client.consuming.popping.pop_sources import PopSource
from kourou.client.consuming.popping.popped_messages import PoppedMessages
from kourou.client.consuming.popping.settling import PushAcknowledgements, pop_limit
from kourou.client.consuming.popping.source_pops import PopRules, PopTerms, SourcePops
from kourou.client.consuming.pulling.held_queues import HeldQueues
from kourou.client.consuming.pulling.queue_fetcher import apply_filter
from kourou.client.consuming.watching.consume_stats import ConsumerStats
from kourou.client.health import QueueState
from kourou.client.instance import ClientInstance
from kourou.client.pop_result import PoppedMessage
from kourou.errors import KourouError, RequestNotSupportedError
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.protocol.running_info import PopProcessQueueInfo

log = logging.getLogger(__name__)

_PENDING_ACKS_MAX: Final = 10_000
"""Acknowledgements that no broker has confirmed, above which nothing is popped."""

_HELD_MIN_S: Final = 0.5
"""Time after which an empty answer shows that the broker has held the pop."""


HeldKey = tuple[str, int] | None
"""Kind of topic and queue id of messages that are delivered in order; None for all others."""


@dataclass(slots=True, eq=False)
class _Popped:
    """A popped queue.

    Attributes:
        held: the messages in hand; in order, by kind of topic and queue, else under one key.
        is_ending: no further pop is sent.
        changed: set when messages were settled, or the queue is released.
        last_pop_at_ms: start of the last pop in epoch milliseconds.
    """

    queue: MessageQueue
    source: PopSource
    held: dict[HeldKey, PoppedMessages] = field(default_factory=dict)
    is_ending: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    last_pop_at_ms: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Number of messages in hand."""
        return sum(map(len, self.held.values()))

    @property
    def size_bytes(self) -> int:
        """Size of the bodies in hand."""
        return sum(one.size_bytes for one in self.held.values())

    async def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until messages were settled or the queue is released."""
        self.changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """End a pause."""
        self.changed.set()

    @property
    def is_polling(self) -> bool:
        """Whether a pop may be in progress."""
        return self.task is not None and not self.task.done()


class PoppedQueues:
    """The popped queues of a push consumer.

    Args:
        instance: the client's connections, routes and tasks.
        config: limits and times.
        subscriptions: by topic; may change at any time.
        settling: settles the messages.
        held: the pulled queues, whose pauses and consumption apply here too.

    Attributes:
        request_pass: called when a leaving queue has ended; set by the rebalance loop.
    """

    def __init__(
        self,
        instance: ClientInstance,
        config: PushConsumerConfig,
        subscriptions: MutableMapping[str, SubscriptionData],
        *,
        settling: PushAcknowledgements,
        held: HeldQueues,
    ) -> None:
        self._instance = instance
        self._config = config
        self._subscriptions = subscriptions
        self._settling = settling
        self._pulled = held
        self._is_ordered = False
        self._pops: SourcePops
        self._popped: dict[MessageQueue, _Popped] = {}
        self._leaving: list[_Popped] = []
        self._is_closing = False
        self.request_pass: Callable[[], None] | None = None

    def begin(self, rebalance: RebalanceLoop, stats: ConsumerStats, *, is_ordered: bool) -> None:
        """Prepare for popped topics, and for messages that the group left when it popped.

        Args:
            rebalance: the rebalance loop, not started yet.
            stats: counts the pops.
            is_ordered: messages of a queue are delivered in order.
        """
        instance, config, settling = self._instance, self._config, self._settling
        self._is_ordered = is_ordered
        rules = PopRules(
            start=config.consume_from_where,
            is_ordered=is_ordered,
            max_reconsume_times=pop_limit(config, is_ordered=is_ordered),
        )
        self._pops = SourcePops(
            instance, settling.group, rules, receipts=settling.receipts, stats=stats
        )
        if is_ordered:
            rebalance.assignment = None  # as in Java: the broker is not asked for the mode
        rebalance.is_popping = config.mode == "pop"
        rebalance.popped = self
        self.request_pass = rebalance.wake
        retries = rebalance.retry_topics = PopRetryTopics(
            instance, settling.group, self._subscriptions, rebalance.wake
        )
        instance.tasks.start_periodic(
            retries.look, LOOK_INTERVAL_MS, "pop retry topics", first_ms=0
        )
        instance.tasks.start_periodic(
            self.renew, config.pop_invisible_ms // 8, "renewal of popped messages"
        )

    @property
    def queues(self) -> list[MessageQueue]:
        """The popped queues, sorted."""
        return sorted(self._popped)

    @property
    def held(self) -> list[PoppedMessages]:
        """The messages in hand, of leaving queues too."""
        return [held for one in self._all() for held in one.held.values()]

    def of_topic(self, topic: str) -> list[MessageQueue]:
        """Return the popped queues of one topic."""
        return [queue for queue in self._popped if queue.topic == topic]

    def topics(self) -> set[str]:
        """Return the topics of the popped queues."""
        return {queue.topic for queue in self._popped}

    def uses(self, topic: str) -> bool:
        """Return whether a pop of the topic may be in progress."""
        leaving = any(one.queue.topic == topic and one.is_polling for one in self._leaving)
        return leaving or bool(self.of_topic(topic))

    def note_assigned(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """Do nothing: popped queues are started without a delay."""

    async def apply(self, changes: QueueChanges) -> bool:
        """Release queues and start others; return True: none needs another pass."""
        for queue in changes.released:
            popped = self._popped.pop(queue, None)
            if popped is not None:
                self._leaving.append(popped)
                self._end(popped)
        for queue in changes.added:
            if not self._is_closing and queue.topic in self._subscriptions:
                self._start(queue)
        return True

    def states(self) -> dict[MessageQueue, QueueState]:
        """Return the state of each popped queue."""
        return {
            queue: QueueState(one.count, one.size_bytes, None, None, False, _problem(one))
            for queue, one in self._popped.items()
        }

    @property
    def lost_acks(self) -> int:
        """Number of consumed messages that could not be acknowledged in time."""
        return self._settling.acks.lost

    def problems(self) -> list[str]:
        """Return descriptions of problems with acknowledgements."""
        return self._settling.acks.problems()

    def infos(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        """Return the state of each popped queue in the form reported to administrators."""
        return {
            queue: PopProcessQueueInfo(one.count, one.is_ending, one.last_pop_at_ms)
            for queue, one in sorted(self._popped.items())
        }

    def reconfigure(self, config: PushConsumerConfig) -> None:
        """Replace limits and times, with effect from the next pop on."""
        self._config = config

    async def renew(self) -> None:
        """Renew messages that are held for long; to be called at `renewal_interval_ms`."""
        for held in self.held:
            self._settling.renew_held(held)
        self._leaving = [one for one in self._leaving if one.is_polling or one.count]

    def give_back_overdue(self) -> None:
        """Give back messages that wait too long for a listener; before each look for overdue ones.

        All listeners are busy with other messages: another member may be faster.
        """
        for held in self.held:
            self._settling.give_back(held.take(held.overdue_waiting()))

    def stop(self) -> None:
        """Send no more pops, and give back what no listener has begun; also what arrives later."""
        self._is_closing = True
        for one in self._all():
            self._end(one)
        if not self._is_ordered:
            self._give_back_waiting()

    async def close(self, timeout_s: float) -> None:
        """Give back what is left, and wait for acknowledgements; takes at most `timeout_s`."""
        self._give_back_waiting()
        for held in self.held:  # of listener calls that were cut short
            self._settling.give_back(held.take(held.messages), is_counted=True)
        await self._settling.flush(timeout_s)

    def drop_all(self) -> None:
        """Drop all messages and end all pops, without any request."""
        self._is_closing = True
        for one in self._all():
            one.is_ending = True
            if one.task is not None:
                one.task.cancel()
            for held in one.held.values():
                held.drop()

    def _all(self) -> list[_Popped]:
        return [*self._popped.values(), *self._leaving]

    def _start(self, queue: MessageQueue) -> None:
        source = PopSource(queue.topic, queue.broker_name, queue.queue_id)
        popped = self._popped[queue] = _Popped(queue, source)

        async def run() -> None:
            await self._run(popped)

        popped.task = asyncio.create_task(run(), name=f"pop {queue}")
        popped.task.add_done_callback(lambda _: self._ended(popped))
        log.info("queue.popped queue=%s", queue)

    def _end(self, popped: _Popped) -> None:
        popped.is_ending = True
        popped.wake()
        log.info("queue.released queue=%s held=%d", popped.queue, popped.count)

    def _ended(self, popped: _Popped) -> None:
        if popped.is_ending and self.request_pass is not None and not self._is_closing:
            self.request_pass()

    async def _run(self, popped: _Popped) -> None:
        """Pop until the queue is released."""
        config = self._config
        while not popped.is_ending:
            try:
                delay_ms = await self._step(popped)
            except Exception:
                # One bad answer must not end the consumption of the queue.
                log.exception("pop.broken queue=%s", popped.queue)
                delay_ms = config.pull_error_delay_ms
            if delay_ms > 0:
                await popped.pause(delay_ms / 1000)

    async def _step(self, popped: _Popped) -> float:
        """Pop once unless paused or above a limit; return the delay before the next pop in ms."""
        config, source = self._config, popped.source
        subscription = self._subscriptions.get(popped.queue.topic)
        room = self._room(popped)
        if subscription is None or not room or self._pulled.flow.is_paused(popped.queue):
            return config.flow_control_delay_ms
        began_s = _now_s()
        if source.retry_at_s > began_s:
            return (source.retry_at_s - began_s) * 1000
        popped.last_pop_at_ms = self._instance.runtime.clock.now_ms()
        before = source.error
        terms = PopTerms(room, config.pop_invisible_ms)
        # After a failure not held, to learn at once whether the broker serves pops again.
        wait_s = 0.0 if before is not None else config.pull_suspend_timeout_ms / 1000
        result = await self._pops.pop(source, subscription, terms, wait_s)
        if (source.error is not None or before is not None) and not self._is_closing:
            _report(popped, before)
        if source.error is not None:
            return config.pull_error_delay_ms
        if result.messages:
            self._deliver(popped, result.messages)
            return config.pull_interval_ms
        # A broker that does not hold the pop must not be asked all the time.
        is_early = _now_s() - began_s < _HELD_MIN_S
        return config.flow_control_delay_ms if is_early else 0

    def _room(self, popped: _Popped) -> int:
        """Return the number of messages to pop; 0: none until some are settled."""
        config = self._config
        batch = min(config.pop_batch_size, config.pop_threshold_count)
        is_full = (
            config.pop_threshold_count - popped.count < batch
            or popped.size_bytes >= config.pull_threshold_size_bytes
            or len(self._settling.acks) >= _PENDING_ACKS_MAX
        )
        return 0 if is_full else batch

    def _deliver(self, popped: _Popped, messages: list[PoppedMessage]) -> None:
        if self._is_closing:
            self._settling.give_back(messages)
            return
        wanted = apply_filter(self._config.message_filter, messages)
        if len(wanted) != len(messages):
            ids = set(map(id, wanted))
            self._settling.acks.add(one for one in messages if id(one) not in ids)
        for key, some in self._parts(wanted).items():
            held = popped.held.get(key)
            if held is None:
                held = popped.held[key] = self._new_held(popped, some[0])
            elif self._is_ordered:
                # The broker delivers further messages of a queue only if the earlier ones are
                # settled or visible again: what is left are copies of these.
                held.take(held.messages)
            held.put(some)
            self._pulled.consumption.put(held, some)

    def _parts(self, messages: list[PoppedMessage]) -> dict[HeldKey, list[PoppedMessage]]:
        if not self._is_ordered:
            return {None: messages} if messages else {}
        parts: dict[HeldKey, list[PoppedMessage]] = {}
        for message in messages:
            checkpoint = message.checkpoint
            parts.setdefault((checkpoint.kind, checkpoint.queue_id), []).append(message)
        return parts

    def _new_held(self, popped: _Popped, message: PoppedMessage) -> PoppedMessages:
        queue = popped.queue
        if self._is_ordered:
            queue = MessageQueue(queue.topic, queue.broker_name, message.checkpoint.queue_id)
        return PoppedMessages(queue, self._settling.acks.add, popped.wake)

    def _give_back_waiting(self) -> None:
        for held in self.held:
            self._settling.give_back(held.take(held.waiting))


def _report(popped: _Popped, before: KourouError | None) -> None:
    """Log a failed pop, at DEBUG if the one before failed too, and the first success after it."""
    error = popped.source.error
    if error is None:
        log.info("pop.recovered queue=%s", popped.queue)
        return
    level = logging.WARNING if before is None else logging.DEBUG
    log.log(level, "pop.failed queue=%s reason=%s", popped.queue, _reason(error))


def _problem(popped: _Popped) -> str | None:
    stopped, error = failure_of(popped.task), popped.source.error
    if stopped is not None:
        return f"its pops have stopped: {stopped}; restart the consumer"
    return None if error is None else f"its pops fail: {_reason(error)}"


def _reason(error: KourouError) -> str:
    if isinstance(error, RequestNotSupportedError):
        return f"{error}: pops need RocketMQ 5 or Kourou; older brokers serve mode='pull' only"
    return str(error)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
