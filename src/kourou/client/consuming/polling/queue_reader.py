"""Reads one queue for `poll`: determines the start offset, then pulls continuously.

Source: DefaultLitePullConsumerImpl.PullTaskImpl.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kourou.client import calls_consume
from kourou.client.consuming.acknowledging.acknowledgements import store_dead_letter
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.offsets.start_offset import find_offset_in_bounds, find_start_offset
from kourou.client.consuming.polling.polled_queue import PolledQueue
from kourou.client.consuming.pulling.pulled_messages import (
    OnPulled,
    apply_filter,
    restore_topic,
    store_dead_letters,
)
from kourou.client.instance import ClientInstance
from kourou.client.pull_result import PullResult, PullStatus
from kourou.errors import (
    ClosedError,
    CodecMissingError,
    FlowControlError,
    KourouError,
    ProtocolError,
    TopicNotFoundError,
)
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import is_retry_topic
from kourou.protocol.message_decoding import UndecodableMessage

log = logging.getLogger(__name__)

_BUSY_DELAY_MS: Final = 20
"""Delay after the broker answered FLOW_CONTROL."""

_UNREADABLE_DELAY_MS: Final = 30_000
"""Delay after an unreadable message: the next pull finds the same one until the cause is fixed."""

_HELD_BY_BROKER_EXTRA_MS: Final = 10_000
"""Time that a pull may take beyond the time that the broker holds it (30 s and 20 s in Java)."""


class QueueReader:
    """Pulls one queue into its `PolledQueue`.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        config: its limits and delays.
        subscription: sent with each pull.
        polled: receives the messages.
        offsets: the group's offset store.
        held_all: returns the number of messages held of all queues of the consumer.
        on_arrived: called when messages were added to `polled`.
        on_pulled: counts pulls that found messages.

    Attributes:
        is_failing: the broker did not answer the last pull, or refused it. Nothing is committed
            then: it may have lost the end of the queue, and must keep the offset that it corrected.
        problem: why the queue is not pulled although its broker answers; None if it is pulled.
        last_pull_at_ms: start of the last pull in epoch milliseconds; 0 before the first.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PullConsumerConfig,
        *,
        subscription: SubscriptionData,
        polled: PolledQueue,
        offsets: Offsets,
        held_all: Callable[[], int],
        on_arrived: Callable[[PolledQueue], None],
        on_pulled: OnPulled,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._subscription = subscription
        self._polled = polled
        self._queue = polled.queue
        self._offsets = offsets
        self._held_all = held_all
        self._on_arrived = on_arrived
        self._broker_id = MASTER_ID
        self._resumed = asyncio.Event()
        self._on_pulled = on_pulled
        self.is_failing = False
        # The broker answered TOPIC_NOT_EXIST, and no pull has succeeded since.
        self._was_deleted = False
        # Not pulled for a while: the topic may have been deleted and created again.
        self._was_idle = False
        self.problem: str | None = None
        self.last_pull_at_ms = 0

    def resume(self) -> None:
        """Wake the task of a paused queue."""
        self._resumed.set()

    async def run(self) -> None:
        """Pull until cancelled, which leaves no message half processed."""
        while True:
            if self._polled.is_paused and self._polled.next_offset is not None:
                self._was_idle = True
                self._resumed.clear()
                await self._resumed.wait()
                continue
            try:
                delay_ms = await self._step()
            except KourouError as error:
                delay_ms = self._recover(error)
            except Exception:
                # One bad response must not end the reading of the queue.
                log.exception("pull.broken queue=%s", self._queue)
                delay_ms = self._config.pull_error_delay_ms
            if delay_ms:
                self._was_idle = True
                await asyncio.sleep(delay_ms / 1000)

    async def _find_start(self) -> int:
        """Determine the start offset; return the delay before the next step in ms."""
        config, queue = self._config, self._queue
        try:
            offset, is_committed = await find_start_offset(
                self._instance, self._offsets, queue, config
            )
        except KourouError as error:
            level = logging.DEBUG if isinstance(error, ClosedError) else logging.WARNING
            log.log(level, "start_offset.unknown queue=%s reason=%s", queue, error)
            return config.start_offset_retry_ms
        self._polled.begin(offset, is_committed=is_committed)
        log.info("queue.acquired group=%s queue=%s offset=%d", self._group, queue, offset)
        if not is_committed and config.auto_commit:
            self._offsets.update(queue, offset)
            await self._offsets.persist((queue,))
        return 0

    async def _step(self) -> int:
        """Pull once unless above a limit; return the delay before the next pull in ms."""
        polled = self._polled
        requested_offset = polled.next_offset
        if requested_offset is None:
            return await self._find_start()
        if self._holds_too_much():
            return self._config.flow_control_delay_ms
        self.last_pull_at_ms = self._instance.runtime.clock.now_ms()
        began_s = asyncio.get_running_loop().time()
        result = await self._pull(requested_offset)
        self._was_idle = False
        if self.is_failing:
            log.info("pull.recovered queue=%s offset=%d", self._queue, requested_offset)
            self.is_failing = False
        self._broker_id = result.suggested_broker_id
        polled.max_offset = result.max_offset
        if self._was_deleted:
            # The topic was deleted and created again, so our offset is meaningless.
            await self._begin_again(requested_offset)
            return 0
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self._correct(result, requested_offset)
            # If the broker names the offset that it refused, do not repeat it immediately.
            return 0 if result.next_offset != requested_offset else self._config.pull_error_delay_ms
        # First, before any change of state: if decoding fails, the same offset is pulled again.
        messages, next_offset, problem = await store_dead_letters(result, self._store_dead_letter)
        for message in messages if is_retry_topic(self._queue.topic) else ():
            restore_topic(message)
        messages = apply_filter(self._config.message_filter, messages)
        self.problem = problem
        polled.put(messages, next_offset)
        if messages:
            elapsed_ms = (asyncio.get_running_loop().time() - began_s) * 1000
            self._on_pulled(self._queue.topic, len(messages), elapsed_ms)
            self._on_arrived(polled)
        return 0 if problem is None else _UNREADABLE_DELAY_MS

    async def _store_dead_letter(
        self, queue: MessageQueue, undecodable: UndecodableMessage
    ) -> bool:
        timeout_s = self._config.request_timeout_ms / 1000
        return await store_dead_letter(
            self._instance, self._group, queue, undecodable, timeout_s=timeout_s
        )

    async def _correct(self, answer: PullResult, requested_offset: int) -> None:
        """Continue at the offset that the broker names: it does not have `requested_offset`.

        If the broker names a higher offset, messages have expired, and held ones stay valid. If the
        queue ends before our offset, `find_offset_in_bounds` determines the next offset.
        """
        offset = answer.next_offset
        log.warning(
            "pull.offset_moved queue=%s from=%d to=%d", self._queue, requested_offset, offset
        )
        if offset >= requested_offset:
            self._polled.put((), offset)
            return
        if requested_offset > answer.max_offset:
            offset = await self._find_again()
        self._polled.move(offset)

    async def _find_again(self) -> int:
        offset, _ = await find_offset_in_bounds(
            self._instance, self._offsets, self._queue, self._config
        )
        return offset

    async def _begin_again(self, requested_offset: int) -> None:
        """Continue at the group's start offset in the topic that was created again."""
        start = await self._find_again()
        log.warning(
            "queue.made_anew queue=%s offset=%d start=%d", self._queue, requested_offset, start
        )
        self._was_deleted = False
        self._polled.move(start)

    def _holds_too_much(self) -> bool:
        held, config = self._polled, self._config
        return (
            len(held) > config.pull_threshold_count
            or held.size_bytes > config.pull_threshold_size_bytes
            or held.span > config.consume_max_span
            or self._held_all() > config.pull_threshold_all
        )

    async def _pull(self, offset: int) -> PullResult:
        config, queue = self._config, self._queue
        address = await self._instance.routes.address(
            queue.topic,
            queue.broker_name,
            self._instance.request_timeout_s,
            None if self._broker_id == MASTER_ID else self._broker_id,
        )
        # After a failure not held, to learn at once whether the broker still has our offset.
        wait_ms = None if self.is_failing else config.wait_ms
        is_verified = self._was_idle and not self._was_deleted
        return await calls_consume.pull(
            self._instance.pool,
            address,
            self._group,
            queue,
            offset,
            subscription=self._subscription,
            max_messages=config.poll_batch_size,
            max_bytes=config.pull_bytes_max,
            timeout_s=((wait_ms or 0) + _HELD_BY_BROKER_EXTRA_MS) / 1000,
            suspend_ms=wait_ms,
            is_lite=True,
            topic_begin=self._offsets.topic_begin(queue) if is_verified else None,
        )

    def _recover(self, error: KourouError) -> int:
        """Try to remedy the failure; return the delay before the next pull in ms."""
        if isinstance(error, FlowControlError):
            return _BUSY_DELAY_MS
        self._broker_id = MASTER_ID
        if isinstance(error, ProtocolError | CodecMissingError):
            log.error("pull.unreadable queue=%s reason=%s", self._queue, error)
            self.problem = str(error)
            return _UNREADABLE_DELAY_MS
        if error.refresh_route:
            self._instance.routes.refresh_soon(self._queue.topic)
        self._was_deleted |= isinstance(error, TopicNotFoundError)
        level = logging.DEBUG if self.is_failing else logging.WARNING
        self.is_failing = True
        log.log(level, "pull.failed queue=%s reason=%s", self._queue, error)
        return self._config.pull_error_delay_ms
