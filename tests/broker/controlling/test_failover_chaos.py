"""Replicas under random faults: what was acknowledged is on all of them in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kourou.client.send_receipt import SendStatus
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import log_files
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import HOST, TOPIC, ControlledCluster
from tests.broker.controlling.test_failover import Acknowledged, stored
from tests.effort import some

FAULTS = 10
REPLICAS = 3


class Chaos:
    """Sends messages, and makes faults from a seed."""

    faults = FAULTS

    def __init__(self, cluster: ControlledCluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.acknowledged: Acknowledged = {}
        self.repeated: list[tuple[int, int]] = []
        self.is_over = False

    async def produce(self) -> None:
        number = 0
        async with self.cluster.producer() as producer:
            while not self.is_over:
                number += 1
                body = b"%d %b" % (number, self.rng.randbytes(self.rng.randrange(1, 2_000)))
                try:
                    receipt = await producer.send(Message(TOPIC, body))
                except KourouError:
                    continue
                if receipt.status is SendStatus.SEND_OK:
                    place = (receipt.queue.queue_id, receipt.queue_offset)
                    if place in self.acknowledged:
                        self.repeated.append(place)
                    self.acknowledged[place] = body
                await asyncio.sleep(self.rng.random() / 10)

    async def run(self) -> None:
        producing = asyncio.create_task(self.produce())
        faults: list[Callable[[], Awaitable[None]]] = [
            self.end_replica, self.end_replica, self.end_master, self.cut_replication,
            self.lose_controller, self.fill_disk,
        ]  # fmt: skip
        for _ in range(self.faults):
            await asyncio.sleep(self.rng.random() * 4)
            await self.rng.choice(faults)()
        await self.cluster.until(lambda: len(self.cluster.in_sync()) == REPLICAS, 120)
        self.is_over = True
        await producing
        await asyncio.sleep(2)

    async def end(self, index: int) -> None:
        await self.cluster.kill(index)
        if self.rng.random() < 0.5:
            self.cluster.disks[index].crash()
        await asyncio.sleep(self.rng.choice((0.1, 1, 8)) * self.rng.random())
        await self.cluster.start(index)

    async def end_replica(self) -> None:
        await self.end(self.rng.randrange(REPLICAS))

    async def end_master(self) -> None:
        await self.cluster.until(lambda: self.cluster.master() is not None)
        master = self.cluster.require_master()
        await self.end(master)

    async def cut_replication(self) -> None:
        index = self.rng.randrange(REPLICAS)
        where = (HOST, self.cluster.config(index).port + 1)
        self.cluster.network.cut(where)
        await asyncio.sleep(self.rng.random() * 6)
        self.cluster.network.heal(where)

    async def lose_controller(self) -> None:
        await self.cluster.stop_controller()
        await asyncio.sleep(self.rng.random() * 8)
        await self.cluster.start_controller()

    async def fill_disk(self) -> None:
        disk = self.cluster.disks[self.rng.randrange(REPLICAS)]
        free, disk.free = disk.free, 0
        await asyncio.sleep(self.rng.random() * 12)
        disk.free = free


def not_expired(disk: SimDisk, acknowledged: Acknowledged, found: Acknowledged) -> Acknowledged:
    """Return the messages without those in files that a replica removed while its disk was full."""
    if log_files(disk, COMMITLOG)[0].start == 0:
        return acknowledged
    first = min(found)  # there is one queue
    return {place: body for place, body in acknowledged.items() if place >= first}


def run_chaos(seed: int) -> None:
    async def main() -> None:
        async with ControlledCluster(REPLICAS, seed) as cluster:
            for index in range(REPLICAS):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == REPLICAS)
            await cluster.create_topic()
            await asyncio.sleep(2)  # the slaves copy it each second
            chaos = Chaos(cluster, seed)
            await chaos.run()
            assert len(chaos.acknowledged) > FAULTS
            assert chaos.repeated == []
            for disk in cluster.disks:
                found = stored(disk)
                kept = not_expired(disk, chaos.acknowledged, found)
                assert {place for place in kept if place not in found} == set()
                assert kept.items() <= found.items()

    run_virtual(main())


@pytest.mark.parametrize("seed", some(range(40), 3))
def test_acknowledged_messages_survive_any_faults_on_all_replicas(seed: int) -> None:
    run_chaos(seed)
