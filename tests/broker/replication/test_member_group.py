"""A slave learns of its master as soon as a name server knows it."""

from __future__ import annotations

import asyncio

from kourou.broker.replication.replication_config import BrokerRole, ReplicationConfig
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.broker.replication.test_slave import MASTER, SLAVE, caught_up, send, slaves_of

ROLE = ReplicationConfig(broker_role=BrokerRole.ASYNC_MASTER)


def test_a_slave_that_starts_before_its_master_copies_soon_after_the_master_has_registered() -> (
    None
):
    async def main() -> None:
        async with Cluster(slaves=1, replication=ROLE) as cluster:
            await cluster.kill_broker(MASTER)
            await cluster.kill_broker(SLAVE)
            await cluster.restart_broker(SLAVE)
            await asyncio.sleep(15)
            await cluster.restart_broker(MASTER)
            await asyncio.sleep(2)
            assert slaves_of(cluster) == 1
            await send(cluster, 3)
            async with asyncio.timeout(2):
                await caught_up(cluster)

    run_virtual(main())


def test_a_slave_finds_a_master_that_returns_with_another_address() -> None:
    async def main() -> None:
        async with Cluster(slaves=1, replication=ROLE, namesrvs=2) as cluster:
            await send(cluster, 3)
            await caught_up(cluster)
            await cluster.kill_broker(MASTER)
            await asyncio.sleep(20)
            cluster.move_broker(11911, MASTER)
            await cluster.restart_broker(MASTER)
            await asyncio.sleep(2)
            assert slaves_of(cluster) == 1
            await send(cluster, 3)
            async with asyncio.timeout(2):
                await caught_up(cluster)

    run_virtual(main())


def test_a_slave_whose_pause_is_long_connects_when_its_master_has_registered_again() -> None:
    async def main() -> None:
        async with Cluster(slaves=1, replication=ROLE) as cluster:
            for down_s in (13.1, 17.3, 21.7):
                await cluster.kill_broker(MASTER)
                await asyncio.sleep(down_s)
                await cluster.restart_broker(MASTER)
                await asyncio.sleep(1.2)
                assert slaves_of(cluster) == 1

    run_virtual(main())
