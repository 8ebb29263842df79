"""No message that waits is lost when masters, and slaves that act for them, are killed.

Messages wait for a delay level, for their time, or for the end of their transaction.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from kourou.client.sending.transaction import TransactionState
from kourou.client.sending.transaction_producer import TransactionProducer
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.testing.cluster import Cluster
from tests.broker.replication.test_escape_bridge import (
    MASTER,
    OTHER,
    SLAVE,
    bodies,
    ending_in,
    run,
)
from tests.effort import some

QUEUE = MessageQueue("T", "broker-0", 0)
ROUNDS = 12


class Chaos:
    """Sends to one broker name, and kills and restarts its brokers and the others."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.down: set[int] = set()
        self.sent: set[bytes] = set()
        self.rolled_back: set[bytes] = set()
        self.count = 0
        self.has_killed_slave = False

    def outcome(self, body: bytes) -> TransactionState:
        """Return how the transaction of a message ends."""
        return TransactionState.ROLLBACK if body in self.rolled_back else TransactionState.COMMIT

    async def run(self, producer: TransactionProducer) -> None:
        for _ in range(ROUNDS):
            if MASTER not in self.down:
                await self.send(producer)
            await asyncio.sleep(self.rng.uniform(0, 30))
            await self.turn(self.rng.choice((MASTER, MASTER, SLAVE, OTHER)))
        for index in sorted(self.down):
            await self.cluster.restart_broker(index)
        await asyncio.sleep(240)

    async def turn(self, index: int) -> None:
        """Kill a broker, or start it again."""
        if index in self.down:
            await self.cluster.restart_broker(index)
            self.down.remove(index)
        else:
            await self.cluster.kill_broker(index)
            self.down.add(index)
            self.has_killed_slave |= index == SLAVE

    async def send(self, producer: TransactionProducer) -> None:
        for _ in range(self.rng.randrange(10)):
            self.count += 1
            body = b"%d" % self.count
            if self.rng.random() < 0.3:
                await self.send_in_transaction(producer, body)
                continue
            message = Message("T", body, delay_level=self.rng.randrange(2, 6))
            if self.rng.random() < 0.5:
                message = Message("T", body, delay_ms=self.rng.randrange(2_000, 90_000))
            try:
                await producer.send(message, queue=QUEUE, timeout_ms=2_000)
            except KourouError:
                continue
            self.sent.add(body)

    async def send_in_transaction(self, producer: TransactionProducer, body: bytes) -> None:
        """Send a message whose transaction ends at once, or by a check."""
        if self.rng.random() < 0.3:
            self.rolled_back.add(body)
        first = self.outcome(body) if self.rng.random() < 0.5 else TransactionState.UNKNOWN
        try:
            await producer.send_in_transaction(
                Message("T", body), ending_in(first), queue=QUEUE, timeout_ms=2_000
            )
        except KourouError:
            return
        if body not in self.rolled_back:
            self.sent.add(body)


@pytest.mark.parametrize("seed", some(range(40), 3))
def test_every_acknowledged_message_is_delivered(seed: int) -> None:
    async def test(cluster: Cluster) -> None:
        chaos = Chaos(cluster, random.Random(seed))
        check = lambda half: chaos.outcome(half.body)  # noqa: E731
        async with cluster.transaction_producer(check) as producer:
            await chaos.run(producer)
        found = bodies(cluster, MASTER) + bodies(cluster, OTHER)
        assert chaos.sent - {*found} == set()
        assert chaos.rolled_back & {*found} == set()
        if not chaos.has_killed_slave:  # else what it has not saved may be repeated
            assert len(found) - len({*found}) <= len(chaos.sent) // 4

    run(test)
