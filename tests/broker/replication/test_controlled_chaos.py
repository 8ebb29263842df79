"""Any member of the in-sync set can be elected, and no acknowledged send is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import pytest

from kourou.broker.config import FlushDiskType
from kourou.client.send_receipt import SendStatus
from kourou.errors import ClosedError, KourouError
from kourou.testing.loop import run_virtual
from tests.broker.replication.replica_rig import ReplicaRig, send
from tests.effort import some

FAULTS = 10


class Chaos:
    """A producer on three replicas, and faults from a seed."""

    def __init__(self, rig: ReplicaRig, rng: random.Random, *, with_power_cuts: bool) -> None:
        self.rig = rig
        self.rng = rng
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.is_over = False
        self.ends = [rig.kill, rig.crash] if with_power_cuts else [rig.kill]

    async def produce(self, name: int) -> None:
        number = 0
        async with self.rig.producer(timeout_ms=4_000) as producer:
            while not self.is_over:
                number += 1
                body = b"message %d of %d," % (number, name) + b"x" * self.rng.randrange(3000)
                try:
                    receipt = await send(producer, body)
                except KourouError:
                    await asyncio.sleep(0.1)
                    continue
                if receipt.status is SendStatus.SEND_OK:
                    key = receipt.queue.queue_id, receipt.queue_offset
                    assert key not in self.acknowledged, f"offset {key} was used before"
                    self.acknowledged[key] = body
                await asyncio.sleep(self.rng.random() / 50)

    async def ask(self) -> None:
        """Ask the controller for the set now and then, as a master does."""
        while True:
            await asyncio.sleep(self.rng.random() * 2)
            controller = self.rig.controller
            master = self.rig.brokers.get(controller.master_id)
            if master is not None:
                asked_at_s = asyncio.get_running_loop().time()
                with contextlib.suppress(ClosedError):  # it is starting
                    master.adopt_in_sync(controller.stored, asked_at_s)

    async def run(self) -> None:
        await self.rig.begin()
        asking = asyncio.create_task(self.ask())
        producing = asyncio.gather(*(self.produce(name) for name in range(4)))
        faults: list[Callable[[], Awaitable[None]]] = [
            self.fail_over, self.fail_over_to_slow_disk, self.depose, self.end_slave, self.stall,
            self.lose,
        ]  # fmt: skip
        for _ in range(FAULTS):
            await asyncio.sleep(self.rng.random() * 2)
            await self.rng.choice(faults)()
        self.is_over = True
        await producing
        asking.cancel()
        self.rig.controller.lost_answers = self.rig.controller.lost_requests = 0
        await self.rig.elect(self.candidate())
        await self.rig.in_sync(1, 2, 3)
        await self.rig.caught_up()

    def candidate(self) -> int:
        return self.rng.choice(sorted(self.rig.controller.stored.members))

    async def end(self, broker_id: int) -> None:
        if broker_id in self.rig.brokers:  # it may be truncated just now
            await self.rng.choice(self.ends)(broker_id)

    async def fail_over(self) -> None:
        """End some replicas, the master among them, and elect another one."""
        await self.end(self.rig.controller.master_id)
        if self.rng.random() < 0.3:
            await self.end(self.rng.choice(sorted(self.rig.disks)))
        await asyncio.sleep(self.rng.random())
        await self.rig.elect(self.candidate())

    async def fail_over_to_slow_disk(self) -> None:
        """Elect a slave whose disk had stalled, if it is in sync, after an end of all replicas."""
        slave = self.choose_slave()
        if slave in self.rig.brokers:
            self.rig.flushers[slave].stall()
            await asyncio.sleep(self.rng.random() * 1.5)
        for broker_id in self.rig.disks:
            await self.end(broker_id)
        members = self.rig.controller.stored.members
        await self.rig.elect(slave if slave in members else self.candidate())

    def choose_slave(self) -> int:
        master = self.rig.controller.master_id
        return self.rng.choice([one for one in self.rig.disks if one != master])

    async def depose(self) -> None:
        """Elect another master while the old one goes on for some time."""
        old = self.rig.controller.master_id
        new = self.candidate()
        if new == old:
            return
        await self.rig.elect(new, deposed=old)
        await asyncio.sleep(self.rng.random() * 3)
        await self.end(old)
        await self.rig.start(old)

    async def end_slave(self) -> None:
        slave = self.choose_slave()
        await self.end(slave)
        await asyncio.sleep(self.rng.random() * 4)
        if slave not in self.rig.brokers:
            await self.rig.start(slave)

    async def stall(self) -> None:
        address = self.rig.ha_address(self.rig.controller.master_id)
        self.rng.choice((self.rig.network.stall, self.rig.network.cut))(address)
        await asyncio.sleep(self.rng.random() * 4)
        self.rig.network.heal(address)

    async def lose(self) -> None:
        """Lose requests or answers to the controller."""
        controller = self.rig.controller
        controller.lost_answers = self.rng.randrange(3)
        controller.lost_requests = self.rng.randrange(3)
        await self.end_slave()


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("seed", some(range(10), 1))
def test_no_acknowledged_send_is_lost_and_the_replicas_become_equal(
    flush: FlushDiskType, seed: int
) -> None:
    async def main() -> None:
        async with ReplicaRig(seed=seed, flush_disk_type=flush) as rig:
            has_power_cuts = flush is FlushDiskType.SYNC_FLUSH
            chaos = Chaos(rig, random.Random(seed), with_power_cuts=has_power_cuts)
            await chaos.run()
            log = rig.log(1)
            assert rig.log(2) == rig.log(3) == log
            assert rig.offsets(2) == rig.offsets(3) == rig.offsets(1)
            reader = rig.brokers[1].store.reader
            assert len(chaos.acknowledged) > 30
            for (queue_id, offset), body in chaos.acknowledged.items():
                entry = reader.entry("T", queue_id, offset)
                assert entry is not None, (queue_id, offset)
                at = entry.physical_offset
                assert body in log[at : at + entry.size], (queue_id, offset)

    run_virtual(main())
