"""Wall clocks that jump forward and back, and drift: no message is lost or early.

The wall clock of a whole cluster is set by seconds, an hour or 73 hours, and back again or not,
while brokers are killed. A message may be delivered before its time only if the clock had reached
that time. All acknowledged messages are consumed, all transactions end, and nothing expires,
because no real hour passes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import pytest

from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.client.config import ProducerConfig
from kourou.client.consuming.acknowledging.redelivery import RetryLater
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.sending.producer import Producer
from kourou.client.sending.transaction import TransactionState
from kourou.client.sending.transaction_producer import TransactionProducer
from kourou.errors import KourouError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.remoting.steady_time import steady_ms
from kourou.store.config import StoreConfig
from kourou.store.retention import RetentionConfig
from kourou.testing.clock import LoopClock
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.effort import some

MIXED, ORDERS = "Mixed", "Orders"
HOUR_MS = 3_600_000
JUMPS_MS = (1_000, HOUR_MS, 73 * HOUR_MS)
LEVELS_MS = (1_000, 5_000, 10_000, 30_000, 60_000)
TOLERANCE_MS = 5
FAULTS_S = 150.0
FROM_FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
OPTIONS: dict[str, Any] = {
    "message_delay_level": " ".join(f"{ms // 1_000}s" for ms in LEVELS_MS),
    "transactions": TransactionConfig(timeout_ms=3_000, check_interval_ms=10_000),
    "store": StoreConfig(
        commitlog_segment_bytes=64 * 1024,
        consumequeue_file_bytes=20 * 100,
        batch_queue_file_bytes=46 * 100,
        retention=RetentionConfig(
            clean_interval_ms=1_000, delete_when=";".join(f"{hour:02}" for hour in range(24))
        ),
    ),
}


@dataclass
class Due:
    """A delayed message: the times of its send, and its delay."""

    wall_ms: int
    steady_ms: int
    delay_ms: int


@dataclass
class Ledger:
    """Acknowledged and delivered messages.

    Attributes:
        said: steady time and wall clock, before and after each change of the wall clock.
    """

    clock: LoopClock
    acknowledged: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)
    due: dict[str, Due] = field(default_factory=dict)
    seen: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    orders: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    early: list[str] = field(default_factory=list)
    reported_times: list[tuple[int, int]] = field(default_factory=list)
    failed_once: set[str] = field(default_factory=set)

    def step(self, ms: int) -> None:
        """Set the clock, and record its time before and after."""
        self.reported_times.append((steady_ms(), self.clock.now_ms()))
        self.clock.step(ms)
        self.reported_times.append((steady_ms(), self.clock.now_ms()))

    def wait(self, key: str, delay_ms: int) -> None:
        """Record the send of a delayed message."""
        self.due[key] = Due(self.clock.now_ms(), steady_ms(), delay_ms)

    def note(self, message: MessageExt) -> None:
        """Record a delivery; the first one of some messages fails."""
        [key] = message.keys
        due = self.due.get(key)
        if due is not None and not self.seen[key]:
            answered = [wall for at, wall in self.reported_times if at >= due.steady_ms]
            latest_ms = max([*answered, self.clock.now_ms()])
            waited_ms = max(steady_ms() - due.steady_ms, latest_ms - due.wall_ms)
            if waited_ms < due.delay_ms - TOLERANCE_MS:
                self.early.append(f"{key} after {waited_ms} of {due.delay_ms} ms")
        self.seen[key].append(steady_ms())
        if key.endswith("7") and key not in self.failed_once:
            self.failed_once.add(key)
            raise RetryLater(level=1)

    def note_order(self, message: MessageExt) -> None:
        """Record a delivery to the ordered consumer."""
        [key] = message.keys
        self.seen[key].append(steady_ms())
        self.orders[key.partition("-")[0]].append(int(key.partition("-")[2]))

    def missing(self) -> set[str]:
        """Return the keys of messages that still have to be delivered."""
        wanted = self.acknowledged | self.committed
        again = {key for key in self.failed_once if len(self.seen[key]) < 2}
        return (wanted - {key for key, times in self.seen.items() if times}) | again


async def send_messages(ledger: Ledger, producer: Producer, dice: Random, until_ms: int) -> None:
    """Send messages of all kinds at random times until `until_ms`."""
    number = 0
    while steady_ms() < until_ms:
        number += 1
        kind = dice.choice(("plain", "level", "time", "order"))
        key = f"{kind}{dice.randrange(4)}-{number}" if kind == "order" else f"{kind}-{number}"
        delay_fields: dict[str, Any] = {}
        if kind == "level":
            delay_fields["delay_level"] = level = dice.randint(1, len(LEVELS_MS))
            ledger.wait(key, LEVELS_MS[level - 1])
        elif kind == "time":
            delay_fields["delay_ms"] = delay_ms = dice.choice((300, 2_500, 20_000, 70_000))
            ledger.wait(key, delay_ms)
        topic = ORDERS if kind == "order" else MIXED
        message = Message(
            topic, key.encode() + bytes(dice.randrange(1_000)), keys=[key], **delay_fields
        )
        queue = MessageQueue(ORDERS, "broker-0", int(key[5])) if kind == "order" else None
        try:
            await producer.send(message, queue=queue)
        except KourouError:
            continue  # not acknowledged
        ledger.acknowledged.add(key)
        await asyncio.sleep(dice.uniform(0, 0.5))


async def send_transactions(
    ledger: Ledger, producer: TransactionProducer, dice: Random, until_ms: int
) -> None:
    """Begin transactions; end some of them, and leave the others to checks."""
    number = 0
    while steady_ms() < until_ms:
        number += 1
        key = f"pay-{number}"
        is_kept = number % 3 > 0
        try:
            transaction = await producer.begin_transaction(Message(MIXED, b"pay", keys=[key]))
        except KourouError:
            continue
        (ledger.committed if is_kept else ledger.rolled_back).add(key)
        if number % 2:
            await asyncio.sleep(dice.uniform(0, 2))
            state = TransactionState.COMMIT if is_kept else TransactionState.ROLLBACK
            await producer.end_transaction(transaction, state)
        await asyncio.sleep(dice.uniform(0, 1))


async def set_clocks(ledger: Ledger, cluster: Cluster, dice: Random, until_ms: int) -> None:
    """Set the clock and kill the broker repeatedly; finally correct the clock."""
    off_ms = 0
    drift_ms = dice.choice((-50, 0, 50))  # per second: 5 %
    while steady_ms() < until_ms:
        fate = dice.random()
        if fate < 0.3:
            jump_ms = dice.choice(JUMPS_MS) * dice.choice((-1, 1))
            ledger.step(jump_ms)
            await asyncio.sleep(dice.choice((0.5, 3, 12)))
            if dice.random() < 0.7:
                ledger.step(-jump_ms)
            else:
                off_ms += jump_ms
        elif fate < 0.4:
            await cluster.kill_broker()
            await asyncio.sleep(dice.uniform(0, 2))
            await cluster.restart_broker()
        for _ in range(dice.randint(1, 8)):
            await asyncio.sleep(1)
            ledger.step(drift_ms)
            off_ms += drift_ms
    ledger.step(-off_ms)


async def until(condition: Callable[[], bool], seconds: int) -> None:
    """Wait until the condition holds, `seconds` of virtual time at most."""
    for _ in range(seconds):
        if condition():
            return
        await asyncio.sleep(1)


@pytest.mark.parametrize("seed", some([0, 4, 1, 6], 2))
def test_jumping_and_drifting_clocks_lose_no_message_and_deliver_none_early(seed: int) -> None:
    async def main() -> None:
        dice = Random(seed)
        async with Cluster(seed=seed, **OPTIONS) as cluster:
            clock = cast(LoopClock, cluster.runtime.clock)
            cluster.disk().now_ms = clock.now_ms
            ledger = Ledger(clock)
            async with cluster.admin() as admin:
                for topic in (MIXED, ORDERS):
                    await admin.create_topic(topic, queues=4)

            def check(message: MessageExt) -> TransactionState:
                is_kept = message.keys[0] in ledger.committed
                return TransactionState.COMMIT if is_kept else TransactionState.ROLLBACK

            consumer = cluster.push_consumer(config=FROM_FIRST)
            consumer.subscribe(MIXED)
            consumer.listen(ledger.note)
            orderly = cluster.push_consumer("orderly", config=FROM_FIRST)
            orderly.subscribe(ORDERS)
            orderly.listen_orderly(ledger.note_order)
            config = ProducerConfig(send_timeout_ms=4_000)
            payer = cluster.transaction_producer(check, "payers", config)
            until_ms = steady_ms() + int(FAULTS_S * 1_000)
            async with consumer, orderly, cluster.producer(config=config) as producer, payer:
                await asyncio.gather(
                    send_messages(ledger, producer, Random(seed + 100), until_ms),
                    send_transactions(ledger, payer, Random(seed + 200), until_ms),
                    set_clocks(ledger, cluster, dice, until_ms),
                )
                await until(lambda: not ledger.missing(), 150)
                late = {key for key in ledger.missing() if key not in ledger.due}
                # Due times computed while the clock was ahead are reached by advancing it again.
                latest_ms = max(wall_ms for _, wall_ms in ledger.reported_times)
                ledger.step(latest_ms + 100_000 - clock.now_ms())
                await until(lambda: not ledger.missing(), 150)
                await asyncio.sleep(60)

            assert len(ledger.acknowledged) > 100, "nothing was tested"
            assert not late
            assert not ledger.missing()
            assert not ledger.early
            assert not [key for key in ledger.rolled_back if ledger.seen[key]]
            for order, numbers in ledger.orders.items():
                first = list(dict.fromkeys(numbers))
                assert first == sorted(first), f"{order} out of order"
            async with cluster.pull_consumer() as reader:
                for topic in (MIXED, ORDERS):
                    for queue in await reader.fetch_subscribe_message_queues(topic):
                        assert await reader.min_offset(queue) == 0, f"{queue} expired"

    run_virtual(main())
