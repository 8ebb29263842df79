"""Shared by tests of ordered consumption: consumers that record the owner of each queue."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.queue_assignment import LockBatch, decode_locked_queues, encode_lock_batch
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.testing.recording import TOPIC, Recording

Listener = Callable[[MessageExt], Awaitable[object] | object]


class Ordered:
    """Ordered consumers of one topic.

    Attributes:
        got: bodies delivered of each queue id, in order, failed deliveries included.
        owners: of each queue id, the clients whose listener ran, one entry for each change.
    """

    def __init__(self, world: Recording) -> None:
        self._world = world
        self.received: defaultdict[int, list[bytes]] = defaultdict(list)
        self.owners: defaultdict[int, list[str]] = defaultdict(list)
        self._busy: dict[int, str] = {}

    def consumer(
        self,
        listener: Listener | None = None,
        *,
        group: str = "consumers",
        **options: Any,
    ) -> PushConsumer:
        """Return an ordered consumer from the first offset on whose deliveries are recorded."""
        consumer = self.bare(group=group, **options)

        async def listen(message: MessageExt) -> None:
            with self.noted(consumer, message):
                outcome = listener(message) if listener is not None else None
                if isinstance(outcome, Awaitable):
                    await outcome

        consumer.listen_orderly(listen)
        return consumer

    def bare(self, *, group: str = "consumers", **options: Any) -> PushConsumer:
        """Return a consumer from the first offset on, without a listener."""
        options = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET, **options}
        consumer = self._world.cluster.push_consumer(group, PushConsumerConfig(**options))
        consumer.subscribe(TOPIC)
        return consumer

    @contextmanager
    def noted(self, consumer: PushConsumer, message: MessageExt) -> Iterator[None]:
        """Record that a listener has a message; fail if another has one of the same queue."""
        queue_id, owner = message.queue_id, consumer.client_id
        if queue_id in self._busy:
            # Raised here, it would count as the listener's failure: the loop fails the test.
            error = AssertionError(f"{self._busy[queue_id]} and {owner} have queue {queue_id}")
            asyncio.get_running_loop().call_exception_handler(
                {"message": "two have a queue", "exception": error}
            )
        self._busy[queue_id] = owner
        self.received[queue_id].append(message.body)
        if self.owners[queue_id][-1:] != [owner]:
            self.owners[queue_id].append(owner)
        try:
            yield
        finally:
            self._busy.pop(queue_id, None)

    def forget(self, queue_id: int) -> None:
        """Record that the queue's owner has died."""
        self._busy.pop(queue_id, None)

    async def is_locked(self, queue_id: int = 0, group: str = "consumers") -> bool:
        """Return whether a member holds the lock of a queue; acquire it if not."""
        cluster = self._world.cluster
        pool = ConnectionPool(cluster.runtime, {}, ConnectionLimits())
        queue = MessageQueue(TOPIC, "broker-0", queue_id)
        body = encode_lock_batch(LockBatch(group, "probe", (queue,)))
        command = request(RequestCode.LOCK_BATCH_MQ, body=body)
        answer = await pool.request(format_address(cluster.broker_address()), command, 3)
        await pool.close()
        return queue not in decode_locked_queues(answer.body).queues
