"""Replicas, controllers and etcd under faults: what was acknowledged or read is never lost."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.replicas.histories import QUEUES, History
from tests.sim.replicas.process_loop import run_processes
from tests.sim.replicas.replica_cluster import REPLICAS, ReplicaCluster
from tests.sim.replicas.simulation import create_topic, simulate


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_under_random_faults(seed: int) -> None:
    result = simulate(seed)

    assert (result.failures, result.is_stuck) == ([], False)
    assert result.acknowledged > 0


def test_member_returns_after_a_power_cut_though_it_never_left_the_set() -> None:
    async def main() -> None:
        cluster, history = ReplicaCluster(1, is_async=True), History()
        await cluster.start()
        await cluster.until(lambda: len(cluster.in_sync()) == REPLICAS, 60)
        await create_topic(cluster)
        sending = [asyncio.create_task(history.send(cluster, one, one)) for one in range(QUEUES)]
        await cluster.until(lambda: len(history.acknowledged) > 10, 60)
        slave = next(index for index in range(REPLICAS) if index != cluster.master())
        cluster.cut_power(f"broker-{slave}")
        cluster.start_process(f"broker-{slave}")
        await asyncio.sleep(1.5)
        assert len(cluster.in_sync()) == REPLICAS
        await asyncio.sleep(10)
        leading = cluster.leading()
        assert leading is not None
        controller = cluster.controllers[leading]
        assert controller is not None
        alive = cluster.machines[f"controller-{leading}"].process.call(
            lambda: controller._elections.alive_count
        )
        assert alive == REPLICAS
        history.is_over = True
        await asyncio.gather(*sending)

    run_processes(main())
