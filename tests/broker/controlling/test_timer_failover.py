"""Slaves keep their timer files, so that each message is delivered once after failovers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.timer import timer_storage
from kourou.broker.timer.timer_config import TimerConfig
from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.store.timer.wheel_files import read_check
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import NAMESRV, ControlledCluster
from tests.effort import some
from tests.timed_records import timed_records

TOPIC = "timed"
WINDOW_SLOTS = 6
"""A message that waits longer than so many seconds is rolled."""


class TimedCluster(ControlledCluster):
    """Three replicas that roll messages often."""

    def config(self, index: int) -> BrokerConfig:
        timer = TimerConfig(timer_roll_window_slot=WINDOW_SLOTS)
        return replace(super().config(index), timer=timer)

    async def start_all(self) -> None:
        for index in range(3):
            await self.start(index)
        await self.until(lambda: len(self.in_sync()) == 3)
        async with AdminClient(NAMESRV, runtime=self.runtime) as admin:
            await admin.create_topic(TOPIC, queues=1)

    async def restart(self, index: int, *, is_power_cut: bool, after_s: float = 0.0) -> None:
        """End a replica without its saving anything, and start it again."""
        await self.kill(index)
        if is_power_cut:
            self.disks[index].crash()
        await asyncio.sleep(after_s)
        await self.start(index)

    @property
    def timed_producer(self) -> Producer:
        config = ProducerConfig(send_timeout_ms=20_000)
        return Producer("producers", NAMESRV, config=config, runtime=self.runtime)


class Timed:
    """A producer of scheduled messages, and what it was told.

    Attributes:
        due: body -> due time of an acknowledged message, in epoch ms.
        recalled: bodies of messages whose recall was acknowledged.
        recalling: bodies of those whose recall was begun.
    """

    def __init__(self, cluster: TimedCluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.due: dict[bytes, int] = {}
        self.recalled: set[bytes] = set()
        self.recalling: set[bytes] = set()
        self.is_over = False

    async def send(self) -> None:
        now_ms, rng, number = self.cluster.runtime.clock.now_ms, self.rng, 0
        async with self.cluster.timed_producer as producer:
            while not self.is_over:
                number += 1
                body = b"%d" % number
                delay_ms = rng.choice((20, 300, 1_200, 3_000, 9_000, 20_000))
                at_ms = now_ms() + delay_ms
                try:
                    receipt = await producer.send(Message(TOPIC, body, deliver_at_ms=at_ms))
                    if receipt.status is SendStatus.SEND_OK:
                        self.due[body] = at_ms
                    if rng.random() < 0.2 and delay_ms > 2_000 and receipt.recall_handle:
                        self.recalling.add(body)
                        await producer.recall(TOPIC, receipt.recall_handle)
                        self.recalled.add(body)
                except KourouError:
                    pass  # it may be stored nevertheless
                await asyncio.sleep(rng.choice((0.0, 0.02, 0.3)))

    def check(self, disk: SimDisk) -> None:
        sent, delivered = timed_records(disk, TOPIC)
        lost = [body for body in self.due if body not in delivered and body not in self.recalling]
        assert lost == []
        assert [body for body, at in delivered.items() if len(at) > sent[body]] == []
        early = [
            body for body, at_ms in self.due.items() for at in delivered.get(body, ()) if at < at_ms
        ]
        assert early == []
        assert [body for body in self.recalled if body in delivered] == []


def run_failovers(seed: int) -> None:
    """Send scheduled messages while replicas are killed, and check that each is delivered once."""

    async def main() -> None:
        rng = random.Random(seed)
        async with TimedCluster(3, seed) as cluster:
            await cluster.start_all()
            timed = Timed(cluster, seed)
            sending = asyncio.create_task(timed.send())
            for _ in range(rng.randint(2, 4)):
                await asyncio.sleep(rng.random() * 8)
                await cluster.until(lambda: cluster.master() is not None)
                master = cluster.require_master()
                victim = master if rng.random() < 0.7 else (master + 1) % 3
                after_s, is_power_cut = rng.choice((0.0, 1.0, 7.0)), rng.random() < 0.4
                await cluster.restart(victim, is_power_cut=is_power_cut, after_s=after_s)
                if rng.random() < 0.7:
                    await cluster.until(lambda: len(cluster.in_sync()) == 3, 60)
            await asyncio.sleep(3)
            timed.is_over = True
            await sending
            await cluster.until(lambda: len(cluster.in_sync()) == 3, 60)
            await asyncio.sleep(40)
            timed.check(cluster.disks[cluster.require_master()])
            disks = cluster.disks
        assert [one for disk in disks for one in check_store(disk).findings] == []

    run_virtual(main())


@pytest.mark.parametrize("seed", some(range(60), 2))
def test_each_scheduled_message_is_delivered_once_after_failovers(seed: int) -> None:
    run_failovers(seed)


def test_new_master_has_its_timers_without_a_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with TimedCluster(3) as cluster:
            await cluster.start_all()
            at_ms = cluster.runtime.clock.now_ms() + 15_000
            async with cluster.timed_producer as producer:
                for number in range(600):
                    await producer.send(Message(TOPIC, b"%d" % number, deliver_at_ms=at_ms))
                    await asyncio.sleep(0.002)
            await asyncio.sleep(2.5)  # a flush, and a copy of the progress
            old = cluster.require_master()
            monkeypatch.setattr(timer_storage, "rebuild_timers", None)  # it would fail
            await cluster.kill(old)
            await cluster.until(lambda: cluster.master() not in (None, old))
            new = cluster.master_broker()
            await cluster.until(lambda: new.components.timers.has_recovered, 0.5)
            await asyncio.sleep(25)
            sent, delivered = timed_records(cluster.disks[cluster.require_master()], TOPIC)
            assert (len(sent), len(delivered)) == (600, 600)
            assert all(len(times) == 1 for times in delivered.values())
            assert all(at_ms <= times[0] for times in delivered.values())

    run_virtual(main())


def test_master_without_copies_stops_although_a_delivery_is_not_confirmed() -> None:
    async def main() -> None:
        async with TimedCluster(3, min_in_sync=2) as cluster:
            await cluster.start_all()
            master = cluster.require_master()
            async with cluster.timed_producer as producer:
                await producer.send(Message(TOPIC, b"x", delay_ms=1_500))
            cluster.cut_slaves(master)
            await asyncio.sleep(2)
            broker, cluster.brokers[master] = cluster.brokers[master], None
            assert broker is not None
            async with asyncio.timeout(5):
                await broker.stop()
            await cluster.until(lambda: cluster.master() not in (None, master), 60)
            await asyncio.sleep(10)
            _, delivered = timed_records(cluster.disks[cluster.require_master()], TOPIC)
            assert len(delivered[b"x"]) == 1

    run_virtual(main())


def test_slave_drops_the_messages_that_its_master_has_delivered() -> None:
    async def main() -> None:
        async with TimedCluster(3) as cluster:
            await cluster.start_all()
            now_ms = cluster.runtime.clock.now_ms()
            async with cluster.timed_producer as producer:
                for number in range(100):
                    late_ms = 3_000 if number < 70 else 30_000
                    at_ms = now_ms + late_ms
                    await producer.send(Message(TOPIC, b"%d" % number, deliver_at_ms=at_ms))
            await asyncio.sleep(2.5)
            slaves = [one for index, one in enumerate(cluster.brokers) if index != cluster.master()]
            timers = [one.components.timers for one in slaves if one is not None]
            assert [one.waiting for one in timers] == [100, 100]
            await asyncio.sleep(2.5)
            assert [one.waiting for one in timers] == [30, 30]
            counts = [one.counts.metrics().timing_count[TOPIC].count for one in timers]
            assert counts == [30, 30]
            master = cluster.master_broker()
            for disk in cluster.disks:
                check = read_check(disk)
                assert check.covered_at is not None
                assert check.covered_at <= master.components.context.store.reader.synced_position

    run_virtual(main())
