"""Twenty consumers join and leave at random: no message is lost, in order or not.

Each member stays for a while, closes or vanishes without closing, and joins again; the seed
determines the times. In an ordered group, only one member consumes a queue at any time, and no
message is skipped. No message waits longer than 20 s for its listener, unless a member vanished
while it held queue locks, which then have to expire.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

TOPIC = "churned"
QUEUES = 12
CONSUMERS = 20
LAST_S = 120.0
"""Time that the last members stay after the end, to consume the remaining messages."""
VANISHING = 0.2
SEND_EVERY_S = 20.0
GAP_MAX_S = 20.0
EXPIRY_MAX_S = 65.0
"""Limit of the expiry of a queue lock at the broker: a minute, and the check for it."""


@dataclass(frozen=True)
class Pace:
    """Times of a run in s: its own, and the longest that a member stays or is away."""

    duration_s: int
    stays_max_s: int
    away_max_s: int


@dataclass
class _History:
    """Record of the members' deliveries.

    Attributes:
        received: offsets delivered to listeners, by queue, in order.
        busy: the member whose listener has a message of the queue now.
        dead: vanished members, and the time.
        gaps: first deliveries that were too late: their time, and how long the message waited.
        there: current number of members.
        most: largest number of members.
        changes: number of joins and leaves.
    """

    is_ordered: bool
    received: defaultdict[MessageQueue, list[int]] = field(
        default_factory=lambda: defaultdict(list)
    )
    busy: dict[MessageQueue, str] = field(default_factory=dict)
    dead: dict[str, float] = field(default_factory=dict)
    gaps: list[tuple[float, float]] = field(default_factory=list)
    there: int = 0
    most: int = 0
    changes: int = 0

    def count(self, change: int) -> None:
        """Record that a member joined (1) or left (-1)."""
        self.there += change
        self.most = max(self.most, self.there)
        self.changes += 1

    async def take(self, client_id: str, message: MessageExt, work_s: float) -> None:
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        now_s = asyncio.get_running_loop().time()
        waited_s = now_s - float(message.body)
        if waited_s >= GAP_MAX_S and message.queue_offset not in self.received[queue]:
            self.gaps.append((now_s, waited_s))
        self.received[queue].append(message.queue_offset)
        if self.is_ordered:
            owner = self.busy.get(queue)
            if owner is not None and owner not in self.dead:
                # Raised here, it would count as the listener's failure; the loop fails the test.
                error = AssertionError(f"{owner} and {client_id} have {queue}")
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "two have a queue", "exception": error}
                )
            self.busy[queue] = client_id
        await asyncio.sleep(work_s)
        if self.is_ordered:
            self.busy.pop(queue, None)

    def unexplained_gaps(self) -> list[tuple[float, float]]:
        """Return the gaps that are not explained by the lock of a vanished member."""
        return [
            (now_s, waited_s)
            for now_s, waited_s in self.gaps
            if not self.is_ordered
            or not any(
                now_s - EXPIRY_MAX_S - GAP_MAX_S < died_s < now_s for died_s in self.dead.values()
            )
        ]


class _Churn:
    """The consumers; each joins and leaves independently."""

    def __init__(
        self, cluster: Cluster, dice: Random, history: _History, pace: Pace, *, may_vanish: bool
    ) -> None:
        self._cluster = cluster
        self._pace = pace
        self._dice = dice
        self._history = history
        self._may_vanish = may_vanish
        self._ends_s = asyncio.get_running_loop().time() + pace.duration_s

    async def run(self) -> None:
        """Let all members join and leave; the last ones consume the rest."""
        async with asyncio.TaskGroup() as consumers:
            for number in range(CONSUMERS):
                consumers.create_task(self._come_and_go(f"consumer-{number}"))

    async def _come_and_go(self, name: str) -> None:
        loop, dice = asyncio.get_running_loop(), self._dice
        for life in itertools.count():
            await asyncio.sleep(dice.uniform(0, self._pace.away_max_s))
            if loop.time() >= self._ends_s:
                return
            consumer = await self._join(f"{name}-{life}")
            leaves_s = loop.time() + dice.uniform(0, self._pace.stays_max_s)
            if leaves_s >= self._ends_s:
                await asyncio.sleep(self._ends_s + LAST_S - loop.time())
                await consumer.close()
                return
            await asyncio.sleep(leaves_s - loop.time())
            await self._leave(consumer)

    async def _leave(self, consumer: PushConsumer) -> None:
        self._history.count(-1)
        if self._may_vanish and self._dice.random() < VANISHING:
            self._history.dead[consumer.client_id] = asyncio.get_running_loop().time()
            consumer.abort()
        else:
            await consumer.close()

    async def _join(self, name: str) -> PushConsumer:
        config = PushConsumerConfig(
            instance_name=name,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            consume_threads=4,
            pull_suspend_timeout_ms=60_000,
            pull_timeout_ms=70_000,
            persist_offset_interval_ms=20_000,
            heartbeat_interval_ms=60_000,
        )
        consumer = self._cluster.push_consumer("churners", config)
        consumer.subscribe(TOPIC)

        async def take(message: MessageExt) -> None:
            work_s = self._dice.choice([0.0, 0.01, 0.3])
            await self._history.take(consumer.client_id, message, work_s)

        if self._history.is_ordered:
            consumer.listen_orderly(take)
        else:
            consumer.listen(take)
        await consumer.start()
        self._history.count(1)
        return consumer


async def _send(cluster: Cluster, until_s: float) -> Counter[MessageQueue]:
    """Send a message to each queue in turn until `until_s`; return the number per queue."""
    sent: Counter[MessageQueue] = Counter()
    loop = asyncio.get_running_loop()
    async with cluster.producer() as producer:
        queues = await producer.fetch_publish_message_queues(TOPIC)
        for queue in itertools.cycle(queues):
            if loop.time() > until_s:
                return sent
            await producer.send(Message(TOPIC, b"%f" % loop.time()), queue=queue)
            sent[queue] += 1
            await asyncio.sleep(SEND_EVERY_S / len(queues))
    return sent


def assert_nothing_is_lost(seed: int, pace: Pace, *, is_ordered: bool, may_vanish: bool) -> None:
    """Run the members and check what their listeners got."""
    history = _History(is_ordered)

    async def main() -> None:
        async with Cluster(seed=seed) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            churn = _Churn(cluster, Random(seed), history, pace, may_vanish=may_vanish)
            until_s = asyncio.get_running_loop().time() + pace.duration_s
            sending = asyncio.create_task(_send(cluster, until_s))
            await churn.run()
            check(await sending)

    def check(sent: Counter[MessageQueue]) -> None:
        assert history.most > CONSUMERS * 3 // 4
        assert history.changes > 5 * CONSUMERS
        assert bool(history.dead) == may_vanish
        assert len(sent) == QUEUES
        for queue, count in sent.items():
            got = history.received[queue]
            assert set(got) == set(range(count)), f"{queue} lost {set(range(count)) - set(got)}"
            if is_ordered:
                # Redeliveries start at a lower offset and continue with all later ones.
                assert list(dict.fromkeys(got)) == sorted(set(got))
            if not may_vanish:
                assert len(got) == count, f"{queue}: {len(got) - count} redeliveries"
        assert not history.unexplained_gaps()
        longest_s = max((waited_s for _, waited_s in history.gaps), default=0)
        assert longest_s < GAP_MAX_S + EXPIRY_MAX_S

    run_virtual(main())
