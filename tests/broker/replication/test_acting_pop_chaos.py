"""No popped message is lost when masters, and slaves that act for them, are killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from kourou.client.consuming.simple_consumer import SimpleConsumer
from kourou.client.pop_result import PoppedMessage
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.testing.cluster import Cluster
from tests.broker.replication.test_acting_pops import GROUP
from tests.broker.replication.test_escape_bridge import MASTER, OTHER, SLAVE, run
from tests.effort import some

QUEUE = MessageQueue("T", "broker-0", 0)
ROUNDS = 12
INVISIBLE_MS = 20_000


class Chaos:
    """Sends to one broker name, and kills and restarts its brokers and another one.

    Attributes:
        acked: messages whose acknowledgement was answered with success, and when.
        repeated: of these, the ones that were received again more than a request later.
        doubtful: messages with an acknowledgement, or a change, that may have been stored.
    """

    def __init__(self, cluster: Cluster, rng: random.Random, victims: Sequence[int]) -> None:
        self.cluster = cluster
        self.rng = rng
        self.down: set[int] = set()
        self.sent: set[bytes] = set()
        self.acked: dict[bytes, float] = {}
        self.repeated: set[bytes] = set()
        self.victims = victims
        self.doubtful: set[bytes] = set()
        self.count = 0

    async def run(self, producer: Producer, consumer: SimpleConsumer) -> None:
        popping = asyncio.create_task(self.pop(consumer))
        for _ in range(ROUNDS):
            if MASTER not in self.down:
                await self.send(producer)
            await asyncio.sleep(self.rng.choice((0.3, 2, 15, 30)))
            await self.turn(self.rng.choice(self.victims))
        for index in sorted(self.down):
            await self.cluster.restart_broker(index)
        async with asyncio.timeout(1_200):
            while self.sent - self.acked.keys():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(1)
        await asyncio.sleep(60)
        popping.cancel()
        await asyncio.wait([popping])

    async def turn(self, index: int) -> None:
        """Kill a broker, or start it again."""
        if index in self.down:
            await self.cluster.restart_broker(index)
            self.down.remove(index)
        else:
            await self.cluster.kill_broker(index)
            self.down.add(index)

    async def send(self, producer: Producer) -> None:
        for _ in range(self.rng.randrange(20)):
            self.count += 1
            body = b"%d" % self.count
            try:
                await producer.send(Message("T", body), queue=QUEUE, timeout_ms=2_000)
            except KourouError:
                continue
            self.sent.add(body)

    async def pop(self, consumer: SimpleConsumer) -> None:
        while True:
            if MASTER not in self.down and self.rng.random() < 0.8:
                await asyncio.sleep(3)  # so that the slave has messages to deliver
            try:
                got = await consumer.receive(4, invisible_ms=INVISIBLE_MS, wait_ms=2_000)
            except KourouError:
                await asyncio.sleep(0.5)
                continue
            for message in got:
                await self.settle(consumer, message)

    async def settle(self, consumer: SimpleConsumer, message: PoppedMessage) -> None:
        """Acknowledge most messages, and change the invisible time of others."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self.acked.get(message.body, now_s) > 1:
            self.repeated.add(message.body)
        choice = self.rng.random()
        try:
            if choice < 0.1:
                await consumer.change_invisible(message, self.rng.randrange(1_000, 60_000))
            elif choice < 0.8:
                await consumer.ack(message)
                self.acked.setdefault(message.body, now_s)
        except KourouError:
            self.doubtful.add(message.body)


@pytest.mark.parametrize(
    "victims", [(MASTER, MASTER, OTHER), (MASTER, MASTER, SLAVE, OTHER)], ids=["masters", "all"]
)
@pytest.mark.parametrize("seed", some(range(40), 1))
def test_every_message_is_acknowledged_in_the_end(seed: int, victims: Sequence[int]) -> None:
    async def test(cluster: Cluster) -> None:
        chaos = Chaos(cluster, random.Random(seed), victims)
        for index in (MASTER, OTHER):
            groups = cluster.broker(index).components.context.groups
            groups.get_or_create(GROUP, "")
            await groups.persist()
        async with cluster.producer() as producer, cluster.simple_consumer(GROUP) as consumer:
            consumer.subscribe("T")
            await chaos.run(producer, consumer)
        if SLAVE not in victims:  # else what it has not saved, or handed back, is repeated
            assert chaos.repeated <= chaos.doubtful

    run(test)
