"""PullConsumer: reads queues at offsets that the caller chooses."""

from __future__ import annotations

from typing import Final

from kourou.client import calls_consume
from kourou.client.consumer_config import PullConsumerConfig
from kourou.client.instance import ClientInstance
from kourou.client.lifetime import CallingClient
from kourou.client.pull_result import PullResult, PullStatus
from kourou.client.retrying import Deadline
from kourou.errors import UsageError
from kourou.filter.tags import parse_tags
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, subscribe_queues
from kourou.model.subscription import SUB_ALL
from kourou.model.topic import check_client_group, check_topic
from kourou.remoting.runtime import Runtime

__all__ = ["PullConsumer", "PullResult", "PullStatus"]

MESSAGES_MAX: Final = 1_024
"""Messages of one pull; brokers give fewer anyway."""


class PullConsumer(CallingClient):
    """Reads queues at offsets that the caller chooses; keeps no state between two calls.

    It is no member of its group: brokers do not list it, and it takes nothing away from the group's
    members. What it shares with them are the committed offsets.

        async with PullConsumer("audit", "localhost:9876") as consumer:
            for queue in await consumer.fetch_subscribe_message_queues("OrderPlaced"):
                result = await consumer.pull(queue, await consumer.min_offset(queue))

    Every call is tried again after failures that pass, until its timeout, and can be cancelled;
    reading changes nothing, so it may simply be called again. All calls raise ClosedError before
    `start` and after `close`.

    Args:
        group: whose offsets `committed` and `commit` mean, and whom brokers count reads for.
        namesrv_addr: `host:port`, or several joined by `;`.
        config: limits and timeouts.
        runtime: the outside world, for tests; None for the real one.

    Raises:
        InvalidGroupError, ConfigError: an argument is no valid name or address.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: str,
        *,
        config: PullConsumerConfig | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        check_client_group(group)
        self.group = group
        self._config = config or PullConsumerConfig()
        super().__init__(ClientInstance(namesrv_addr, self._config, runtime, kind="pull consumer"))
        self._suggested: dict[MessageQueue, int] = {}

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of the topic that can be read, sorted, freshly looked up.

        Raises:
            InvalidTopicError: the topic is no valid name.
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
        max_messages: int = 32,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Return the messages of `queue` from the queue offset `offset` on, without waiting.

        Args:
            queue: the queue.
            offset: the first queue offset wanted.
            tags: `*`, or tags joined by `||`.
            max_messages: at most so many, 1 to 1,024; the broker may give fewer.
            timeout_ms: None for `pull_timeout_ms`.

        Returns:
            The messages, or why there are none; go on at its `next_offset` in any case.

        Raises:
            UsageError: an argument is out of its range, or the consumer closed.
            FilterSyntaxError: `tags` does not parse.
            TransportError: no answer within the timeout.
            RemoteError: the broker refused: no such topic, no permission.
        """
        timeout_ms = self._config.pull_timeout_ms if timeout_ms is None else timeout_ms
        return await self._pull(queue, offset, tags, max_messages, (0, timeout_ms))

    async def pull_or_wait(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        tags: str | None = SUB_ALL,
        max_messages: int = 32,
        wait_ms: int | None = None,
        timeout_ms: int | None = None,
    ) -> PullResult:
        """Return the messages of `queue` from `offset` on; wait for one if there is none.

        Args:
            queue: as in `pull`, and so the next three.
            offset: as in `pull`.
            tags: as in `pull`.
            max_messages: as in `pull`.
            wait_ms: how long to wait; then the status is NO_NEW_MSG. None for the config's.
            timeout_ms: for everything; None for `wait_ms` and `pull_timeout_ms` together.

        Raises:
            UsageError, TransportError, RemoteError: as `pull`.
        """
        wait_ms = self._config.wait_ms if wait_ms is None else wait_ms
        if timeout_ms is None:
            timeout_ms = wait_ms + self._config.pull_timeout_ms
        return await self._pull(queue, offset, tags, max_messages, (wait_ms, timeout_ms))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the queue offset that the group committed: its next message; None if none.

        Raises:
            TransportError, RemoteError: as `pull`.
        """
        return await self._instance.call_broker(
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

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit: the group has consumed everything below the queue offset `offset`.

        Returns when the broker has it in memory; it writes offsets to its disk every 5 seconds, so
        that a crash of the broker may take back the last ones. An offset may also go back.

        Raises:
            UsageError: the offset is negative, or the consumer closed.
            GroupNotFoundError: the broker does not know the group, and does not create it.
            TransportError, RemoteError: as `pull`.
        """
        _check_offset(offset)
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
            ),
        )

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the oldest queue offset that is stored; equal to `max_offset` if none is.

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
        """Return the queue offset that the next message will have.

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
            upper: the last message stored at that time or before, instead.

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
        tags: str | None,
        max_messages: int,
        times_ms: tuple[int, int],
    ) -> PullResult:
        """Pull, waiting and in all at most so long, in ms."""
        wait_ms, timeout_ms = times_ms
        _check_offset(offset)
        if not 1 <= max_messages <= MESSAGES_MAX:
            raise UsageError(f"max_messages is {max_messages}: allowed are 1 to {MESSAGES_MAX}")
        subscription = parse_tags(queue.topic, tags)
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
            self._suggested.pop(queue, None)  # the replica may be gone; the master knows another
            raise
        if result.suggested_broker_id != MASTER_ID:
            self._suggested[queue] = result.suggested_broker_id
        else:
            self._suggested.pop(queue, None)
        return result


def _check_offset(offset: int) -> None:
    if offset < 0:
        raise UsageError(f"the queue offset {offset} is negative")
