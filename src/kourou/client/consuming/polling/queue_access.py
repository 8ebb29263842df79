"""Reads queues at offsets that the caller chooses, queries and commits offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from kourou.client import calls_consume
from kourou.client.consuming.acknowledging.redelivery import (
    RetryLater,
    level_not_shorter,
    redelivery_of,
)
from kourou.client.consuming.acknowledging.retry_send import send_to_retry_topic
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.instance import ClientInstance
from kourou.client.pull_result import PullResult
from kourou.client.retrying import Deadline
from kourou.errors import (
    CodecMissingError,
    KourouError,
    MalformedMessageError,
    NoRouteError,
    RemoteError,
    UsageError,
)
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, subscribe_queues
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import check_topic

CALLBACKS_MAX: Final = 1_024
"""Pulls with a callback that may be pending at a time."""

MESSAGES_MAX: Final = 1_024
"""Most messages of one pull; brokers return fewer anyway."""


class QueueAccess:
    """Requests of a pull consumer about single queues; keeps no position between calls.

    Every call is retried after temporary failures, until its timeout, and can be cancelled. Reading
    changes nothing, so it may be repeated.

    All calls raise TransportError if no answer arrives in time, RemoteError if the broker refuses,
    and ClosedError if the client is not open.

    Args:
        instance: the client's connections and routes.
        group: the group of committed offsets, for which brokers count reads.
        config: limits and timeouts.
    """

    def __init__(self, instance: ClientInstance, group: str, config: PullConsumerConfig) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._suggested: dict[MessageQueue, int] = {}
        self._callbacks = 0  # pending pulls with a callback

    async def queues_of(self, topic: str) -> list[MessageQueue]:
        """Look up and return the readable queues of a topic, sorted."""
        self._instance.check_open()
        check_topic(topic)
        route = await self._instance.routes.refresh(topic, self._instance.request_timeout_s)
        return subscribe_queues(topic, route)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        max_messages: int,
        times_ms: tuple[int, int],
    ) -> PullResult:
        """Return the messages of a queue from a queue offset on.

        Args:
            queue: the queue.
            offset: the queue offset to start at.
            subscription: the filter.
            max_messages: 1 to `MESSAGES_MAX`.
            times_ms: how long the broker may hold the pull, and the timeout of the call.

        Raises:
            UsageError: an argument is out of its range.
        """
        result = await self.pull_raw(queue, offset, subscription, max_messages, times_ms)
        try:
            result.decode()  # it may lower `next_offset`, which the caller may read first
        except (MalformedMessageError, CodecMissingError):
            pass  # raised again when the caller reads the messages
        return result

    async def pull_raw(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        max_messages: int,
        times_ms: tuple[int, int],
        *,
        master_only: bool = False,
        topic_begin: int | None = None,
    ) -> PullResult:
        """Return the stored records of a queue from a queue offset on, without decoding them.

        A caller that does not use `PullResult.decode` must compute the offset of its next pull
        itself: `next_offset` assumes that all records can be decoded.

        Args:
            queue: as in `pull`.
            offset: as in `pull`.
            subscription: as in `pull`.
            max_messages: as in `pull`.
            times_ms: as in `pull`.
            master_only: ignore the broker's suggestion to pull from a slave, which may hold fewer
                messages than the master.
            topic_begin: identifies the topic, see `TOPIC_BEGIN_FIELD`; None: it is not checked.

        Raises:
            UsageError: as `pull`.
        """
        wait_ms, timeout_ms = times_ms
        _check_offset(offset)
        if not 1 <= max_messages <= MESSAGES_MAX:
            raise UsageError(f"max_messages is {max_messages}: allowed are 1 to {MESSAGES_MAX}")
        wait_until = Deadline(wait_ms)

        async def call(address: str, deadline: Deadline) -> PullResult:
            suspend_ms = int(wait_until.remaining_s() * 1000)
            return await calls_consume.pull(
                self._instance.pool,
                address,
                self._group,
                queue,
                offset,
                subscription=subscription,
                max_messages=max_messages,
                max_bytes=self._config.pull_bytes_max,
                timeout_s=deadline.remaining_s(),
                suspend_ms=suspend_ms or None,
                topic_begin=topic_begin,
            )

        broker_id = MASTER_ID if master_only else self._suggested.get(queue)
        try:
            result = await self._instance.call_broker(queue, timeout_ms, call, broker_id=broker_id)
        except BaseException:
            self._suggested.pop(queue, None)  # the slave may be gone; the master knows another
            raise
        if result.suggested_broker_id != MASTER_ID:
            self._suggested[queue] = result.suggested_broker_id
        else:
            self._suggested.pop(queue, None)
        return result

    def start_pull(
        self,
        pull: Callable[[], Awaitable[PullResult]],
        on_result: Callable[[PullResult], object],
        on_error: Callable[[KourouError], object] | None,
        name: str,
    ) -> None:
        """Run `pull` in a task, then one of the callbacks.

        Args:
            pull: makes the pull.
            on_result: called with the result.
            on_error: called with the error of `pull`; None: the error is logged.
            name: the task's name.

        Raises:
            UsageError: `CALLBACKS_MAX` such pulls are pending.
        """
        self._instance.check_open()
        if self._callbacks >= CALLBACKS_MAX:
            raise UsageError(f"{CALLBACKS_MAX} pulls are pending already: wait for some of them")
        self._callbacks += 1

        async def run() -> None:
            try:
                result = await pull()
            except KourouError as error:
                if on_error is None:
                    raise
                on_error(error)
            else:
                on_result(result)
            finally:
                self._callbacks -= 1

        self._instance.tasks.start(run, name)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed queue offset; None if it has none."""
        committed = await self._instance.call_broker(
            queue,
            self._config.request_timeout_ms,
            lambda address, deadline: calls_consume.query_offset(
                self._instance.pool,
                address,
                self._group,
                queue,
                zero_if_new=False,
                timeout_s=deadline.remaining_s(),
            ),
        )
        return committed.offset

    async def commit_offset(
        self, queue: MessageQueue, offset: int, topic_begin: int | None = None
    ) -> None:
        """Commit that the group has consumed all messages below `offset`.

        Args:
            queue: the queue.
            offset: a queue offset, which may be lower than before.
            topic_begin: identifies the topic, see `TOPIC_BEGIN_FIELD`; None: it is not checked.

        Raises:
            UsageError: the offset is negative.
        """
        _check_offset(offset)
        await self._instance.call_broker(
            queue,
            self._config.request_timeout_ms,
            lambda address, deadline: calls_consume.update_offset(
                self._instance.pool,
                address,
                self._group,
                queue,
                offset,
                timeout_s=deadline.remaining_s(),
                topic_begin=topic_begin,
            ),
        )

    async def give_back(self, message: MessageExt, error: Exception | None) -> None:
        """Have a message redelivered to the group; None: as `RetryLater()`.

        Raises:
            UsageError: `error` names other messages.
        """
        redelivery = redelivery_of(RetryLater() if error is None else error, message)
        if redelivery is None:
            raise UsageError(f"{type(error).__name__} names other messages than {message.msg_id}")
        timeout_ms = self._config.request_timeout_ms
        if redelivery.delay_ms is not None:
            try:
                await send_to_retry_topic(
                    self._instance,
                    self._group,
                    message,
                    max_reconsume_times=None,
                    timeout_s=timeout_ms / 1000,
                    redelivery=redelivery,
                )
            except (RemoteError, NoRouteError):  # no scheduled messages, or no retry topic yet
                redelivery = replace(
                    redelivery, level=level_not_shorter(redelivery.delay_ms), delay_ms=None
                )
            else:
                return
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        await self._instance.call_broker(
            queue,
            timeout_ms,
            lambda address, deadline: calls_consume.send_back(
                self._instance.pool,
                address,
                self._group,
                message,
                delay_level=redelivery.level,
                max_reconsume_times=None,
                timeout_s=deadline.remaining_s(),
                reason=redelivery.reason,
            ),
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the oldest stored queue offset."""
        return await self._instance.call_broker(
            queue,
            self._config.request_timeout_ms,
            lambda address, deadline: calls_consume.min_offset(
                self._instance.pool, address, queue, timeout_s=deadline.remaining_s()
            ),
        )

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to be stored."""
        return await self._instance.call_broker(
            queue,
            self._config.request_timeout_ms,
            lambda address, deadline: calls_consume.max_offset(
                self._instance.pool, address, queue, timeout_s=deadline.remaining_s()
            ),
        )

    async def offset_for_time(
        self, queue: MessageQueue, timestamp_ms: int, *, upper: bool = False
    ) -> int:
        """Return the queue offset of the first message stored at a time or later; see `upper`."""
        return await self._instance.call_broker(
            queue,
            self._config.request_timeout_ms,
            lambda address, deadline: calls_consume.search_offset(
                self._instance.pool,
                address,
                queue,
                timestamp_ms,
                upper=upper,
                timeout_s=deadline.remaining_s(),
            ),
        )


def _check_offset(offset: int) -> None:
    if offset < 0:
        raise UsageError(f"the queue offset {offset} is negative")
