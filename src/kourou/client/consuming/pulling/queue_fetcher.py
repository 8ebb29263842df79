"""Fetches one queue continuously by long polling, into the buffer of a push or a pull consumer.

Source: DefaultMQPushConsumerImpl.pullMessage, DefaultLitePullConsumerImpl.PullTaskImpl,
PullAPIWrapper.processPullResult, FilterMessageHook.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from kourou.client import calls_consume
from kourou.client.consuming.consumer_config import ConsumerConfig, MessageFilter
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.instance import ClientInstance
from kourou.client.pull_result import PullResult, PullStatus
from kourou.client.user_functions import PROGRAM_ENDS
from kourou.errors import (
    CodecMissingError,
    FilterNotFoundError,
    FilterNotLatestError,
    FlowControlError,
    KourouError,
    ProtocolError,
    SubscriptionNotFoundError,
    SubscriptionNotLatestError,
    TopicNotFoundError,
)
from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.model.namespace import with_namespace, without_namespace
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import is_retry_topic
from kourou.protocol.popping.topic_names import is_of_group, normal_topic
from kourou.protocol.record.decode import UndecodableMessage

log = logging.getLogger(__name__)

MessageT = TypeVar("MessageT", bound=MessageExt)

OnPulled = Callable[[str, int, float], None]
"""Called with a topic, the number of messages that a pull found, and its duration in ms."""

StoreDeadLetter = Callable[[MessageQueue, UndecodableMessage], Awaitable[bool]]
"""Stores an unreadable message of a queue as a dead letter; returns whether it was accepted."""

_BUSY_DELAY_MS: Final = 20
"""Delay after the broker answered FLOW_CONTROL."""

_MOVED_DELAY_MS: Final = 50
"""By how much the delay after a failure grows, if another broker may have taken the queue over. The
delays of the first second are so short that a new master is found soon after it has registered."""

_ROUTE_TIMEOUT_S: Final = 0.2
"""How long a pull after such a failure waits for the route at most."""

_UNREADABLE_DELAY_MS: Final = 30_000
"""Delay after an unreadable message. It stays unreadable until the library for its compression is
installed or the broker's disk is repaired."""

_UNREGISTERED: Final = (
    SubscriptionNotFoundError,
    SubscriptionNotLatestError,
    FilterNotFoundError,
    FilterNotLatestError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullTerms:
    """Sizes and times of a consumer's pulls.

    Attributes:
        max_messages: most messages of one pull.
        max_bytes: most bytes of one pull.
        suspend_ms: how long the broker may hold a pull until a message arrives.
        timeout_ms: timeout of a pull that the broker may hold.
        unheld_timeout_ms: timeout of a pull that it may not hold.
        interval_ms: time between two pulls of a queue that has messages.
        is_lite: pulls for `poll`: they carry the subscription, brokers count them separately.
    """

    max_messages: int
    max_bytes: int
    suspend_ms: int
    timeout_ms: int
    unheld_timeout_ms: int
    interval_ms: int = 0
    is_lite: bool = False


@dataclass(slots=True, kw_only=True)
class FetchContext:
    """The objects and settings that all fetchers of a consumer share.

    Attributes:
        instance: the client's connections and routes.
        group: the consumer group.
        config: limits, delays and the user's filter; may be replaced at any time.
        terms: sizes and times of the pulls; may be replaced at any time.
        offsets: offset store of the group.
        on_pulled: counts pulls that found messages.
        store_dead_letter: stores unreadable messages as dead letters.
    """

    instance: ClientInstance
    group: str
    config: ConsumerConfig
    terms: PullTerms
    offsets: Offsets
    on_pulled: OnPulled
    store_dead_letter: StoreDeadLetter


class Buffer(Protocol):
    """Receives the messages of one queue, and decides when and at which offset it is pulled.

    Attributes:
        max_offset: the queue offset of the next message to be stored; None before the first pull.
    """

    max_offset: int | None

    @property
    def queue(self) -> MessageQueue:
        """The queue."""

    @property
    def subscription(self) -> SubscriptionData:
        """The filter of the next pull."""

    def has_new_subscription(self) -> bool:
        """Update the filter; return whether it has changed."""

    @property
    def next_offset(self) -> int | None:
        """The queue offset to pull next; never None while the queue is fetched."""

    @property
    def is_dropped(self) -> bool:
        """Whether the queue is not fetched any more."""

    @property
    def is_paused(self) -> bool:
        """Whether the queue is not pulled until `resumed`."""

    async def resumed(self) -> None:
        """Wait until the queue is not paused."""

    def is_full(self) -> bool:
        """Return whether a limit is exceeded, so that the queue is not pulled now."""

    def commit_offset(self) -> int | None:
        """Return the queue offset to commit with the next pull; None: pulls do not commit."""

    def put(self, messages: list[MessageExt], next_offset: int) -> None:
        """Add messages in offset order, and set the new `next_offset`."""

    async def correct(self, offset: int | None) -> None:
        """Drop all messages, and continue at another offset, or drop the queue.

        Args:
            offset: as the broker says. None: the queue ended before our offset or belongs to a
                topic created again, so that the offset depends on the queue's bounds.

        Raises:
            TransportError, RemoteError: the offset could not be determined; nothing was changed.
        """


class QueueFetcher:
    """Pulls one queue into its buffer.

    Args:
        context: the objects and settings of the consumer.
        buffer: receives the messages.

    Attributes:
        queue: the queue.
        is_failing: the broker did not answer the last pull, or refused it. It may have lost the end
            of the queue meanwhile. Until the next response nothing is committed, so that the broker
            keeps the offset that it corrected.
        problem: why the queue is not pulled although its broker answers; None if it is pulled.
        last_pull_at_ms: start of the last pull in epoch milliseconds; 0 before the first.
    """

    def __init__(self, context: FetchContext, buffer: Buffer) -> None:
        self._context = context
        self._instance = context.instance
        self._buffer = buffer
        self.queue = buffer.queue
        self._is_retry = is_retry_topic(buffer.queue.topic)
        self._namespace = context.instance.config.namespace
        self._is_pop_retry = normal_topic(buffer.queue.topic, context.group) != buffer.queue.topic
        self._broker_id = MASTER_ID
        self.is_failing = False
        # The broker answered TOPIC_NOT_EXIST, and no pull has succeeded since.
        self._was_deleted = False
        self.problem: str | None = None
        self.last_pull_at_ms = 0
        self._moves = 0  # failures in a row that a change of the queue's broker may have caused
        self._is_route_stale = False  # as the last of them shows
        self._registrations = 0  # in a row, after answers that the broker does not know the member

    async def run(self) -> None:
        """Fetch until the buffer is dropped. Cancelling leaves no message half processed."""
        buffer = self._buffer
        while not buffer.is_dropped:
            try:
                delay_ms = await self._step()
            except KourouError as error:
                delay_ms = await self._recover(error)
            except Exception:
                # One bad response must not end the consumption of the queue.
                log.exception("pull.broken queue=%s offset=%s", self.queue, buffer.next_offset)
                delay_ms = self._context.config.pull_error_delay_ms
            if delay_ms:
                await asyncio.sleep(delay_ms / 1000)

    async def _step(self) -> int:
        """Pull once unless paused or above a limit; return the delay before the next pull in ms."""
        buffer = self._buffer
        if buffer.is_paused:
            await buffer.resumed()
            return 0
        if buffer.is_full():
            return self._context.config.flow_control_delay_ms
        offset = buffer.next_offset
        assert offset is not None, "the start offset is known"
        self.last_pull_at_ms = self._instance.runtime.clock.now_ms()
        began_s = asyncio.get_running_loop().time()
        result = await self._pull(offset)
        buffer.max_offset = result.max_offset
        # It is unknown which subscription the broker applied if it changed since the pull was sent.
        if buffer.is_dropped or buffer.has_new_subscription():
            return 0
        if self.is_failing:
            log.info("pull.recovered queue=%s offset=%d", self.queue, offset)
            self.is_failing = False
        self._moves, self._registrations, self._is_route_stale = 0, 0, False
        self._broker_id = result.suggested_broker_id
        if self._was_deleted:
            # The topic was deleted and created again, so our offset is meaningless, even if the
            # queue has grown beyond it already.
            await buffer.correct(None)
            log.warning("queue.made_anew queue=%s offset=%d", self.queue, offset)
            self._was_deleted = False
            return 0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            return await self._correct(result, offset)
        return await self._accept(result, began_s)

    async def _correct(self, result: PullResult, offset: int) -> int:
        """Continue where the broker says, because it does not have `offset`; return the delay."""
        log.warning(
            "pull.offset_moved queue=%s from=%d to=%d stored_from=%d stored_to=%d",
            self.queue,
            offset,
            result.next_offset,
            result.min_offset,
            result.max_offset,
        )
        if result.next_offset >= offset:
            # Messages have expired. Those in the buffer precede them and stay valid.
            self._buffer.put([], result.next_offset)
        else:
            await self._buffer.correct(None if offset > result.max_offset else result.next_offset)
        # If the broker names the offset that it refused, do not repeat it immediately.
        return self._context.config.pull_error_delay_ms if result.next_offset == offset else 0

    async def _accept(self, result: PullResult, began_s: float) -> int:
        """Process the result of a pull; return the delay before the next pull in ms."""
        context = self._context
        # First, before any change of state: if decoding fails, the same offset is pulled again.
        messages, next_offset, problem = await _readable(result, context.store_dead_letter)
        if self._is_pop_retry:
            group = with_namespace(self._namespace, context.group)
            messages = [one for one in messages if is_of_group(one.properties, group)]
        if self._is_retry:
            for message in messages:
                restore_topic(message, context.group, self._namespace)
        messages = apply_filter(context.config.message_filter, messages)
        self.problem = problem
        self._buffer.put(messages, next_offset)
        if messages:
            elapsed_ms = (asyncio.get_running_loop().time() - began_s) * 1000
            context.on_pulled(self.queue.topic, len(messages), elapsed_ms)
        if problem is not None:
            return _UNREADABLE_DELAY_MS
        return context.terms.interval_ms if messages else 0

    async def _pull(self, offset: int) -> PullResult:
        context, queue, terms = self._context, self.queue, self._context.terms
        if self._is_route_stale:
            await self._look_up_route()
        address = await self._address()
        # Slaves do not store offsets.
        is_committing = self._broker_id == MASTER_ID and not self.is_failing
        # After a failure not held, to learn at once whether the broker still has our offset.
        suspend_ms = None if self.is_failing else terms.suspend_ms
        timeout_ms = terms.timeout_ms if suspend_ms else terms.unheld_timeout_ms
        return await calls_consume.pull(
            self._instance.pool,
            address,
            context.group,
            queue,
            offset,
            subscription=self._buffer.subscription,
            max_messages=terms.max_messages,
            max_bytes=terms.max_bytes,
            timeout_s=timeout_ms / 1000,
            suspend_ms=suspend_ms,
            commit_offset=self._buffer.commit_offset() if is_committing else None,
            is_registered=not terms.is_lite,
            is_lite=terms.is_lite,
            # The topic may have been deleted and created again, by any send, since the last answer.
            topic_begin=None if self._was_deleted else context.offsets.topic_begin(queue),
        )

    async def _recover(self, error: KourouError) -> int:
        """Try to remedy the failure; return the delay before the next pull in ms."""
        if isinstance(error, FlowControlError):
            return _BUSY_DELAY_MS
        config, offset = self._context.config, self._buffer.next_offset
        if isinstance(error, _UNREGISTERED):
            # A restarted broker does not know this member or its subscription yet.
            log.info("pull.unregistered queue=%s reason=%s", self.queue, error)
            await self._register()
            self._registrations += 1
            return self._delay_ms(self._registrations)
        self._broker_id = MASTER_ID
        if isinstance(error, ProtocolError | CodecMissingError):
            log.error("pull.unreadable queue=%s offset=%s reason=%s", self.queue, offset, error)
            self.problem = str(error)
            return _UNREADABLE_DELAY_MS
        self._instance.routes.on_failure(self.queue.topic, error)
        self._was_deleted |= isinstance(error, TopicNotFoundError)
        level = logging.DEBUG if self.is_failing else logging.WARNING
        self.is_failing, self._is_route_stale = True, error.refresh_route
        log.log(level, "pull.failed queue=%s offset=%s reason=%s", self.queue, offset, error)
        if error.refresh_route or error.suspects_route:
            self._moves += 1
            return self._delay_ms(self._moves)
        return config.pull_error_delay_ms

    def _delay_ms(self, failures: int) -> int:
        """Return the delay after as many failures for the same reason."""
        return min((failures + 1) * _MOVED_DELAY_MS, self._context.config.pull_error_delay_ms)

    async def _look_up_route(self) -> None:
        """Look up the route, which has a new master by now, if there is one.

        If that fails, or takes long, the cached one is used.
        """
        with suppress(KourouError):
            await self._instance.routes.refresh(self.queue.topic, _ROUTE_TIMEOUT_S)

    async def _register(self) -> None:
        try:
            await self._instance.heartbeat(await self._address())
        except KourouError as error:
            log.warning("pull.not_registered queue=%s reason=%s", self.queue, error)

    async def _address(self) -> str:
        return await self._instance.routes.address(
            self.queue.topic,
            self.queue.broker_name,
            self._instance.request_timeout_s,
            None if self._broker_id == MASTER_ID else self._broker_id,
        )


def restore_topic(message: MessageExt, group: str, namespace: str = "") -> None:
    """Set the topic of a message from a retry topic to the one it was sent to.

    A message that was popped, then pulled, and sent back has the pop retry topic as its origin.
    """
    if is_retry_topic(message.topic):
        topic = message.properties.get(names.RETRY_TOPIC) or message.topic
        message.topic = without_namespace(namespace, normal_topic(topic, group))


async def _readable(
    result: PullResult, store_dead_letter: StoreDeadLetter
) -> tuple[list[MessageExt], int, str | None]:
    """Return the readable messages of a pull; store the others as dead letters.

    Returns:
        The messages to consume, the offset of the next pull, and a problem or None. The problem is
        an unreadable message that could not be stored as a dead letter; the next pull then starts
        at that message.
    """
    if result.status is not PullStatus.FOUND:
        return [], result.next_offset, None
    for one in result.undecodable:
        if not await store_dead_letter(result.queue, one):
            stop = one.message.queue_offset
            problem = (
                f"message {one.message.msg_id} is unreadable ({one.error}) and was not accepted "
                "as a dead letter"
            )
            return [m for m in result.readable if m.queue_offset < stop], stop, problem
    messages = result.readable  # decoding may lower `next_offset`
    return messages, result.next_offset, None


def apply_filter(message_filter: MessageFilter | None, messages: list[MessageT]) -> list[MessageT]:
    """Return the messages that a user's filter accepts, in queue order; all if it raises."""
    if message_filter is None or not messages:
        return messages
    try:
        passed = {id(message) for message in message_filter(tuple(messages))}
    except PROGRAM_ENDS:
        raise
    except BaseException:
        log.exception("message_filter.failed queue_id=%d", messages[0].queue_id)
        return messages
    return [message for message in messages if id(message) in passed]
