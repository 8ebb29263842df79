"""Pulls one queue continuously by long polling, as flow control allows.

Source: DefaultMQPushConsumerImpl.pullMessage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from kourou.client import calls_consume
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.offsets.offset_store import Offsets
from kourou.client.consuming.pulling.delivery import Consumption
from kourou.client.consuming.pulling.process_queue import ProcessQueue
from kourou.client.consuming.pulling.pull_flow import PullFlow
from kourou.client.consuming.pulling.pulled_messages import (
    OnPulled,
    StoreDeadLetter,
    apply_filter,
    restore_topic,
    store_dead_letters,
)
from kourou.client.instance import ClientInstance
from kourou.client.pull_result import PullResult, PullStatus
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
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import is_retry_topic

log = logging.getLogger(__name__)

_BUSY_DELAY_MS: Final = 20
"""Delay after the broker answered FLOW_CONTROL."""

_UNREADABLE_DELAY_MS: Final = 30_000
"""Delay after an unreadable message. It stays unreadable until the library for its compression is
installed or the broker's disk is repaired."""


class QueuePuller:
    """Pulls one queue into its process queue, and passes new messages to `consumption`.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        flow: limits, delays and pauses, read at each pull.
        subscriptions: by topic, as sent in heartbeats; may change meanwhile.
        process_queue: holds the messages until they are done.
        offset: the queue offset to start at.
        consumption: delivers the messages.
        offsets: committed with pulls; advanced where no messages are left to consume.
        is_exclusive: returns whether no other member can hold the queue, so that offsets may be
            committed.
        on_offset_illegal: called with the broker's response and the requested offset if the broker
            does not have that offset. It must drop the process queue, which ends the puller.
        on_pulled: counts pulls that found messages.
        store_dead_letter: stores unreadable messages as dead letters.

    Attributes:
        is_failing: the broker did not answer the last pull, or refused it. It may have lost the end
            of the queue meanwhile. Until the next response nothing is committed, so that the broker
            keeps the offset that it corrected.
        problem: why the queue is not pulled although its broker answers; None if it is pulled.
        max_offset: the queue offset of the next message to be stored; None before the first pull.
        last_pull_at_ms: start of the last pull in epoch milliseconds; 0 before the first.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        flow: PullFlow,
        *,
        subscriptions: Mapping[str, SubscriptionData],
        process_queue: ProcessQueue,
        offset: int,
        consumption: Consumption,
        offsets: Offsets,
        is_exclusive: Callable[[MessageQueue], bool],
        on_offset_illegal: Callable[[ProcessQueue, PullResult, int], None],
        on_pulled: OnPulled,
        store_dead_letter: StoreDeadLetter,
    ) -> None:
        self._instance = instance
        self._group = group
        self._flow = flow
        self._subscriptions = subscriptions
        self._process_queue = process_queue
        self._queue = process_queue.queue
        self._subscription = subscriptions[self._queue.topic]
        self._is_retry = is_retry_topic(self._queue.topic)
        self._offset = offset
        self._consumption = consumption
        self._offsets = offsets
        self._is_exclusive = is_exclusive
        self._on_offset_illegal = on_offset_illegal
        self._on_pulled = on_pulled
        self._store_dead_letter = store_dead_letter
        self._broker_id = MASTER_ID
        self.is_failing = False
        # The broker answered TOPIC_NOT_EXIST, and no pull has succeeded since.
        self._was_deleted = False
        # Not pulled for a while: the topic may have been deleted and created again.
        self._was_idle = False
        self.problem: str | None = None
        self.max_offset: int | None = None
        self.last_pull_at_ms = 0

    @property
    def _config(self) -> PushConsumerConfig:
        return self._flow.config

    async def run(self) -> None:
        """Pull until the process queue is dropped. Cancelling leaves no message half processed."""
        self._flow.add(self._queue)
        try:
            await self._run()
        finally:
            self._flow.remove(self._queue)

    async def _run(self) -> None:
        while not self._process_queue.is_dropped:
            try:
                delay_ms = await self._step()
            except KourouError as error:
                delay_ms = await self._recover(error)
            except Exception:
                # One bad response must not end the consumption of the queue.
                log.exception("pull.broken queue=%s offset=%d", self._queue, self._offset)
                delay_ms = self._config.pull_error_delay_ms
            if delay_ms:
                self._was_idle = True
                await asyncio.sleep(delay_ms / 1000)

    async def _step(self) -> int:
        """Pull once unless paused or above a limit; return the delay before the next pull in ms."""
        if self._flow.is_paused(self._queue):
            self._was_idle = True
            await self._flow.resumed(self._queue)
            return 0
        if self._flow.is_full(self._process_queue):
            return self._config.flow_control_delay_ms
        self.last_pull_at_ms = self._instance.runtime.clock.now_ms()
        began_s = asyncio.get_running_loop().time()
        result = await self._pull()
        self.max_offset = result.max_offset
        self._was_idle = False
        if self._process_queue.is_dropped or self._is_by_an_old_subscription():
            return 0
        if self.is_failing:
            log.info("pull.recovered queue=%s offset=%d", self._queue, self._offset)
            self.is_failing = False
        self._broker_id = result.suggested_broker_id
        if self._was_deleted:
            # The topic was deleted and created again, so our offset is meaningless. Handled as if
            # the queue ended before our offset, even if it has grown beyond it already.
            self._was_deleted = False
            log.warning("queue.made_anew queue=%s offset=%d", self._queue, self._offset)
            requested_offset = max(self._offset, result.max_offset + 1)
            self._on_offset_illegal(self._process_queue, result, requested_offset)
            return self._config.pull_error_delay_ms
        if result.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "pull.offset_moved queue=%s from=%d to=%d stored_from=%d stored_to=%d",
                self._queue,
                self._offset,
                result.next_offset,
                result.min_offset,
                result.max_offset,
            )
            self._on_offset_illegal(self._process_queue, result, self._offset)
            return self._config.pull_error_delay_ms
        return await self._accept(result, began_s)

    async def _accept(self, result: PullResult, began_s: float) -> int:
        """Process the result of a pull; return the delay before the next pull in ms."""
        # First, before any change of state: if decoding fails, the same offset is pulled again.
        messages, next_offset, problem = await store_dead_letters(result, self._store_dead_letter)
        messages = apply_filter(self._config.message_filter, messages)
        self.problem = problem
        self._hold(messages, next_offset)
        if messages:
            elapsed_ms = (asyncio.get_running_loop().time() - began_s) * 1000
            self._on_pulled(self._queue.topic, len(messages), elapsed_ms)
        if problem is not None:
            return _UNREADABLE_DELAY_MS
        return self._config.pull_interval_ms if messages else 0

    def _is_by_an_old_subscription(self) -> bool:
        """Return whether the subscription changed since the pull was sent.

        It is unknown which subscription the broker applied, so the pull is repeated.
        """
        before = self._subscription
        self._subscription = self._subscriptions.get(self._queue.topic, before)
        return self._subscription is not before

    def _hold(self, messages: list[MessageExt], next_offset: int) -> None:
        if self._is_retry:
            for message in messages:
                restore_topic(message)
        added = self._process_queue.put(messages)
        self._consumption.put(self._process_queue, added)
        self._offset = next_offset
        self._process_queue.advance(self._offset)
        if not len(self._process_queue):
            # All messages before this offset are done or not subscribed.
            self._offsets.update(self._queue, self._offset)

    async def _pull(self) -> PullResult:
        config, queue = self._config, self._queue
        address = await self._address()
        # Slaves do not store offsets.
        is_committing = (
            self._offsets.is_remote
            and self._broker_id == MASTER_ID
            and not self.is_failing
            and self._is_exclusive(queue)
        )
        commit = self._offsets.get(queue) if is_committing else None
        # Verified only after a pause, because it costs the broker a little. A pull that is held
        # when the topic is deleted is answered by the deletion.
        is_verified = self._was_idle and not self._was_deleted
        return await calls_consume.pull(
            self._instance.pool,
            address,
            self._group,
            queue,
            self._offset,
            subscription=self._subscription,
            max_messages=config.pull_batch_size,
            max_bytes=config.pull_batch_bytes,
            timeout_s=config.pull_timeout_ms / 1000,
            # After a failure not held, to learn at once whether the broker still has our offset.
            suspend_ms=None if self.is_failing else config.pull_suspend_timeout_ms,
            commit_offset=commit or None,  # 0: nothing is done yet
            is_registered=True,
            topic_begin=self._offsets.topic_begin(queue) if is_verified else None,
        )

    async def _recover(self, error: KourouError) -> int:
        """Try to remedy the failure; return the delay before the next pull in ms."""
        if isinstance(error, FlowControlError):
            return _BUSY_DELAY_MS
        if isinstance(error, _UNREGISTERED):
            # A restarted broker does not know this member or its subscription yet.
            log.info("pull.unregistered queue=%s reason=%s", self._queue, error)
            await self._register()
            return self._config.pull_error_delay_ms
        self._broker_id = MASTER_ID
        if isinstance(error, ProtocolError | CodecMissingError):
            log.error(
                "pull.unreadable queue=%s offset=%d reason=%s", self._queue, self._offset, error
            )
            self.problem = str(error)
            return _UNREADABLE_DELAY_MS
        if error.refresh_route:
            self._instance.routes.refresh_soon(self._queue.topic)
        self._was_deleted |= isinstance(error, TopicNotFoundError)
        level = logging.DEBUG if self.is_failing else logging.WARNING
        self.is_failing = True
        log.log(level, "pull.failed queue=%s offset=%d reason=%s", self._queue, self._offset, error)
        return self._config.pull_error_delay_ms

    async def _register(self) -> None:
        try:
            await self._instance.heartbeat(await self._address())
        except KourouError as error:
            log.warning("pull.not_registered queue=%s reason=%s", self._queue, error)

    async def _address(self) -> str:
        return await self._instance.routes.address(
            self._queue.topic,
            self._queue.broker_name,
            self._instance.request_timeout_s,
            None if self._broker_id == MASTER_ID else self._broker_id,
        )


_UNREGISTERED: Final = (
    SubscriptionNotFoundError,
    SubscriptionNotLatestError,
    FilterNotFoundError,
    FilterNotLatestError,
)
