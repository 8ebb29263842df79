"""A cluster with one topic, and consumers that record their deliveries.

Example:
    async with recording(queues=4) as w:
        await w.send(b"1", b"2")
        async with w.consumer():
            await w.until_received(b"1", b"2")
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.testing.cluster import Cluster

TOPIC: Final = "T"

_LOOK_INTERVAL_S: Final = 0.01


class Recording:
    """A cluster with topic `T`, and the deliveries to its consumers.

    Attributes:
        received: delivered bodies, in order.
        deliveries: delivered messages, in order.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.received: list[bytes] = []
        self.deliveries: list[MessageExt] = []

    async def send(self, *bodies: bytes, tags: str | None = None) -> None:
        """Send the messages one after the other."""
        async with self.cluster.producer() as producer:
            for body in bodies:
                await producer.send(Message(TOPIC, body, tags=tags))

    def consumer(
        self,
        listener: Callable[[MessageExt], Awaitable[object] | object] | None = None,
        *,
        group: str = "consumers",
        tags: str = "*",
        **options: Any,  # noqa: ANN401 - any option of PushConsumerConfig
    ) -> PushConsumer:
        """Return a consumer from the first offset on, which records messages for `listener`."""
        options = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET, **options}
        consumer = self.cluster.push_consumer(group, PushConsumerConfig(**options))
        consumer.subscribe(TOPIC, tags)

        async def listen(message: MessageExt) -> None:
            self.received.append(message.body)
            self.deliveries.append(message)
            if listener is not None:
                outcome = listener(message)
                if isinstance(outcome, Awaitable):
                    await outcome

        consumer.listen(listen)
        return consumer

    async def until(self, is_true: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Return as soon as `is_true()`, which is called every 10 ms of virtual time.

        Raises:
            TimeoutError: it is still false after `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            while not is_true():  # noqa: ASYNC110 - it may depend on anything at all
                await asyncio.sleep(_LOOK_INTERVAL_S)

    async def until_received(self, *bodies: bytes, timeout_s: float = 60.0) -> None:
        """Return when each of the bodies was delivered at least as often as it is listed."""
        wanted = Counter(bodies)
        await self.until(lambda: not wanted - Counter(self.received), timeout_s)

    async def committed(self, group: str = "consumers") -> int:
        """Return the sum of the group's committed offsets."""
        async with self.cluster.pull_consumer(group) as reader:
            queues = await reader.fetch_subscribe_message_queues(TOPIC)
            return sum([await reader.committed(queue) or 0 for queue in queues])


@asynccontextmanager
async def recording(
    *,
    queues: int = 4,
    brokers: int = 1,
    seed: int = 5,
    **options: Any,  # noqa: ANN401 - any option of BrokerConfig
) -> AsyncIterator[Recording]:
    """Run a cluster with topic `T`, with `queues` queues on each broker."""
    async with Cluster(seed=seed, brokers=brokers, **options) as cluster:
        async with cluster.admin() as admin:
            await admin.create_topic(TOPIC, queues=queues)
        yield Recording(cluster)
