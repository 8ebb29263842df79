"""Tests of the observed masters of a cluster: elections, losses, the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from kourou.supervising.elected_masters import ElectedMasters
from kourou.supervising.topology import Member, Role, Shape, Topology
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import ControlledCluster

Event = tuple[str, Mapping[str, Any]]
TOPOLOGY = Topology(
    Shape(brokers=1, replicas=3, controllers=1),
    (
        Member(name="namesrv-1", role=Role.NAMESRV, port=9876),
        Member(name="controller-1", role=Role.CONTROLLER, port=19876),
        *(
            Member(
                name=f"broker-a-{number}",
                role=Role.REPLICA,
                broker="broker-a",
                broker_id=number,
                port=10901 + 10 * number,
            )
            for number in (1, 2, 3)
        ),
    ),
)


class Observed:
    """Masters of a simulated cluster with three replicas, and the events about them."""

    def __init__(self, cluster: ControlledCluster) -> None:
        self.cluster = cluster
        self.events: list[Event] = []
        self.masters = ElectedMasters(
            TOPOLOGY, lambda *event: self.events.append(event), runtime=cluster.runtime
        )

    def names(self) -> list[str]:
        return [event for event, _ in self.events]

    async def until(self, event: str, count: int = 1) -> None:
        await self.cluster.until(lambda: self.names().count(event) == count)


def run(test: Callable[[Observed], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ControlledCluster(3) as cluster:
            observed = Observed(cluster)
            running = asyncio.create_task(observed.masters.run())
            try:
                await test(observed)
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

    run_virtual(main())


def test_cluster_is_ready_when_its_set_accepts_sends() -> None:
    async def test(observed: Observed) -> None:
        observed.masters.report("cluster.ready", {})
        await observed.cluster.start(0)
        await observed.until("master.elected")
        await asyncio.sleep(5)
        alone = observed.names()
        await observed.until("cluster.waiting")
        await observed.cluster.start(1)
        await observed.until("cluster.ready")
        await asyncio.sleep(15)

        assert alone == ["master.elected"], "one member in sync is too few"
        assert observed.events[1][1] == {"reason": "broker-a has 1 replicas in sync, of 2"}
        assert observed.events[0][1] == {
            "broker": "broker-a",
            "child": "broker-a-1",
            "id": 1,
            "address": "127.0.0.1:10911",
            "epoch": 1,
        }
        names = ["master.elected", "cluster.waiting", "cluster.ready"]
        assert observed.names() == names, "each once"

    run(test)


def test_lost_master_and_its_successor_are_reported() -> None:
    async def test(observed: Observed) -> None:
        for index in range(3):
            await observed.cluster.start(index)
        await observed.cluster.until(lambda: len(observed.cluster.in_sync()) == 3)
        await observed.until("master.elected")
        await observed.cluster.kill(0)
        await observed.until("master.elected", 2)

        child = observed.events[-1][1]["child"]
        assert observed.names() == ["master.elected", "master.lost", "master.elected"]
        assert observed.masters.masters == {"broker-a": child}
        assert child in ("broker-a-2", "broker-a-3")

    run(test)


def test_no_slave_is_elected_while_a_cluster_stops() -> None:
    async def test(observed: Observed) -> None:
        cluster = observed.cluster
        for index in range(2):
            await cluster.start(index)
        await cluster.until(lambda: len(cluster.in_sync()) == 2)
        first = await observed.masters.before_stop()
        await cluster.kill(0)
        await asyncio.sleep(20)

        assert first == ["broker-a-1"]
        assert cluster.master() is None
        assert "master.lost" in observed.names()

    run(test)
