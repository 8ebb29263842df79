"""A well-behaved producer and consumer, which hostile clients must not disturb."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.producer import Producer
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt

PATIENCE_S = 120.0
"""How long a message may take to arrive before the test gives up."""


class GoodClients:
    """The messages sent and consumed by the two clients.

    Attributes:
        acknowledged: keys of the messages that the broker acknowledged.
        consumed: keys of the consumed messages.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[str] = set()
        self.consumed: set[str] = set()
        self._changed = asyncio.Event()

    async def exchange(self, count: int) -> int:
        """Wait until `count` more messages are acknowledged, and all so far are consumed.

        Returns:
            The number of messages that were acknowledged and consumed meanwhile.
        """
        before = len(self.acknowledged)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < before + count or not self.consumed >= self.acknowledged:
                self._changed.clear()
                await self._changed.wait()
        return len(self.acknowledged) - before

    async def send_for_ever(self, producer: Producer) -> None:
        for number in itertools.count():
            key = f"{self.topic}-{number}"
            await producer.send(Message(self.topic, key.encode(), keys=[key]))
            self.acknowledged.add(key)
            self._changed.set()

    def note(self, message: MessageExt) -> None:
        self.consumed.update(message.keys)
        self._changed.set()


@asynccontextmanager
async def good_clients(
    namesrv: str, topic: str, *, send_timeout_ms: int = 60_000
) -> AsyncIterator[GoodClients]:
    """Send and consume, one message after the other, until the block ends.

    A send that is not acknowledged within `send_timeout_ms`, retries included, fails the test. So
    does a message that is not consumed in the end.
    """
    clients = GoodClients(topic)
    consumer_config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PushConsumer(f"{topic}-readers", namesrv, config=consumer_config)
    consumer.subscribe(topic)
    consumer.listen(clients.note)
    config = ProducerConfig(send_timeout_ms=send_timeout_ms)
    async with Producer(f"{topic}-writers", namesrv, config=config) as producer:
        await producer.send(Message(topic, b"makes the topic"))
        async with consumer, asyncio.TaskGroup() as group:
            sending = group.create_task(clients.send_for_ever(producer))
            await clients.exchange(5)
            yield clients
            await clients.exchange(5)
            sending.cancel()
