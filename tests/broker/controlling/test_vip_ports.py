"""Replicas whose VIP port, two below the main one, is the main port of another replica."""

from __future__ import annotations

from dataclasses import replace

from kourou.broker.config import BrokerConfig
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import ControlledCluster


class CloseTogether(ControlledCluster):
    """Replicas whose main ports are two apart, as nobody would choose them."""

    def config(self, index: int) -> BrokerConfig:
        return replace(super().config(index), port=10911 + 2 * index)


def test_new_master_leaves_the_main_port_of_the_old_one_free() -> None:
    async def main() -> None:
        async with CloseTogether(2) as cluster:
            for index in range(2):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            await cluster.kill(0)
            await cluster.until(lambda: cluster.master() == 1)
            await cluster.start(0)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)

    run_virtual(main())
