"""Tests of `kourou cluster move`: join, drain, elect, leave; producers see no error."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.server import Broker
from kourou.cli.cluster_move import Moved, Moving, Target
from kourou.cli.controlled_sets import ControlledSet, find_set
from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.sending.producer import Producer
from kourou.errors import RemoteError, RequestTimeoutError, UsageError
from kourou.model.message import Message
from kourou.protocol.controller.headers import ReplicaIdentity, ReplicasInfo
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.process import Outcome
from tests.broker.controlling.controlled_cluster import NAMESRV, TOPIC, ControlledCluster

FIRST = "127.0.0.1:10911"
SECOND = "127.0.0.1:10921"


class Rig:
    """Two replicas of broker-a in sync, a client, and the progress of moves."""

    def __init__(self, cluster: ControlledCluster, admin: AdminClient) -> None:
        self.cluster = cluster
        self.admin = admin
        self.lines: list[str] = []
        self.brokers: set[str] = set()

    async def move(self, target: Target, *, wait_s: float = 30, remove: bool = False) -> Moved:
        moving = Moving(self.admin, "broker-a", "", self.lines.append)
        return await moving.run(target, wait_s=wait_s, remove=remove)

    async def known(self) -> ControlledSet:
        return await find_set(self.admin, "broker-a", "")

    async def during_sends(self, work: Awaitable[Any], after_s: float = 5) -> Any:
        """Send messages with two retries during some work and after it; no send may fail."""
        config = ProducerConfig(refused_attempts_max=3)
        working = asyncio.ensure_future(work)
        async with Producer(
            "producers", NAMESRV, config=config, runtime=self.cluster.runtime
        ) as producer:
            loop, ends_at_s = asyncio.get_running_loop(), math.inf
            while loop.time() < ends_at_s:
                if working.done():
                    ends_at_s = min(ends_at_s, loop.time() + after_s)
                receipt = await producer.send(Message(TOPIC, b"x"))
                self.brokers.add(receipt.queue.broker_name)
                await asyncio.sleep(0.02)
        return await working


def run(test: Callable[[Rig], Awaitable[None]], replicas: int = 2) -> None:
    async def main() -> None:
        async with ControlledCluster(replicas) as cluster:
            for index in range(2):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            await cluster.create_topic()
            await asyncio.sleep(2)  # the slave copies it each second
            async with AdminClient(NAMESRV, runtime=cluster.runtime) as admin:
                await test(Rig(cluster, admin))

    run_virtual(main())


async def start_second_set(cluster: ControlledCluster) -> Broker:
    """Start a broker with a fixed master, so that producers have another one."""
    config = replace(
        cluster.config(0),
        broker_name="broker-b",
        port=10991,
        controller=ControllerModeConfig(),
    )
    broker = Broker(config, SimDisk(77), cluster.runtime, lambda loop: SimFlusher(loop, 77))
    await broker.start()
    await cluster.create_topic()
    return broker


def test_master_is_moved_and_a_producer_sees_no_error() -> None:
    async def test(rig: Rig) -> None:
        moved = await rig.during_sends(rig.move(Target(place=SECOND)))

        assert rig.cluster.master() == 1
        assert moved == Moved(
            broker="broker-a", id=2, address=SECOND, epoch=2, old="127.0.0.1:10911"
        )
        again = await rig.move(Target(broker_id=2))
        assert (again.id, again.epoch, again.old) == (2, 2, None)

    run(test)


def test_producers_send_to_another_set_while_a_master_is_drained() -> None:
    async def test(rig: Rig) -> None:
        other = await start_second_set(rig.cluster)
        # Producers look up their routes again each 30 s.
        moved = await rig.during_sends(rig.move(Target(broker_id=2)), after_s=31)
        await rig.cluster.until(lambda: len(rig.cluster.in_sync()) == 2)
        permissions = [
            (await rig.admin.broker_config(address))["brokerPermission"]
            for address in (SECOND, "127.0.0.1:10911")
        ]
        await other.stop()

        assert moved.is_drained
        assert "127.0.0.1:10911 refuses sends now; producers send to broker-b" in rig.lines
        assert permissions == ["6", "6"]
        assert rig.brokers == {"broker-a", "broker-b"}, "also the new master is used"

    run(test)


def test_refused_election_restores_the_permission_of_the_master() -> None:
    async def test(rig: Rig) -> None:
        other = await start_second_set(rig.cluster)

        def kill_slave(_: str) -> None:
            broker, rig.cluster.brokers[1] = rig.cluster.brokers[1], None
            assert broker is not None
            broker.abandon()

        moving = Moving(rig.admin, "broker-a", "", kill_slave)
        with pytest.raises(RemoteError, match="2012"):
            await moving.run(Target(broker_id=2), wait_s=30, remove=False)
        config = await rig.admin.broker_config("127.0.0.1:10911")
        await other.stop()

        assert config["brokerPermission"] == "6"

    run(test)


def test_move_that_is_interrupted_while_it_drains_restores_the_permission() -> None:
    async def test(rig: Rig) -> None:
        other = await start_second_set(rig.cluster)
        tasks: list[asyncio.Task[Moved]] = []

        def interrupt(_: str) -> None:
            asyncio.get_running_loop().call_soon(tasks[0].cancel)  # as Ctrl-C does

        moving = Moving(rig.admin, "broker-a", "", interrupt)
        tasks.append(asyncio.create_task(moving.run(Target(broker_id=2), wait_s=30, remove=False)))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        config = await rig.admin.broker_config(FIRST)
        await other.stop()

        assert (config["brokerPermission"], rig.cluster.master()) == ("6", 0)

    run(test)


def test_move_after_a_killed_one_restores_the_permission() -> None:
    async def test(rig: Rig) -> None:
        other = await start_second_set(rig.cluster)
        await rig.admin.update_broker_config(FIRST, {"brokerPermission": "4"})
        await rig.move(Target(broker_id=2))
        config = await rig.admin.broker_config(FIRST)
        await other.stop()

        assert config["brokerPermission"] == "6"
        assert "refused sends already (brokerPermission=4)" in rig.lines[0]

    run(test)


def test_move_waits_for_a_replica_that_joins_and_removes_the_old_one_when_it_is_down() -> None:
    async def test(rig: Rig) -> None:
        third = "127.0.0.1:10931"
        moving = asyncio.create_task(rig.move(Target(place=third), remove=True))
        await rig.cluster.until(lambda: len(rig.lines) == 1)
        await rig.cluster.start(2)
        await rig.cluster.until(lambda: "stop the broker" in rig.lines[-1])
        await rig.cluster.kill(0)
        moved = await moving

        assert rig.lines[0] == f"no replica at {third} is registered yet: start it"
        assert rig.cluster.master() == 2
        assert (moved.id, moved.is_removed) == (3, True)
        assert sorted(one.broker_id or 0 for one in (await rig.known()).replicas) == [2, 3]

    run(test, replicas=3)


def test_wait_for_a_replica_has_a_limit() -> None:
    async def test(rig: Rig) -> None:
        await rig.cluster.kill(1)
        await rig.cluster.until(lambda: len(rig.cluster.in_sync()) == 1)
        with pytest.raises(RequestTimeoutError, match="waited 1 s for replica 2 to be in sync"):
            await rig.move(Target(broker_id=2), wait_s=1)

        assert rig.cluster.master() == 0

    run(test)


def test_move_of_a_set_that_the_controllers_refuse_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(rig: Rig) -> None:
        find = find_set

        async def refused(*words: Any) -> ControlledSet:
            found = await find(*words)
            assert found.info is not None
            return replace(found, info=replace(found.info, refusal="an older state"))

        monkeypatch.setattr("kourou.cli.cluster_move.find_set", refused)
        with pytest.raises(RemoteError, match="an older state"):
            await rig.move(Target(broker_id=2))
        assert rig.cluster.master() == 0

    run(test)


def test_set_that_is_refused_while_a_move_waits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(rig: Rig) -> None:
        find, asked = find_set, 0

        async def refused_later(*words: Any) -> ControlledSet:
            nonlocal asked
            asked += 1
            found = await find(*words)
            assert found.info is not None
            refusal = "an older state" if asked > 1 else None
            return replace(found, info=replace(found.info, refusal=refusal))

        monkeypatch.setattr("kourou.cli.cluster_move.find_set", refused_later)
        with pytest.raises(RequestTimeoutError):
            await rig.move(Target(broker_id=2), wait_s=1)
        assert rig.lines == ["the controllers refuse the set: an older state"]

    run(test)


def test_host_with_several_replicas_is_refused() -> None:
    replicas = tuple(ReplicaIdentity("a", id_, f"h{id_ % 2}:{id_}", True) for id_ in (1, 2, 3))
    found = ControlledSet(controllers="c:1", info=ReplicasInfo(in_sync_replicas=replicas))

    assert Target(place="h0").find(found) == replicas[1]
    assert Target(place="h1:3").find(found) == replicas[2]
    assert Target(place="h2").find(found) is None
    with pytest.raises(UsageError, match="h1 has several replicas: name one of h1:1, h1:3"):
        Target(place="h1").find(found)


def test_new_master_must_be_named(command: Callable[..., Outcome]) -> None:
    outcome = command("cluster", "move", "broker-a")

    assert outcome.code == 2
    assert "either --to HOST[:PORT] or --id N" in outcome.err


@pytest.mark.parametrize("place", [":", ":10911", "h:x", "h:70000", "a b"])
def test_place_that_no_broker_can_have_is_refused(
    command: Callable[..., Outcome], place: str
) -> None:
    outcome = command("cluster", "move", "broker-a", "--to", place)

    assert outcome.code == 2
    assert f"address '{place}'" in outcome.err


def test_controllers_without_a_port_are_refused(command: Callable[..., Outcome]) -> None:
    outcome = command("cluster", "move", "broker-a", "--id", "2", "--controllers", "h:1;other")

    assert outcome.code == 2
    assert "address 'other' names no port" in outcome.err
