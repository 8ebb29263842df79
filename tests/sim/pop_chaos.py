"""Members that pop are killed beside their broker, whose wall clock may jump, in virtual time.

The members are those of `tests/torture/chaos`: they forget, give back, postpone and acknowledge
messages, with or without order. The same judges examine each delivery. In addition, the log tells
whether a message was revived twice, which no member can see.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, cast

from kourou.broker.config import FlushDiskType
from kourou.broker.popping.checkpoint import CheckpointKey
from kourou.broker.popping.revived import REVIVED_MARK, revived_origin
from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import SimpleConsumerConfig
from kourou.errors import KourouError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message
from kourou.model.properties import decode_properties
from kourou.remoting.steady_time import steady_ms
from kourou.store.config import StoreConfig
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.retention import RetentionConfig
from kourou.store.state.file_sizes import log_files
from kourou.testing.clock import EPOCH_MS, LoopClock
from kourou.testing.cluster import Cluster
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.torture.chaos.ledger import body_of, key_of
from tests.torture.chaos.ordered_pops import judge_ordered
from tests.torture.chaos.pop_ledger import BrokerHistory, PopEvent, PopLedger
from tests.torture.chaos.popper import FATES, ORDERED_FATES, Popper

TOPIC: Final = "popped"
ORDERED_TOPIC: Final = "popped-in-order"
MEMBERS, ORDERED_MEMBERS = 3, 2
HOUR_MS: Final = 3_600_000
JUMPS_MS: Final = (HOUR_MS, 73 * HOUR_MS, -HOUR_MS)
DRIFT_MS: Final = 50
LAST_S: Final = 150
"""Time after the last kill in which all messages must be consumed."""
AFTER_S: Final = 15
"""Time after that in which no message may come back."""
SEGMENT_BYTES: Final = 64 * 1024
STORE: Final = StoreConfig(
    commitlog_segment_bytes=SEGMENT_BYTES,
    consumequeue_file_bytes=20 * 100,
    batch_queue_file_bytes=46 * 100,
    retention=RetentionConfig(
        clean_interval_ms=1_000, delete_when=";".join(f"{hour:02}" for hour in range(24))
    ),
)


@dataclass
class Findings:
    """Results of a run; nothing may be lost, wrong or revived twice.

    Attributes:
        lost: messages that no member has acknowledged.
        wrong: findings of the judges.
        twice: messages that were revived twice.
        kills: number of kills of the broker.
        sent, revived: number of messages.
    """

    lost: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    twice: list[tuple[CheckpointKey, int]] = field(default_factory=list)
    kills: int = 0
    sent: int = 0
    revived: int = 0


class _Group:
    """A topic, its producer and the group that pops it."""

    def __init__(self, run: _Run, topic: str, *, is_ordered: bool) -> None:
        self.topic, self.is_ordered = topic, is_ordered
        self.ledger = PopLedger()
        self.sent: set[str] = set()
        self._run = run

    @property
    def unfinished(self) -> set[str]:
        """Messages that no member has begun to acknowledge."""
        return self.sent - self.ledger.ack_begun

    async def send(self, is_over: asyncio.Event) -> None:
        cluster, dice = self._run.cluster, self._run.dice
        config = ProducerConfig(send_timeout_ms=4_000)
        async with cluster.producer(f"{self.topic}-producers", config) as producer:
            for number in itertools.count():
                if is_over.is_set():
                    return
                key = f"{self.topic}-{number}"
                try:
                    await producer.send(Message(self.topic, body_of(key), keys=[key]))
                except KourouError:
                    await asyncio.sleep(0)
                else:
                    self.sent.add(key)
                await asyncio.sleep(dice.uniform(0, 0.1))

    async def consume(self) -> None:
        """Let one member after the other consume, each until it is killed."""
        while True:
            await self._one_member(str(next(self._run.names)))

    async def _one_member(self, name: str) -> None:
        run = self._run
        config = SimpleConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            instance_name=name,
            ordered=self.is_ordered,
            max_reconsume_times=None,
            heartbeat_interval_ms=5_000,
        )
        consumer = run.cluster.simple_consumer(f"{self.topic}-group", config)
        consumer.subscribe(self.topic)
        try:
            await consumer.start()
        except KourouError:
            await asyncio.sleep(0.2)
            return
        is_killed = asyncio.Event()

        def report(event: PopEvent) -> None:
            if not is_killed.is_set():
                self.ledger.note(name, event)

        fates = ORDERED_FATES if self.is_ordered else FATES
        dice = Random(run.dice.random())
        popper = Popper(consumer, dice, fates, report, run.real_ms)
        popping = asyncio.create_task(popper.run())
        try:
            await asyncio.wait({popping}, timeout=run.dice.uniform(5, 25))
        finally:
            is_killed.set()
            popping.cancel()
            consumer.abort()
            await popper.abandon()
            await asyncio.gather(popping, return_exceptions=True)


class _Run:
    """One run."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.dice = Random(seed)
        self.names = itertools.count()
        self.kills: list[tuple[int, int]] = []
        self._clock = cast(LoopClock, cluster.runtime.clock)
        self._steps: list[tuple[int, int]] = []  # time, and by how much the clock is ahead
        self._ahead_ms = self._latest_ms = 0

    def real_ms(self) -> int:
        """Return the time by a clock that never jumps."""
        return EPOCH_MS + steady_ms()

    async def kill(self, until_ms: int) -> None:
        while steady_ms() < until_ms:
            await asyncio.sleep(self.dice.uniform(3, 10))
            began_ms = self.real_ms()
            await self.cluster.kill_broker()
            await asyncio.sleep(self.dice.uniform(0.1, 1.5))
            await self.cluster.restart_broker()
            self.kills.append((began_ms, self.real_ms()))

    async def jump(self, until_ms: int) -> None:
        """Let the wall clock jump and drift, and set it right each time."""
        while steady_ms() < until_ms:
            await asyncio.sleep(self.dice.uniform(1, 12))
            if self.dice.random() < 0.5:
                self._step(self.dice.choice(JUMPS_MS))
                await asyncio.sleep(self.dice.choice((0.3, 1, 4)))
            else:
                drift_ms = self.dice.choice((-DRIFT_MS, DRIFT_MS))
                for _ in range(10):
                    self._step(drift_ms)
                    await asyncio.sleep(1)
            self._step(-self._ahead_ms)

    def pass_all_times(self) -> None:
        """Set the clock behind all times that it had: what waits for one of them is due then."""
        self._step(self._latest_ms - self._ahead_ms + 60_000)

    def ahead_ms(self, from_ms: int, until_ms: int) -> int:
        """Return by how much the clock was ahead, at most, from one time to another."""
        before = max((step for step in self._steps if step[0] <= from_ms), default=(0, 0))
        found = [ahead for at_ms, ahead in self._steps if from_ms < at_ms <= until_ms]
        return max([before[1], *found])

    def _step(self, ms: int) -> None:
        self._ahead_ms += ms
        self._latest_ms = max(self._latest_ms, self._ahead_ms)
        self._clock.step(ms)
        self._steps.append((self.real_ms(), self._ahead_ms))


def run_pop_chaos(seed: int, duration_s: int, flush: FlushDiskType, *, has_jumps: bool) -> Findings:
    """Run for some virtual seconds, and return the findings."""
    findings = Findings()
    run_virtual(_run(findings, seed, duration_s, flush, has_jumps=has_jumps))
    return findings


async def _run(
    findings: Findings, seed: int, duration_s: int, flush: FlushDiskType, *, has_jumps: bool
) -> None:
    options: dict[str, Any] = {"store": STORE, "flush_disk_type": flush}
    async with Cluster(seed=seed, **options) as cluster:
        cluster.disk().now_ms = cluster.runtime.clock.now_ms
        run = _Run(cluster, seed)
        groups = [
            _Group(run, TOPIC, is_ordered=False),
            _Group(run, ORDERED_TOPIC, is_ordered=True),
        ]
        async with cluster.admin() as admin:
            for group in groups:
                await admin.create_topic(group.topic, queues=3)
        counts = {group: ORDERED_MEMBERS if group.is_ordered else MEMBERS for group in groups}
        members = [
            asyncio.create_task(group.consume())
            for group, count in counts.items()
            for _ in range(count)
        ]
        try:
            await _disturb(run, groups, duration_s, has_jumps=has_jumps)
        finally:
            for member in members:
                member.cancel()
            ends = await asyncio.gather(*members, return_exceptions=True)
        findings.wrong += [repr(end) for end in ends if isinstance(end, Exception)]
        findings.lost = set().union(*[group.unfinished for group in groups])
        findings.sent = sum(len(group.sent) for group in groups)
        findings.kills = len(run.kills)
        history = BrokerHistory(run.ahead_ms, run.kills, not has_jumps)
        _judge(findings, groups, history, cluster.disk())


async def _disturb(run: _Run, groups: list[_Group], duration_s: int, *, has_jumps: bool) -> None:
    """Send, kill and jump; then wait until all is consumed."""
    is_over = asyncio.Event()
    sending = asyncio.gather(*[group.send(is_over) for group in groups])
    until_ms = steady_ms() + duration_s * 1_000
    await asyncio.gather(run.kill(until_ms), *([run.jump(until_ms)] if has_jumps else []))
    is_over.set()
    await sending
    await asyncio.sleep(30)
    if has_jumps:
        run.pass_all_times()
    for _ in range(LAST_S):
        if not any(group.unfinished for group in groups):
            break
        await asyncio.sleep(1)
    await asyncio.sleep(AFTER_S)


def _judge(findings: Findings, groups: list[_Group], history: BrokerHistory, disk: SimDisk) -> None:
    copies, revived = _read_log(disk)
    findings.revived = len(revived)
    findings.twice = [origin for origin, count in revived.items() if count > 1]
    for group in groups:
        ledger = group.ledger
        if group.is_ordered:
            deliveries = itertools.chain.from_iterable(ledger.deliveries.values())
            ordered = judge_ordered(deliveries, history)
            findings.wrong += ordered.disorder + ordered.again + ordered.early + ordered.counts
        else:
            judged = ledger.judge(history, _is_stored_once(copies))
            findings.wrong += judged.again + judged.early + judged.counts


def _is_stored_once(copies: Counter[str]) -> Callable[[str], bool]:
    """A producer that tries again may store a message twice, which is then popped twice."""
    return lambda key: copies[key] == 1


def _read_log(disk: SimDisk) -> tuple[Counter[str], Counter[tuple[CheckpointKey, int]]]:
    """Return how often each message is stored, and how often each popped message was revived."""
    copies: Counter[str] = Counter()
    revived: Counter[tuple[CheckpointKey, int]] = Counter()
    for piece in walk_log(disk, log_files(disk, COMMITLOG), SEGMENT_BYTES, start=0):
        header = piece.header
        if header is None:
            continue
        if header.topic == TOPIC:
            copies[key_of(bytes(header.body(piece.buffer)))] += 1
        text = header.properties(piece.buffer)
        if REVIVED_MARK in text:
            origin = revived_origin(decode_properties(text))
            if origin is not None:
                revived[origin] += 1
    return copies, revived
