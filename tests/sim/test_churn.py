"""Twenty consumers join and leave at random for an hour: nothing is lost, in order or not.

Members join, close, or vanish without a word; the seed decides when. Of a queue that is consumed in
order, only one member has a message at any time, and none is passed by. Between two messages of the
group lie no more than 20 s, but where a member vanished: its locks have to expire.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

TOPIC = "churned"
QUEUES = 6
BROKERS = 1
MEMBERS_MAX = 20
HOUR_S = 3600
SEND_EVERY_S = 10.0
GAP_MAX_S = 20.0


@dataclass
class _History:
    """What the members did.

    Attributes:
        got: offsets given to listeners of each queue, in order.
        busy: who has a message of a queue now.
        dead: who vanished.
        gap_s: the longest time that a message waited for its listener.
    """

    is_ordered: bool
    got: defaultdict[MessageQueue, list[int]] = field(default_factory=lambda: defaultdict(list))
    busy: dict[MessageQueue, str] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    gap_s: float = 0.0

    async def take(self, client_id: str, message: MessageExt, work_s: float) -> None:
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        now_s = asyncio.get_running_loop().time()
        self.gap_s = max(self.gap_s, now_s - float(message.body))
        self.got[queue].append(message.queue_offset)
        if self.is_ordered:
            owner = self.busy.get(queue)
            assert owner is None or owner in self.dead, f"{owner} and {client_id} have {queue}"
            self.busy[queue] = client_id
        await asyncio.sleep(work_s)
        if self.is_ordered:
            del self.busy[queue]


class _Churn:
    """The members, of which some come and others go."""

    def __init__(self, cluster: Cluster, dice: Random, history: _History) -> None:
        self._cluster = cluster
        self._dice = dice
        self._history = history
        self._members: list[PushConsumer] = []
        self._names = itertools.count()
        self._changes: set[asyncio.Task[None]] = set()

    async def run(self, *, may_vanish: bool) -> None:
        """Let members come and go for an hour, and two that stay finish what is left."""
        await asyncio.gather(self._join(), self._join())
        ends_s = asyncio.get_running_loop().time() + HOUR_S
        while asyncio.get_running_loop().time() < ends_s:
            await asyncio.sleep(self._dice.uniform(5, 60))
            chance = self._dice.random()
            if len(self._members) < 2 or (len(self._members) < MEMBERS_MAX and chance < 0.5):
                self._start(self._join())
            elif may_vanish and chance > 0.95:
                member = self._members.pop(self._dice.randrange(len(self._members)))
                self._history.dead.add(member.client_id)
                member.abort()
            else:
                member = self._members.pop(self._dice.randrange(len(self._members)))
                self._start(member.close())
        await asyncio.gather(*self._changes)

    async def close(self) -> None:
        """Close all members."""
        await asyncio.gather(*(member.close() for member in self._members))

    def _start(self, change: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _join(self) -> None:
        config = PushConsumerConfig(
            instance_name=f"member-{next(self._names)}",
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
        self._members.append(consumer)


async def _send(cluster: Cluster, until_s: float) -> Counter[MessageQueue]:
    """Send a message to each queue in turn until then; return how many each queue has."""
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


@pytest.mark.parametrize(
    ("seed", "is_ordered", "may_vanish"),
    [
        pytest.param(1, True, True, id="ordered-vanishing"),
        pytest.param(2, False, False, id="concurrent-planned"),
        pytest.param(3, True, False, id="ordered-planned", marks=pytest.mark.slow),
        pytest.param(4, False, True, id="concurrent-vanishing", marks=pytest.mark.slow),
    ],
)
def test_members_that_come_and_go_lose_nothing(
    seed: int, *, is_ordered: bool, may_vanish: bool
) -> None:
    history = _History(is_ordered)

    async def main() -> None:
        dice = Random(seed)
        async with Cluster(seed=seed, brokers=BROKERS) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
            churn = _Churn(cluster, dice, history)
            until_s = asyncio.get_running_loop().time() + HOUR_S
            sending = asyncio.create_task(_send(cluster, until_s))
            await churn.run(may_vanish=may_vanish)
            sent = await sending
            await asyncio.sleep(120)
            await churn.close()
            check(sent)

    def check(sent: Counter[MessageQueue]) -> None:
        assert len(sent) == QUEUES * BROKERS
        for queue, count in sent.items():
            got = history.got[queue]
            assert set(got) == set(range(count)), f"{queue} lost {set(range(count)) - set(got)}"
            if is_ordered:
                # What comes again comes from where it was left, with all that follows.
                assert list(dict.fromkeys(got)) == sorted(set(got))
            if not may_vanish:
                assert len(got) == count, f"{queue} gave out {len(got) - count} twice"
        limit_s = GAP_MAX_S + (65 if may_vanish and is_ordered else 0)
        assert history.gap_s < limit_s, f"a message waited {history.gap_s:.1f} s"

    run_virtual(main())
