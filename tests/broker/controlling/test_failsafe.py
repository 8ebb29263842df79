"""Members of the in-sync set confirm a master while no controller answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kourou.broker.controlling.confirmation import Confirmation
from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.controlling.controllers import Controllers, Identity
from kourou.broker.controlling.failsafe import PROMISE_FILE, Environment, Failsafe
from kourou.broker.replication.controlled_role import ControlledRole, InSyncSet, MasterClaim
from kourou.client.administration.admin import AdminClient
from kourou.client.send_receipt import SendStatus
from kourou.errors import ConnectionLostError, KourouError
from kourou.metrics import Sample
from kourou.model.message import Message
from kourou.protocol.brokers import ExchangeHAInfoRequestHeader, ExchangeHAInfoResponseHeader
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.controller.headers import ReplicaIdentity, ReplicasInfo
from kourou.protocol.topic_table import (
    BrokerHeartbeatRequestHeader,
    BrokerHeartbeatResponseHeader,
)
from kourou.remoting.pool import ConnectionPool
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime
from tests.broker.controlling.controlled_cluster import NAMESRV, TOPIC, ControlledCluster

ALL = frozenset({0, 1, 2})
CONFIG = ControllerModeConfig(controller_failsafe=True)
LEASE_S = 2.0
AFTER_LEASE_S = LEASE_S + 0.1
PROMISE_S = 3.0
ME = Identity("c", "b", 2)
CLAIM = MasterClaim("b#2", 7, 3_000)
SLAVE = ControlledRole(2, 1, 7, "", InSyncSet(frozenset({1, 2}), 3))
MASTER = ControlledRole(1, 1, 7, "", InSyncSet(frozenset({1, 2}), 3))


# Replicas


def run(
    test: Callable[[ControlledCluster], Awaitable[None]], failsafe: frozenset[int] = ALL
) -> None:
    """Run a test with three replicas in sync, after their controller has stopped."""

    async def main() -> None:
        async with ControlledCluster(3, failsafe=failsafe) as cluster:
            for index in ALL:
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == 3)
            await cluster.create_topic()
            await asyncio.sleep(2)
            await cluster.stop_controller()
            await test(cluster)

    run_virtual(main())


async def send(cluster: ControlledCluster) -> bool:
    """Return whether a message is acknowledged."""
    async with cluster.producer() as producer:
        try:
            receipt = await producer.send(Message(TOPIC, b"a"))
        except KourouError:
            return False
    return receipt.status is SendStatus.SEND_OK


def fence_reason(cluster: ControlledCluster) -> str:
    keeper = cluster.master_broker().components.keeper
    assert keeper is not None
    return keeper.fence_reason


async def is_in_failsafe(cluster: ControlledCluster) -> bool | None:
    index = cluster.require_master()
    async with AdminClient(NAMESRV, runtime=cluster.runtime) as admin:
        return (await admin.ha_status(f"127.0.0.1:{10911 + 10 * index}")).kourou_failsafe


async def metric(cluster: ControlledCluster) -> float:
    """Return the value of the metric of the master."""
    broker = cluster.brokers[cluster.master() or 0]
    assert broker is not None
    for family in await broker.metrics():
        if family.name == "rocketmq_broker_failsafe":
            (sample,) = family.samples
            assert isinstance(sample, Sample)
            return sample.value
    raise AssertionError("the metric is missing")


def test_master_serves_without_controllers_while_all_members_confirm_it() -> None:
    async def test(cluster: ControlledCluster) -> None:
        master = cluster.require_master()
        for _ in range(60):
            await asyncio.sleep(0.5)
            assert not fence_reason(cluster)
        assert await send(cluster)
        assert await is_in_failsafe(cluster)
        assert await metric(cluster) == 1
        await cluster.start_controller()
        await asyncio.sleep(8)
        assert (cluster.master(), fence_reason(cluster)) == (master, "")
        assert not await is_in_failsafe(cluster)
        assert await metric(cluster) == 0
        assert await send(cluster)

    run(test)


def test_master_without_failsafe_is_fenced() -> None:
    async def test(cluster: ControlledCluster) -> None:
        await asyncio.sleep(AFTER_LEASE_S)
        assert fence_reason(cluster)

    run(test, frozenset())


def test_member_that_does_not_know_the_question_confirms_nothing() -> None:
    async def test(cluster: ControlledCluster) -> None:
        await asyncio.sleep(AFTER_LEASE_S)
        assert fence_reason(cluster)
        await asyncio.sleep(10)
        assert fence_reason(cluster)

    run(test, ALL - {2})


def test_master_is_fenced_within_its_lease_when_a_member_is_killed() -> None:
    async def test(cluster: ControlledCluster) -> None:
        await asyncio.sleep(10)
        assert not fence_reason(cluster)
        slave = next(index for index in ALL if index != cluster.master())
        await cluster.kill(slave)
        await asyncio.sleep(AFTER_LEASE_S)
        assert fence_reason(cluster)
        assert not await is_in_failsafe(cluster)

    run(test)


def test_master_alone_in_its_set_needs_no_confirmation() -> None:
    async def main() -> None:
        async with ControlledCluster(1, failsafe=ALL) as cluster:
            await cluster.start(0)
            await cluster.until(lambda: len(cluster.in_sync()) == 1)
            await cluster.create_topic()
            await cluster.stop_controller()
            await asyncio.sleep(10)
            assert await send(cluster)

    run_virtual(main())


def test_member_that_is_elected_becomes_master_when_its_promise_is_over() -> None:
    async def test(cluster: ControlledCluster) -> None:
        await asyncio.sleep(10)
        old = cluster.require_master()
        slave = next(index for index in ALL if index != old)
        broker = cluster.brokers[slave]
        assert broker is not None
        loop = asyncio.get_running_loop()
        failsafe = broker._confirmation.failsafe
        await cluster.kill(old)
        await cluster.start_controller()
        await cluster.until(lambda: cluster.master() not in (old, None))
        assert loop.time() >= failsafe._promised_until_s
        assert await send(cluster)
        await asyncio.sleep(2)
        assert not any(cluster.disks[index].exists(PROMISE_FILE) for index in ALL - {old})

    run(test)


# A member


class Member:
    """A member whose controllers have been silent for some time, on a disk."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk(1)
        self.loop = asyncio.get_running_loop()
        offload = sim_runtime(1, MemoryNetwork(1)).offload
        self.failsafe = Failsafe(
            CONFIG, cast("Controllers", self), Environment(self.disk, offload, self.loop.time)
        )
        self.newest_seen = 7
        replica = SimpleNamespace(epochs=self)
        components = SimpleNamespace(replica=replica)
        self.broker = cast("Any", SimpleNamespace(components=components))
        self.failsafe.start()
        self.failsafe.begin(self.broker, SLAVE)

    def may_lead(self) -> bool:
        return self.failsafe.may_lead

    async def confirm(self, claim: MasterClaim = CLAIM, me: Identity = ME) -> bool:
        return await self.failsafe.confirm(me, claim)


def with_member(test: Callable[[Member], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(Member())

    run_virtual(main())


def test_member_confirms_the_master_of_its_epoch_and_becomes_no_master_meanwhile() -> None:
    async def test(member: Member) -> None:
        assert member.may_lead()
        assert await member.confirm()
        await asyncio.sleep(PROMISE_S - 0.1)
        assert not member.may_lead()
        await asyncio.sleep(0.2)
        assert member.may_lead()

    with_member(test)


@pytest.mark.parametrize(
    ("claim", "me"),
    [
        (CLAIM._replace(epoch=6), ME),
        (CLAIM._replace(epoch=8), ME),
        (CLAIM._replace(member="b#3"), ME),
        (CLAIM, ME._replace(broker_name="other")),
        (CLAIM._replace(promise_ms=0), ME),
        (CLAIM._replace(promise_ms=3_001), ME),
    ],
)
def test_member_confirms_no_other_question(claim: MasterClaim, me: Identity) -> None:
    async def test(member: Member) -> None:
        assert not await member.confirm(claim, me)
        assert member.may_lead()
        assert not member.disk.exists(PROMISE_FILE)

    with_member(test)


def test_member_confirms_nothing_while_a_controller_answers_it() -> None:
    async def test(member: Member) -> None:
        member.failsafe.on_answered()
        await asyncio.sleep(LEASE_S / 2)
        assert not await member.confirm()
        await asyncio.sleep(0.1)
        assert await member.confirm()

    with_member(test)


def test_member_that_knows_a_newer_epoch_confirms_nothing() -> None:
    async def test(member: Member) -> None:
        member.failsafe.learn_epoch(8)
        assert not await member.confirm()

    async def test_log(member: Member) -> None:
        member.newest_seen = 8
        assert not await member.confirm()

    with_member(test)
    with_member(test_log)


def test_master_and_replica_without_a_role_confirm_nothing() -> None:
    async def test(member: Member) -> None:
        member.failsafe.begin(member.broker, MASTER)
        assert not await member.confirm()
        member.failsafe.begin(member.broker, None)
        assert not await member.confirm()
        member.failsafe.end()
        assert not await member.confirm()

    with_member(test)


def test_member_that_restarts_keeps_its_promise() -> None:
    async def main() -> None:
        member = Member()
        assert await member.confirm()
        member.disk.crash()
        await asyncio.sleep(1)
        again = Member(member.disk)
        await asyncio.sleep(PROMISE_S - 0.1)
        assert not again.may_lead()
        await again.failsafe.update(ME, is_master=False)
        assert again.disk.exists(PROMISE_FILE)
        await asyncio.sleep(0.2)
        assert again.may_lead()
        await again.failsafe.update(ME, is_master=False)
        assert not again.disk.exists(PROMISE_FILE)
        assert await again.confirm()
        assert again.disk.exists(PROMISE_FILE)

    run_virtual(main())


def test_member_confirms_nothing_if_a_controller_answers_while_it_stores_its_promise() -> None:
    async def test(member: Member) -> None:
        async def offload(call: Callable[..., Any], *args: Any) -> None:
            call(*args)
            member.failsafe.on_answered()

        member.failsafe._offload = offload
        assert not await member.confirm()
        assert not member.may_lead()

    with_member(test)


class AnsweringMember:
    """A pool whose member answers each question."""

    def __init__(self, answer: ExchangeHAInfoResponseHeader | None) -> None:
        self._answer = answer

    async def request(self, _: str, command: RemotingCommand, __: float) -> RemotingCommand:
        asked = command.header(ExchangeHAInfoRequestHeader)
        assert asked.kourou_failsafe_member == CLAIM.member
        return response(command, header=self._answer)


@pytest.mark.parametrize(
    ("answer", "is_confirmed"),
    [
        (None, False),  # of a slave in Java
        (ExchangeHAInfoResponseHeader("h:1", 5, "h:2"), False),  # of a master in Java
        (ExchangeHAInfoResponseHeader(kourou_failsafe_epoch=6), False),
        (ExchangeHAInfoResponseHeader(kourou_failsafe_epoch=7), True),
    ],
)
def test_only_an_answer_with_the_epoch_confirms(
    answer: ExchangeHAInfoResponseHeader | None, *, is_confirmed: bool
) -> None:
    async def main() -> None:
        pool = cast("ConnectionPool", AnsweringMember(answer))
        controllers = Controllers(("h:9",), pool, lambda: 0)
        assert await controllers.ask_member("h:2", CLAIM, 1) is is_confirmed

    run_virtual(main())


# A master


class Set:
    """Controllers that may answer, and a broker with its set and members that may confirm."""

    def __init__(self) -> None:
        self.members = frozenset({1, 2})
        self.grows_to = self.members
        self.asked: list[str] = []
        self.confirming = {"h:2", "h:3"}
        self.takes_s = 0.01
        self.answers = True
        self.fence_reason = ""
        self.role_epoch = 7
        self.is_failsafe = False
        self.on_answered: Callable[[], None] = lambda: None

    # As of Controllers

    async def heartbeat(self, header: BrokerHeartbeatRequestHeader) -> Any:
        if not self.answers:
            raise ConnectionLostError("no controller leads")
        self.on_answered()
        return BrokerHeartbeatResponseHeader(1, "h:1", 7, header.broker_id)

    async def states(self, name: str) -> ReplicasInfo:
        replicas = tuple(ReplicaIdentity(name, one, f"h:{one}") for one in (1, 2, 3))
        return ReplicasInfo(in_sync_replicas=replicas[:2], not_in_sync_replicas=replicas[2:])

    async def ask_member(self, address: str, claim: MasterClaim, timeout_s: float) -> bool:
        assert (claim.epoch, claim.promise_ms, timeout_s) == (7, 3_000, 0.5)
        self.asked.append(claim.member)
        await asyncio.sleep(self.takes_s)
        self.members = self.grows_to
        return address in self.confirming

    # As of ControlledBroker

    def log_state(self) -> Any:
        return 7, 900, 800

    def possible_members(self) -> frozenset[int]:
        return self.members

    def fence(self, reason: str) -> None:
        self.fence_reason = reason

    def unfence(self) -> None:
        self.fence_reason = ""

    def note_failsafe(self, *, is_active: bool) -> None:
        self.is_failsafe = is_active


def with_master(test: Callable[[Confirmation, Set], Awaitable[None]]) -> None:
    """Run a test with a master that was confirmed, and whose controllers answer no more."""

    async def main() -> None:
        found = Set()
        confirmation = Confirmation(
            CONFIG,
            cast("Controllers", found),
            "h:1",
            SimDisk(1),
            sim_runtime(1, MemoryNetwork(1)).offload,
            lambda: None,
        )
        confirmation.begin(cast("Any", found), MASTER)
        me = ME._replace(broker_id=1)
        await confirmation.failsafe.update(me, is_master=True)
        await confirmation.beat(me)
        confirmation.confirm_elected()
        found.answers = False

        async def ask() -> None:
            while True:
                await asyncio.sleep(0.25)
                await confirmation.ask_members(me)

        asking = asyncio.create_task(ask())
        await test(confirmation, found)
        asking.cancel()

    run_virtual(main())


def test_lease_of_a_master_goes_on_while_all_members_confirm_it() -> None:
    async def test(confirmation: Confirmation, found: Set) -> None:
        await asyncio.sleep(20)
        assert (found.fence_reason, found.is_failsafe) == ("", True)
        assert set(found.asked) == {"b#2"}
        found.confirming.clear()
        await asyncio.sleep(AFTER_LEASE_S)
        assert found.fence_reason
        assert not found.is_failsafe
        found.confirming.add("h:2")
        await asyncio.sleep(1)
        assert (found.fence_reason, found.is_failsafe) == ("", True)
        assert confirmation._lease.is_held

    with_master(test)


def test_lease_counts_from_before_the_members_were_asked() -> None:
    async def test(_: Confirmation, found: Set) -> None:
        found.takes_s = AFTER_LEASE_S
        await asyncio.sleep(10)
        assert found.fence_reason

    with_master(test)


def test_answers_do_not_count_of_a_set_that_grows_meanwhile() -> None:
    async def test(_: Confirmation, found: Set) -> None:
        found.grows_to = frozenset({1, 2, 3})
        while not found.is_failsafe:  # noqa: ASYNC110 - no one signals it
            await asyncio.sleep(0.01)
        assert found.asked == ["b#2", "b#2", "b#3"]

    with_master(test)


def test_member_with_an_unknown_address_does_not_confirm() -> None:
    async def test(_: Confirmation, found: Set) -> None:
        found.members = found.grows_to = frozenset({1, 2, 4})
        await asyncio.sleep(AFTER_LEASE_S)
        assert found.fence_reason

    with_master(test)


def test_master_proposes_no_set_until_a_controller_confirms_it_again() -> None:
    async def test(confirmation: Confirmation, found: Set) -> None:
        await asyncio.sleep(5)
        assert found.is_failsafe, "so it proposes none"
        found.answers = True
        await confirmation.beat(ME._replace(broker_id=1))
        assert not found.is_failsafe

    with_master(test)


def test_master_that_has_learned_of_a_newer_epoch_asks_nobody() -> None:
    async def test(confirmation: Confirmation, found: Set) -> None:
        confirmation.failsafe.learn_epoch(8)
        await asyncio.sleep(AFTER_LEASE_S)
        assert found.fence_reason
        assert not found.asked

    with_master(test)
