"""QueueAccess: reads queues at offsets that the caller chooses, queries and commits offsets."""

from __future__ import annotations

from collections.abc import Callable
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
from kourou.client.consuming.membership.subscriptions import subscription_of
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import CallingClient
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
from kourou.model.subscription import SUB_ALL, SubscriptionData
from kourou.model.topic import check_topic

CALLBACKS_MAX: Final = 1_024
"""Pulls with a callback that may be pending at a time."""

MESSAGES_MAX: Final = 1_024
"""Most messages of one pull; brokers return fewer anyway."""


class QueueAccess(CallingClient):
    """The methods of a pull consumer that keep no position between calls.

    Every call is retried after temporary failures, until its timeout, and can be cancelled. Reading
    changes nothing, so it may be repeated. All calls raise ClosedError before `start` and after
    `close`.

    Args:
        instance: the client's connections and routes.
        group: the group of `committed` and `commit_offset`, for which brokers count reads.
        config: limits and timeouts.
    """

    def __init__(self, instance: ClientInstance, group: str, config: PullConsumerConfig) -> None:
        super().__init__(instance)
        self.group = group
        self._config = config
        self._suggested: dict[MessageQueue, int] = {}
        self._callbacks = 0  # pending pulls with a callback

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Look up and return the readable queues of the topic, sorted.

        Raises:
            InvalidTopicError: the topic is not a valid name.
            NoRouteError: no name server knows the topic.
            ConnectFailedError: no name server answered; the text names them.
        """
        self._instance.check_open()
        check_topic(topic)
        routes = self._instance.routes
        route = await routes.refresh(topic, self._instance.request_timeout_s)
        return subscribe_queues(topic, route)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str | None = SUB_ALL,
        sql: str | None = None,
        max_messages: int = 32,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Return the messages of `queue` from the queue offset `offset` on, without waiting.

        Args:
            queue: the queue.
            offset: the queue offset to start at.
            tags: `*`, or tags joined by `||`.
            sql: instead of tags, an SQL92 expression over properties; see `PushConsumer.subscribe`.
            max_messages: 1 to 1,024; the broker may return fewer.
            timeout_ms: None: `pull_timeout_ms`.

        Returns:
            The messages, or the reason why there are none; continue at its `next_offset` in any
            case.

        Raises:
            UsageError: an argument is out of its range, or the consumer is closed.
            FilterSyntaxError: the expression does not parse.
            TransportError: no response within the timeout.
            RemoteError: the broker refused: no such topic, no permission.
        """
        timeout_ms = self._config.pull_timeout_ms if timeout_ms is None else timeout_ms
        subscription = subscription_of(queue.topic, tags, sql)
        return await self._pull(queue, offset, subscription, max_messages, (0, timeout_ms))

    async def pull_or_wait(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str | None = SUB_ALL,
        sql: str | None = None,
        max_messages: int = 32,
        wait_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Return the messages of `queue` from `offset` on; wait for one if there is none.

        Args:
            queue: as in `pull`.
            offset: as in `pull`.
            tags: as in `pull`.
            sql: as in `pull`.
            max_messages: as in `pull`.
            wait_ms: time to wait for a message, then the status is NO_NEW_MSG. None: the config's.
            timeout_ms: for the whole call; None: `wait_ms` plus `pull_timeout_ms`.

        Raises:
            UsageError, TransportError, RemoteError: as `pull`.
        """
        wait_ms = self._config.wait_ms if wait_ms is None else wait_ms
        if timeout_ms is None:
            timeout_ms = wait_ms + self._config.pull_timeout_ms
        subscription = subscription_of(queue.topic, tags, sql)
        return await self._pull(queue, offset, subscription, max_messages, (wait_ms, timeout_ms))

    def pull_with_callback(
        self,
        queue: MessageQueue,
        offset: int,
        on_result: Callable[[PullResult], object],
        on_error: Callable[[KourouError], object] | None = None,
        *,
        tags: str | None = SUB_ALL,
        sql: str | None = None,
        max_messages: int = 32,
    ) -> None:
        """Start a pull like `pull_or_wait`, and return immediately.

        One of the callbacks is called once, on the event loop; exceptions that it raises are
        logged. Neither is called if the consumer closes first.

        Args:
            queue: as in `pull`.
            offset: as in `pull`.
            on_result: called with the result, which may have no message.
            on_error: called with the error of `pull_or_wait`; None: the error is logged.
            tags: as in `pull`.
            sql: as in `pull`.
            max_messages: as in `pull`.

        Raises:
            UsageError: `CALLBACKS_MAX` such pulls are pending.
            ClosedError: the consumer is not open.
        """
        self._instance.check_open()
        if self._callbacks >= CALLBACKS_MAX:
            raise UsageError(f"{CALLBACKS_MAX} pulls are pending already: wait for some of them")
        self._callbacks += 1

        async def pull() -> None:
            try:
                result = await self.pull_or_wait(
                    queue, offset, tags=tags, sql=sql, max_messages=max_messages
                )
            except KourouError as error:
                if on_error is None:
                    raise
                on_error(error)
            else:
                on_result(result)
            finally:
                self._callbacks -= 1

        self._instance.tasks.start(pull, f"pull {queue}")

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed queue offset, that of its next message; None if none.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
        committed = await self._instance.call_broker(
            queue,
            self._config.request_timeout_ms,
            lambda address, deadline: calls_consume.query_offset(
                self._instance.pool,
                address,
                self.group,
                queue,
                zero_if_new=False,
                timeout_s=deadline.remaining_s(),
            ),
        )
        return committed.offset

    async def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit that the group has consumed all messages below the queue offset `offset`.

        Returns when the broker has the offset in memory. It writes offsets to disk every 5 seconds,
        so a crash of the broker may lose the last ones. An offset may also be lower than before.

        Raises:
            UsageError: the offset is negative, or the consumer is closed.
            InvalidParameterError: the offset is beyond the end of the queue.
            GroupNotFoundError: the broker does not know the group, and does not create it.
            TransportError, RemoteError: as `pull`.
        """
        _check_offset(offset)
        await self._commit_offset(queue, offset)

    async def _commit_offset(
        self, queue: MessageQueue, offset: int, topic_begin: int | None = None
    ) -> None:
        await self._instance.call_broker(
            queue,
            self._config.request_timeout_ms,
            lambda address, deadline: calls_consume.update_offset(
                self._instance.pool,
                address,
                self.group,
                queue,
                offset,
                timeout_s=deadline.remaining_s(),
                topic_begin=topic_begin,
            ),
        )

    async def give_back(self, message: MessageExt, error: Exception | None = None) -> None:
        """Have a message redelivered to the group, as if a listener had raised `error`.

        It is redelivered through the group's retry topic. Push consumers of the group read that
        topic; a pull consumer does if it subscribes to `%RETRY%<group>`. This call does not
        acknowledge the message: the next poll or commit does, as for other messages.

        Args:
            message: as polled or pulled.
            error: `RetryLater`, `DeadLetter` or any other error; None: as `RetryLater()`.

        Raises:
            UsageError: `error` names other messages.
            TransportError, RemoteError: as `pull`; the message may be redelivered nevertheless.
        """
        redelivery = redelivery_of(RetryLater() if error is None else error, message)
        if redelivery is None:
            raise UsageError(f"{type(error).__name__} names other messages than {message.msg_id}")
        timeout_ms = self._config.request_timeout_ms
        if redelivery.delay_ms is not None:
            try:
                await send_to_retry_topic(
                    self._instance,
                    self.group,
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
                self.group,
                message,
                delay_level=redelivery.level,
                max_reconsume_times=None,
                timeout_s=deadline.remaining_s(),
                reason=redelivery.reason,
            ),
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the oldest stored queue offset; equal to `max_offset` if there is no message.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
        return await self._instance.call_broker(
            queue,
            self._config.request_timeout_ms,
            lambda address, deadline: calls_consume.min_offset(
                self._instance.pool, address, queue, timeout_s=deadline.remaining_s()
            ),
        )

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue offset of the next message to be stored.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
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
        """Return the queue offset of the first message stored at `timestamp_ms` or later.

        Args:
            queue: the queue.
            timestamp_ms: epoch milliseconds, by the broker's clock.
            upper: return that of the last message stored at that time or before, instead.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
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

    async def _pull(
        self,
        queue: MessageQueue,
        offset: int,
        subscription: SubscriptionData,
        max_messages: int,
        times_ms: tuple[int, int],
    ) -> PullResult:
        """Pull; `times_ms`: how long the broker may hold the pull, and the total timeout, in ms."""
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
                self.group,
                queue,
                offset,
                subscription=subscription,
                max_messages=max_messages,
                max_bytes=self._config.pull_bytes_max,
                timeout_s=deadline.remaining_s(),
                suspend_ms=suspend_ms or None,
            )

        broker_id = self._suggested.get(queue, MASTER_ID)
        try:
            result = await self._instance.call_broker(queue, timeout_ms, call, broker_id=broker_id)
        except BaseException:
            self._suggested.pop(queue, None)  # the slave may be gone; the master knows another
            raise
        if result.suggested_broker_id != MASTER_ID:
            self._suggested[queue] = result.suggested_broker_id
        else:
            self._suggested.pop(queue, None)
        try:
            result.decode()  # it may lower `next_offset`, which the caller may read first
        except (MalformedMessageError, CodecMissingError):
            pass  # raised again when the caller reads the messages
        return result


def _check_offset(offset: int) -> None:
    if offset < 0:
        raise UsageError(f"the queue offset {offset} is negative")
