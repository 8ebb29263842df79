"""After any faults a slave has its master's log, and no acknowledged send is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.replication.replication_config import BrokerRole, ReplicationConfig
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendStatus
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.broker.replication.test_slave import MASTER, SLAVE, assert_equal, caught_up

FAULTS = 12


class Chaos:
    """Producers on a master with one slave, and faults from a seed."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.acknowledged: set[tuple[int, int]] = set()
        self.is_over = False

    async def produce(self) -> None:
        config = ProducerConfig(send_timeout_ms=10_000)
        async with self.cluster.producer(config=config) as producer:
            while not self.is_over:
                body = self.rng.randbytes(self.rng.randrange(1, 3000))
                try:
                    receipt = await producer.send(Message("T", body))
                except KourouError:
                    continue
                if receipt.status is SendStatus.SEND_OK:
                    self.acknowledged.add((receipt.queue.queue_id, receipt.queue_offset))
                await asyncio.sleep(self.rng.random() / 20)

    async def run(self) -> None:
        producing = asyncio.create_task(self.produce())
        faults: list[Callable[[], Awaitable[None]]] = [
            self.end_broker, self.cut, self.stall, self.stall_disk,
        ]  # fmt: skip
        for _ in range(FAULTS):
            await asyncio.sleep(self.rng.random() * 2)
            await self.rng.choice(faults)()
        self.is_over = True
        await producing
        await caught_up(self.cluster)

    async def end_broker(self) -> None:
        index = self.rng.choice((MASTER, SLAVE))
        end = self.rng.choice(("kill_broker", "crash_broker", "stop_broker"))
        await getattr(self.cluster, end)(index)
        await asyncio.sleep(self.rng.random() * 3)
        await self.cluster.restart_broker(index)

    async def cut(self) -> None:
        host, port = self.cluster.broker_address(MASTER)
        self.cluster.network.cut((host, port + 1))
        await asyncio.sleep(self.rng.random() * 10)
        self.cluster.network.heal((host, port + 1))

    async def stall(self) -> None:
        host, port = self.cluster.broker_address(MASTER)
        self.cluster.network.stall((host, port + 1))
        await asyncio.sleep(self.rng.random() * 40)
        self.cluster.network.heal((host, port + 1))

    async def stall_disk(self) -> None:
        flusher = self.cluster.flusher(self.rng.choice((MASTER, SLAVE)))
        flusher.stall()
        await asyncio.sleep(self.rng.random() * 4)
        flusher.release()


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("seed", range(4))
def test_logs_are_equal_and_complete_after_any_faults(flush: FlushDiskType, seed: int) -> None:
    config = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)

    async def main() -> None:
        async with Cluster(
            seed=seed, slaves=1, replication=config, flush_disk_type=flush
        ) as cluster:
            chaos = Chaos(cluster, seed)
            await chaos.run()
            assert_equal(cluster)
            reader = cluster.broker(SLAVE).store.reader
            assert chaos.acknowledged
            for queue_id, offset in chaos.acknowledged:
                assert offset < reader.max_offset("T", queue_id)

    run_virtual(main())
