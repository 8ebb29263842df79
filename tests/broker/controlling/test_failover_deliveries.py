"""Deliveries after a failover: of timers, levels, retries, half messages and popped messages."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PushConsumerConfig, SimpleConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.consuming.simple_consumer import SimpleConsumer
from kourou.client.sending.producer import Producer
from kourou.client.sending.transaction import TransactionState
from kourou.client.sending.transaction_producer import TransactionProducer
from kourou.errors import KourouError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import NAMESRV, ControlledCluster
from tests.broker.controlling.test_failover import records
from tests.effort import some

TIMED, PAID, POPPED, FAILING = TOPICS = ("timed", "paid", "popped", "failing")
KILLS = 2
INVISIBLE_MS = 15_000
FIRST = ConsumeFromWhere.FIRST_OFFSET


def bodies(disk: SimDisk, topic: str) -> Counter[bytes]:
    """Return the bodies in the log of a disk."""
    return Counter(body for name, _, body in records(disk) if name == topic)


class Work:
    """Clients that leave much to the broker, and what they have seen.

    Attributes:
        due: body -> when an acknowledged message is due, in epoch ms.
        decided: body of an acknowledged half message -> its outcome.
        acked: bodies of popped messages whose acknowledgement was answered.
        heard: body -> times of deliveries, in epoch ms.
    """

    def __init__(self, cluster: ControlledCluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.now_ms = cluster.runtime.clock.now_ms
        self.due: dict[bytes, int] = {}
        self.decided: dict[bytes, TransactionState] = {}
        self.acked: set[bytes] = set()
        self.came_back: list[bytes] = []
        self.sent: Counter[str] = Counter()
        self.heard: dict[bytes, list[int]] = {}
        self.is_over = False

    def check(self, message: MessageExt) -> TransactionState:
        """Decide a transaction that was left open."""
        return self.outcome(message.body)

    def outcome(self, body: bytes) -> TransactionState:
        is_kept = int(body.split()[1]) % 2
        return TransactionState.COMMIT if is_kept else TransactionState.ROLLBACK

    def listen(self, message: MessageExt) -> None:
        times = self.heard.setdefault(message.body, [])
        times.append(self.now_ms())
        if message.topic == FAILING and len(times) == 1:
            raise ValueError("comes again")

    async def send(self, number: int, producer: Producer, payer: TransactionProducer) -> None:
        """Send one message of some kind."""
        kind = self.rng.choice(TOPICS)
        body = b"%b %d" % (kind.encode(), number)
        try:
            if kind == PAID:
                is_open = self.rng.random() < 0.5
                left = TransactionState.UNKNOWN if is_open else self.outcome(body)
                await payer.send_in_transaction(Message(PAID, body), lambda _: left)
                self.decided[body] = self.outcome(body)
            elif kind == TIMED:
                delay_ms = self.rng.randrange(1_000, 40_000)
                level = self.rng.choice((0, 1, 2, 3))
                options = {"delay_level": level} if level else {"delay_ms": delay_ms}
                sent_at_ms = self.now_ms()
                await producer.send(Message(TIMED, body, **options))  # type: ignore[arg-type]
                self.due[body] = sent_at_ms + ((0, 1_000, 5_000, 10_000)[level] or delay_ms)
            else:
                await producer.send(Message(kind, body))
                self.due[body] = 0
            self.sent[kind] += 1
        except KourouError:
            pass  # it may be stored nevertheless

    async def pop(self) -> None:
        """Acknowledge half of what is popped, until the end; then all."""
        config = SimpleConsumerConfig(consume_from_where=FIRST)
        consumer = SimpleConsumer("poppers", NAMESRV, config=config, runtime=self.cluster.runtime)
        consumer.subscribe(POPPED)
        async with consumer:
            while not self.is_over:
                try:
                    popped = await consumer.receive(8, invisible_ms=INVISIBLE_MS, wait_ms=1_000)
                    for message in popped:
                        self.heard.setdefault(message.body, []).append(self.now_ms())
                        if message.body in self.acked:
                            self.came_back.append(message.body)
                        elif self.rng.random() < 0.6:
                            received_at_ms = self.now_ms()
                            await consumer.ack(message)
                            if self.now_ms() - received_at_ms < INVISIBLE_MS / 2:
                                self.acked.add(message.body)
                except KourouError:
                    await asyncio.sleep(0.5)

    async def run(self) -> None:
        runtime = self.cluster.runtime
        config = ProducerConfig(send_timeout_ms=20_000)
        producer = Producer("producers", NAMESRV, config=config, runtime=runtime)
        payer = TransactionProducer(
            "payers", NAMESRV, check=self.check, config=config, runtime=runtime,
            run_blocking=runtime.offload,
        )  # fmt: skip
        consumer = PushConsumer(
            "consumers",
            NAMESRV,
            config=PushConsumerConfig(consume_from_where=FIRST),
            runtime=runtime,
            run_blocking=runtime.offload,
        )
        for topic in (TIMED, PAID, FAILING):
            consumer.subscribe(topic)
        consumer.listen(self.listen)
        popping = asyncio.create_task(self.pop())
        async with producer, payer, consumer:
            killing = asyncio.create_task(self.kill())
            number = 0
            while not killing.done():
                number += 1
                await self.send(number, producer, payer)
                await asyncio.sleep(self.rng.random() / 2)
            await killing
            await self.cluster.until(lambda: len(self.cluster.in_sync()) == 3, 120)
            await asyncio.sleep(240)  # longer than any delay, check and invisible time
            self.is_over = True
            await popping

    async def kill(self) -> None:
        """End masters like kill -9, and start them again."""
        for _ in range(KILLS):
            await asyncio.sleep(5 + self.rng.random() * 10)
            await self.cluster.until(lambda: self.cluster.master() is not None)
            old = self.cluster.require_master()
            await self.cluster.kill(old)
            await asyncio.sleep(self.rng.choice((0.5, 8)))
            await self.cluster.start(old)
            await self.cluster.until(lambda: len(self.cluster.in_sync()) == 3, 60)


def run_deliveries(seed: int) -> None:
    async def main() -> None:
        async with ControlledCluster(3, seed) as cluster:
            for index in range(3):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == 3)
            async with AdminClient(NAMESRV, runtime=cluster.runtime) as admin:
                for topic in TOPICS:
                    await admin.create_topic(topic, queues=2)
            await asyncio.sleep(3)
            work = Work(cluster, seed)
            await work.run()
            assert min(work.sent.values()) > 2, work.sent
            missing = [body for body in work.due if body not in work.heard]
            assert missing == []
            early = [b for b, at_ms in work.due.items() if at_ms and work.heard[b][0] < at_ms]
            assert early == []
            once = [b for b in work.due if b.startswith(b"failing") and len(work.heard[b]) < 2]
            assert once == []
            for body, state in work.decided.items():
                assert (body in work.heard) == (state is TransactionState.COMMIT), body
            disk = cluster.disks[cluster.require_master()]
            popped = bodies(disk, POPPED)  # a send that was tried twice may be there twice
            assert [body for body in work.came_back if popped[body] == 1] == []
            for topic, known in ((TIMED, work.due), (PAID, work.decided)):
                twice = {b: n for b, n in bodies(disk, topic).items() if n > 1 and b in known}
                assert twice == {}, topic

    run_virtual(main())


@pytest.mark.parametrize("seed", some(range(30), 1))
def test_what_waits_on_a_broker_is_delivered_after_a_failover(seed: int) -> None:
    run_deliveries(seed)
