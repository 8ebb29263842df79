"""Replicas, controllers and etcd under faults: what was acknowledged or read is never lost."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from tests.sim.replicas.drills import both_ways
from tests.sim.replicas.histories import QUEUES, History
from tests.sim.replicas.process_loop import run_processes
from tests.sim.replicas.replica_cluster import CONTROLLERS, REPLICAS, ReplicaCluster
from tests.sim.replicas.simulation import create_topic, simulate


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_under_random_faults(seed: int) -> None:
    result = simulate(seed)

    assert (result.failures, result.overlaps, result.is_stuck) == ([], [], False)
    assert result.acknowledged > 0


async def started(cluster: ReplicaCluster, history: History) -> list[asyncio.Task[None]]:
    """Start all, and return the senders when some messages are acknowledged."""
    await cluster.start()
    await cluster.until(lambda: len(cluster.in_sync()) == REPLICAS, 60)
    await create_topic(cluster)
    sending = [asyncio.create_task(history.send(cluster, one, one)) for one in range(QUEUES)]
    await cluster.until(lambda: len(history.acknowledged) > 10, 60)
    return sending


def alive_count(cluster: ReplicaCluster) -> int:
    """Return how many replicas the leading controller takes for alive."""
    leading = cluster.leading()
    assert leading is not None
    controller = cluster.controllers[leading]
    assert controller is not None
    process = cluster.machines[f"controller-{leading}"].process
    return process.call(lambda: controller._elections.alive_count)


def test_member_returns_after_a_power_cut_though_it_never_left_the_set() -> None:
    async def main() -> None:
        cluster, history = ReplicaCluster(1, is_async=True), History()
        sending = await started(cluster, history)
        slave = next(index for index in range(REPLICAS) if index != cluster.master())
        cluster.cut_power(f"broker-{slave}")
        cluster.start_process(f"broker-{slave}")
        await asyncio.sleep(1.5)
        assert len(cluster.in_sync()) == REPLICAS
        await asyncio.sleep(10)
        assert alive_count(cluster) == REPLICAS
        history.is_over = True
        await asyncio.gather(*sending)

    run_processes(main())


def test_replica_elected_while_its_power_was_cut_does_not_become_master() -> None:
    async def main() -> None:
        cluster, history = ReplicaCluster(1, is_async=True), History()
        sending = await started(cluster, history)
        for index in range(CONTROLLERS):
            if index != cluster.leading():
                cluster.kill(f"controller-{index}")  # or the leading one would resign
        await asyncio.sleep(5)
        master = cluster.master()
        first, second = (index for index in range(REPLICAS) if index != master)
        cluster.kill(f"broker-{master}")
        await asyncio.sleep(1)
        cluster.kill(f"broker-{second}")
        await asyncio.sleep(0.6)
        cluster.cut_power(f"broker-{first}")
        await asyncio.sleep(2.5)
        cluster.start_process(f"broker-{first}")
        await asyncio.sleep(5)
        assert cluster.master() is None
        assert alive_count(cluster) == 0
        history.is_over = True
        await asyncio.gather(*sending)

    run_processes(main())


def test_master_whose_disk_fails_is_replaced() -> None:
    async def main() -> None:
        cluster, history = ReplicaCluster(1), History()
        sending = await started(cluster, history)
        old = cluster.master()
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        cluster.machines[f"broker-{old}"].disk.fail_after(1, error, ("sync",))
        await cluster.until(lambda: cluster.master() != old, 8)
        await cluster.until(lambda: len(cluster.in_sync()) == REPLICAS, 8)
        history.is_over = True
        await asyncio.gather(*sending)

    run_processes(main())


def test_controller_that_most_replicas_do_not_reach_leaves_the_leadership() -> None:
    async def main() -> None:
        cluster, history = ReplicaCluster(2, min_in_sync=2), History()
        sending = await started(cluster, history)
        leading, master = cluster.leading(), cluster.master()
        assert master is not None
        others = [f"broker-{index}" for index in (master, (master + 1) % REPLICAS)]
        cluster.network.cut(both_ways([f"controller-{leading}"], others))
        await asyncio.sleep(3)
        before = len(history.acknowledged)
        await cluster.until(lambda: len(history.acknowledged) > before, 6)
        assert cluster.leading() not in (leading, None)
        await cluster.until(lambda: len(cluster.in_sync()) == REPLICAS, 6)
        history.is_over = True
        await asyncio.gather(*sending)

    run_processes(main())
