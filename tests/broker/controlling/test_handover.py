"""A master that is cut off from its slaves leaves its role to one of them, if that can serve."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.controlling.role_decisions import choose_master
from kourou.protocol.controller.headers import ReplicaIdentity, ReplicasInfo
from tests.broker.controlling.controlled_cluster import ControlledCluster
from tests.broker.controlling.test_failover import Acknowledged, holders, run, send

FRESH_MS = 1_000


def test_master_without_its_slaves_hands_over_within_seconds() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        old = cluster.require_master()
        async with cluster.producer() as producer:
            await send(producer, 10, acknowledged)
            cluster.cut_slaves(old)
            began_s = asyncio.get_running_loop().time()
            async with asyncio.timeout(20):
                while len(acknowledged) == 10:
                    await send(producer, 1, acknowledged)
            assert asyncio.get_running_loop().time() - began_s < 8
            assert cluster.master() not in (old, None)

            cluster.heal_slaves(old)
            await cluster.until(lambda: len(cluster.in_sync()) == 3)
            await send(producer, 10, acknowledged)
        await asyncio.sleep(1)
        assert holders(cluster, acknowledged) == [0, 1, 2]

    run(3, test, min_in_sync=2)


def test_master_whose_slaves_have_died_keeps_its_role_and_their_membership() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        old = cluster.require_master()
        async with cluster.producer() as producer:
            await send(producer, 5, acknowledged)
            others = [index for index in range(3) if index != old]
            for index in others:
                await cluster.kill(index)
            await send(producer, 1, acknowledged)
            await asyncio.sleep(15)
            assert cluster.master() == old
            assert len(cluster.in_sync()) == 3
            for index in others:
                await cluster.start(index)
            await asyncio.sleep(5)
            await send(producer, 5, acknowledged)
        assert len(acknowledged) == 10
        assert cluster.master() == old

    run(3, test, min_in_sync=2)


def test_only_slave_stays_electable_while_it_is_cut_off() -> None:
    async def test(cluster: ControlledCluster) -> None:
        acknowledged: Acknowledged = {}
        old = cluster.require_master()
        async with cluster.producer() as producer:
            await send(producer, 5, acknowledged)
            cluster.cut_slaves(old)
            await send(producer, 1, acknowledged)
            await asyncio.sleep(15)
            assert cluster.master() == old
            assert len(acknowledged) == 5
            await cluster.kill(old)
            await cluster.until(lambda: cluster.master() == 1 - old)
            cluster.heal_slaves(old)
            await cluster.start(old)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            await send(producer, 5, acknowledged)
        await asyncio.sleep(1)
        assert len(acknowledged) == 10
        assert holders(cluster, acknowledged) == [0, 1]

    run(2, test, min_in_sync=2)


def replica(broker_id: int, *, silent_ms: int | None = 100, end: int = 9) -> ReplicaIdentity:
    return ReplicaIdentity("b", broker_id, f"h:{broker_id}", True, 1, end, silent_ms)


OWN = replica(1)


@pytest.mark.parametrize(
    ("in_sync", "others", "chosen"),
    [
        pytest.param((replica(2), replica(3)), (), 2, id="equal logs: the smaller id"),
        pytest.param((replica(2), replica(3, end=10)), (), 3, id="the longer log"),
        pytest.param((replica(4, end=10), replica(2)), (), 2, id="first one that is not reached"),
        pytest.param((replica(2),), (replica(4),), 2, id="with a replica that can join"),
        pytest.param((replica(2),), (), None, id="alone it could not serve either"),
        pytest.param((), (replica(2), replica(3)), None, id="only members have all messages"),
        pytest.param((replica(2), replica(3, silent_ms=1_500)), (), None, id="one has died"),
        pytest.param((replica(2), replica(3, silent_ms=None)), (), None, id="not heard yet"),
    ],
)
def test_replica_is_chosen_that_the_controller_hears(
    in_sync: tuple[ReplicaIdentity, ...], others: tuple[ReplicaIdentity, ...], chosen: int | None
) -> None:
    found = ReplicasInfo(1, "h:1", 5, 7, (OWN, *in_sync), others)

    assert choose_master(found, 1, frozenset({2, 3}), 2, FRESH_MS) == chosen


def test_replica_that_is_no_longer_master_chooses_none() -> None:
    found = ReplicasInfo(2, "h:2", 5, 7, (OWN, replica(2), replica(3)))

    assert choose_master(found, 1, frozenset({2, 3}), 2, FRESH_MS) is None
