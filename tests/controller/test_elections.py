"""The leading controller: heartbeats, leases, elections, decisions whose result is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Self

import pytest

from kourou.controller import replica_sets
from kourou.controller.broker_set import BrokerSet
from kourou.controller.config import ControllerConfig, LiveConfig
from kourou.controller.elections import Elections
from kourou.controller.file_store import FileStore
from kourou.controller.replica_sets import Alive, Decision
from kourou.controller.state_store import Member, Stored, Term
from kourou.disk import Disk
from kourou.errors import NotLeadingError, WriteInDoubtError
from kourou.protocol.controller.headers import (
    AlterSyncStateSetRequestHeader,
    ElectMasterRequestHeader,
    SyncStateSet,
)
from kourou.protocol.topic_table import BrokerHeartbeatResponseHeader
from kourou.remoting.steady_time import steady_ms
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import call_directly
from tests.controller_sets import CLUSTER, NAME, broker_set, heartbeat_header

LEASE_MS = 3000
SCAN_MS = 500


class Rig:
    """A controller with its state on a disk, and the elections that it announced."""

    def __init__(self, disk: Disk | None = None, **options: int) -> None:
        self.disk = disk or SimDisk()
        config = LiveConfig(ControllerConfig(**options))  # type: ignore[arg-type]  # integers
        self.config = config
        self.store = FileStore(self.disk, call_directly, LEASE_MS)
        self.store.open()
        self.elections = Elections(self.store, config, steady_ms, self._on_elected)
        self.announced: list[tuple[int | None, int, list[int]]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def _on_elected(self, after: BrokerSet, alive: Alive) -> None:
        self.announced.append((after.master_broker_id, after.master_epoch, sorted(alive)))

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self.tasks = [
            loop.create_task(self.elections.run(Member("n0", "h:1"))),
            loop.create_task(self._scan()),
        ]
        await asyncio.sleep(0.001)
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.store.close()

    async def _scan(self) -> None:
        while True:
            await asyncio.sleep(SCAN_MS / 1000)
            await self.elections.scan()

    def begin(self, current: BrokerSet) -> None:
        """Begin a term with another state, as after a restore of etcd."""
        self.elections._begin(Term({NAME: Stored(current, 1)}, LEASE_MS))

    async def create(self, current: BrokerSet) -> None:
        """Store a set as if its elections had happened."""
        await self.elections.decide(
            NAME, None, lambda *_: Decision(write=replica_sets.Write(current))
        )
        self.announced.clear()

    async def state(self) -> BrokerSet:
        """Return the set as the controller answers about it."""
        found: list[BrokerSet | None] = []

        def look(current: BrokerSet | None, alive: Alive) -> Decision:
            found.append(current)
            return Decision()

        await self.elections.decide(NAME, None, look)
        assert found[0] is not None
        return found[0]

    def beat(self, broker_id: int = 1, *, oneway: bool = False, **header: Any) -> Decision:
        return self.elections.heartbeat(heartbeat_header(broker_id, **header), is_oneway=oneway)

    async def ask(
        self, broker_id: int, *, designate: bool = False, unclean: bool | None = None
    ) -> Decision:
        asked = ElectMasterRequestHeader(CLUSTER, NAME, broker_id, designate, unclean=unclean)
        return await self.elections.elect(asked)

    async def alter(self, proposed: tuple[int, ...], *, epoch: int, in_sync_epoch: int) -> Decision:
        header = AlterSyncStateSetRequestHeader(NAME, 1, epoch)
        return await self.elections.decide(
            NAME,
            None,
            lambda current, alive: replica_sets.alter_sync_state_set(
                current, header, SyncStateSet(proposed, in_sync_epoch), alive
            ),
            set_epoch=in_sync_epoch,
        )


def run(test: Coroutine[Any, Any, None]) -> None:
    run_virtual(test)


PAIR = broker_set(1, 2, in_sync=(1, 2))


def test_heartbeat_is_confirmed_with_the_master() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            assert rig.beat() == Decision(
                remark="Heart beat success",
                header=BrokerHeartbeatResponseHeader(1, "h:1", 1, 1),
            )

    run(test())


def test_unusable_heartbeat_is_refused() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            assert rig.elections.heartbeat(heartbeat_header(None), is_oneway=False) == Decision(
                2005, "Heart beat with empty brokerId"
            )
            assert rig.beat(7).code == 2010
            assert rig.beat(cluster="other").code == 2005
            assert rig.elections.alive_count == 0

    run(test())


def test_longer_timeout_than_new_leading_controllers_wait_is_not_confirmed() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            assert rig.beat(timeout_ms=LEASE_MS).code == 0
            refused = rig.beat(timeout_ms=LEASE_MS + 1)
            assert refused.code == 2005
            assert "leaseMsMax" in (refused.remark or "")
            # Java's brokers have no lease, and read no answer.
            assert rig.beat(timeout_ms=10_000, oneway=True).code == 0

    run(test())


def test_silent_master_is_replaced_after_its_timeout_and_a_scan() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            await asyncio.sleep(LEASE_MS / 1000)
            rig.beat(1)
            for _ in range(6):
                rig.beat(2)
                await asyncio.sleep(0.5)
            assert (await rig.state()).master_broker_id == 1
            rig.beat(2)
            await asyncio.sleep(0.6)
            after = await rig.state()
            assert (after.master_broker_id, after.master_epoch, after.sync_state_set) == (
                2,
                2,
                (2,),
            )
            assert rig.announced == [(2, 2, [2])]
            assert rig.elections.elected_count >= 1

    run(test())


def test_new_leading_controller_elects_nobody_for_a_whole_lease() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Rig(disk) as rig:
            await rig.create(PAIR)
        async with Rig(disk) as rig:
            rig.beat(2)
            refused = await rig.ask(2)
            assert (refused.code, "lease" in (refused.remark or "")) == (2012, True)
            await asyncio.sleep(LEASE_MS / 1000 - 0.1)
            rig.beat(2)
            assert (await rig.state()).master_broker_id == 1
            await asyncio.sleep(0.6)
            assert (await rig.state()).master_broker_id == 2

    run(test())


def test_restarted_master_gets_its_new_epoch_when_all_replicas_were_heard() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Rig(disk) as rig:
            await rig.create(PAIR)
        async with Rig(disk) as rig:
            rig.beat(1)
            refused = await rig.ask(1)
            assert (refused.code, "have not been heard" in (refused.remark or "")) == (2012, True)
            rig.beat(2)
            assert (await rig.ask(1)).code == 0
            assert (await rig.state()).master_epoch == 2
        async with Rig(disk) as rig:
            await asyncio.sleep(LEASE_MS / 1000)
            rig.beat(1)
            assert (await rig.ask(1)).code == 0, "the other one is down"

    run(test())


def test_restored_state_gives_no_epoch_again_to_its_master() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Rig(disk) as rig:
            await rig.create(PAIR)
        async with Rig(disk) as rig:
            rig.beat(1)
            assert (await rig.ask(1)).code == 2012
            assert rig.beat(2, epoch=2).code == 2005, "it was in an epoch that the state lacks"
            assert (await rig.ask(1)).code == 2005

    run(test())


def test_latest_heartbeat_ranks_a_replica_not_the_largest() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(broker_set(1, 2, 3, in_sync=(1, 2, 3)))
            rig.beat(2, max_offset=2**40)
            rig.beat(3, max_offset=500)
            await asyncio.sleep(LEASE_MS / 1000 - 0.2)
            rig.beat(2, max_offset=100)
            rig.beat(3, max_offset=500)
            await asyncio.sleep(0.8)
            assert (await rig.state()).master_broker_id == 3

    run(test())


def test_time_in_which_the_controller_was_stopped_does_not_count() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            await asyncio.sleep(LEASE_MS / 1000 + 0.1)
            rig.beat(1)
            rig.beat(2)
            loop = asyncio.get_running_loop()
            loop.advance(60)  # type: ignore[attr-defined]  # of the virtual loop
            await asyncio.sleep(0.6)
            rig.beat(1)
            rig.beat(2)
            await asyncio.sleep(0.6)
            assert (await rig.state()).master_broker_id == 1

    run(test())


def test_designated_replica_becomes_master_at_once() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            rig.beat(1)
            rig.beat(2)
            assert (await rig.ask(2)).code == 2011
            assert (await rig.ask(2, designate=True)).code == 0
            assert rig.announced == [(2, 2, [1, 2])]
            answer = rig.beat(1).header
            assert isinstance(answer, BrokerHeartbeatResponseHeader)
            assert (answer.master_broker_id, answer.master_epoch) == (2, 2)

    run(test())


def test_state_older_than_an_epoch_of_a_broker_is_refused() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            rig.beat(2)
            refused = rig.beat(1, epoch=7)
            assert refused.code == 2005
            assert "broker 1 reports epoch 7, and the stored state has 1" in (refused.remark or "")
            assert rig.elections.refusals == [refused.remark]
            await asyncio.sleep(LEASE_MS / 1000)
            assert rig.beat(2).code == 2005
            assert (await rig.ask(2)).code == 2005
            assert rig.announced == []

    run(test())


@pytest.mark.parametrize(
    ("role", "told", "stored"),
    [
        ((2, 1), "epoch 2 of master 1", "1"),
        ((2, None), "epoch 2", "1"),  # the broker has started since
        ((1, 2), "epoch 1 of master 2", "epoch 1 of master 1"),  # given out twice
    ],
)
def test_state_without_the_election_of_a_role_is_refused(
    role: tuple[int, int | None], told: str, stored: str
) -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            assert rig.beat(2, role=(1, 1)).code == 0
            assert rig.beat(2, role=(1, None)).code == 0
            refused = rig.beat(2, role=role)
            assert refused.code == 2005
            text = f"broker 2 reports {told}, and the stored state has {stored}: "
            assert text in (refused.remark or "")
            assert (await rig.ask(2)).code == 2005

    run(test())


def test_state_older_than_the_set_of_a_master_is_refused() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            rig.beat(1)
            rig.beat(2)
            refused = await rig.alter((1,), epoch=1, in_sync_epoch=2)
            assert refused.code == 2005
            assert "set in sync 2, and the stored state has 1" in (refused.remark or "")
            await asyncio.sleep(LEASE_MS / 1000)
            assert rig.beat(1).code == 2005
            rig.beat(2)
            await asyncio.sleep(LEASE_MS / 1000)
            assert rig.announced == []

    run(test())


def test_refusal_is_stored_for_the_next_leading_controller() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Rig(disk) as rig:
            await rig.create(PAIR)
            rig.beat(2)
            reason = rig.beat(1, epoch=7).remark
            await asyncio.sleep(SCAN_MS / 1000)
        async with Rig(disk) as rig:
            assert rig.elections.refusals == [reason]
            assert rig.beat(2).remark == reason
            await asyncio.sleep(2 * LEASE_MS / 1000)
            assert (await rig.ask(2)).remark == reason
            assert rig.announced == []
            (info,) = (await rig.elections.replicas_info([NAME])).values()
            assert info.refusal == reason

    run(test())


def test_replicas_of_a_refused_set_count_as_alive() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            rig.beat(1, epoch=7)
            rig.beat(2)
            await asyncio.sleep(2)
            assert rig.beat(1, epoch=7).code == rig.beat(2).code == 2005
            await asyncio.sleep(2)
            assert rig.elections.alive_count == 2, "otherwise their controller would resign"

    run(test())


def test_refusal_that_could_not_be_stored_is_stored_by_a_later_scan() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Rig(disk) as rig:
            await rig.create(PAIR)
            disk.fail_after(0, OSError("failed"))
            assert rig.beat(1, epoch=7).code == 2005
            await asyncio.sleep(SCAN_MS * 3 / 1000)
        async with Rig(disk) as rig:
            assert len(rig.elections.refusals) == 1

    run(test())


def test_master_is_elected_in_a_refused_set_only_on_request_and_in_a_new_epoch() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            rig.beat(2)
            rig.beat(1, epoch=7)
            assert (await rig.ask(2, designate=True)).code == 2005
            assert (await rig.ask(2, unclean=True)).code == 2005
            assert (await rig.ask(2, designate=True, unclean=True)).code == 0
            state = await rig.state()
            assert (state.master_broker_id, state.master_epoch, state.unclean_epoch) == (2, 8, 8)
            assert (state.sync_state_set, state.refusal) == ((2,), None)
            assert rig.elections.refusals == []
            assert rig.beat(1, epoch=7).code == 0
            assert rig.announced == [(2, 8, [1, 2])]

    run(test())


def test_controller_refuses_a_state_older_than_the_one_it_had() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(replace(PAIR, master_epoch=3, sync_state_set_epoch=5))
            older = [
                replace(PAIR, master_epoch=2, sync_state_set_epoch=5),
                replace(PAIR, master_epoch=3, sync_state_set_epoch=4),
                replace(PAIR, master_epoch=3, sync_state_set_epoch=5, master_broker_id=2),
            ]
            for state in older:
                rig.begin(replace(PAIR, master_epoch=3, sync_state_set_epoch=5))
                assert rig.elections.refusals == []
                rig.begin(state)
                (reason,) = rig.elections.refusals
                assert "this controller knew epoch 3" in reason

    run(test())


def test_refusal_ends_with_a_state_that_has_what_is_known() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            assert rig.beat(1, epoch=7).code == 2005
            rig.begin(replace(PAIR, master_epoch=6))
            assert rig.beat(1).code == 2005
            rig.begin(replace(PAIR, master_epoch=7))
            assert rig.elections.refusals == []
            assert rig.beat(1, epoch=7).code == 0

    run(test())


def test_set_that_was_removed_and_made_again_is_not_an_older_one() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(replace(PAIR, master_epoch=7))
            again = broker_set(1)
            rig.begin(
                replace(again, replicas=(replace(again.replicas[0], register_check_code=""),))
            )
            assert rig.elections.refusals == []

    run(test())


def test_broker_of_another_cluster_refuses_no_set() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            foreign = rig.beat(1, epoch=7, cluster="D")
            assert (foreign.code, foreign.remark) == (
                2005, "broker set a belongs to cluster C, not D",
            )  # fmt: skip
            assert rig.beat(1).code == 0

    run(test())


def test_emptied_state_creates_no_set_that_brokers_have_epochs_of() -> None:
    async def test() -> None:
        async with Rig() as rig:
            assert rig.beat(1, epoch=3).code == 2005
            decision = await rig.elections.decide(
                NAME, None, lambda *_: Decision(write=replica_sets.Write(PAIR))
            )
            assert decision.code == 2005
            assert rig.beat(1, name="new", epoch=None).code == 2010

    run(test())


def test_set_of_another_cluster_is_refused() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            asked = ElectMasterRequestHeader("D", NAME, 2, True)
            refused = await rig.elections.elect(asked)
            assert (refused.code, refused.remark) == (
                2005, "broker set a belongs to cluster C, not D",
            )  # fmt: skip

    run(test())


def test_limits_of_sets_and_replicas_are_kept() -> None:
    async def test() -> None:
        async with Rig(broker_sets_max=1, replicas_max=2) as rig:
            await rig.create(PAIR)
            write = Decision(write=replica_sets.Write(broker_set(1, 2, 3)))
            assert (await rig.elections.decide(NAME, None, lambda *_: write)).code == 2005
            assert (await rig.elections.decide("b", None, lambda *_: write)).code == 2005
            assert (await rig.state()) == PAIR

    run(test())


@pytest.mark.parametrize("is_stored", [False, True])
def test_answers_wait_until_a_decision_in_doubt_is_stored(*, is_stored: bool) -> None:
    """The set grows and the result is unknown: an answer {1} would let master 1 lose messages."""

    async def test() -> None:
        disk = SimDisk()
        async with Rig(disk) as rig:
            await rig.create(broker_set(1, 2))
            rig.beat(1)
            rig.beat(2)
            kind = "sync_directory" if is_stored else "write"
            disk.fail_after(0, OSError("failed"), [kind])
            with pytest.raises(WriteInDoubtError):
                await rig.alter((1, 2), epoch=1, in_sync_epoch=1)
            assert (await rig.state()).sync_state_set == (1, 2)
            assert (await rig.state()).sync_state_set_epoch == 2

    run(test())


def test_no_master_is_confirmed_while_an_election_is_in_doubt() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Rig(disk) as rig:
            await rig.create(PAIR)
            rig.beat(1)
            rig.beat(2)
            disk.fail_after(0, OSError("failed"))
            with pytest.raises(WriteInDoubtError):
                await rig.ask(2, designate=True)
            assert rig.beat(1).code == 2004
            await asyncio.sleep(0.6)
            assert rig.announced == [(2, 2, [1, 2])]
            assert rig.beat(1).code == 0

    run(test())


def test_controller_that_does_not_lead_answers_nothing() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            await rig.store.close()
            with pytest.raises(NotLeadingError):
                rig.beat(1)
            with pytest.raises(NotLeadingError):
                await rig.ask(2)

    run(test())


def test_removed_set_can_be_created_again_while_its_brokers_still_run() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            await rig.elections.decide(
                NAME, None, lambda *_: Decision(write=replica_sets.Write(None))
            )
            assert rig.beat(1, epoch=1).code == 2010
            await rig.create(broker_set(1, master=None, epoch=0, in_sync=(), in_sync_epoch=0))
            assert rig.elections.refusals == []

    run(test())


def test_removal_in_doubt_is_repeated_and_refuses_nothing() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Rig(disk) as rig:
            await rig.create(PAIR)
            disk.fail_after(0, OSError("failed"), ["sync_directory"])
            with pytest.raises(WriteInDoubtError):
                await rig.elections.decide(
                    NAME, None, lambda *_: Decision(write=replica_sets.Write(None))
                )
            await asyncio.sleep(0.6)
            assert rig.beat(1).code == 2010
            assert rig.elections.refusals == []

    run(test())


def test_paused_controller_replaces_no_master_until_it_goes_on() -> None:
    async def test() -> None:
        async with Rig() as rig:
            await rig.create(PAIR)
            rig.config.change({"electionsPaused": "true"})
            masters = []
            for _ in range(2):
                for _ in range(10):
                    rig.beat(2)
                    await asyncio.sleep(1)
                masters.append((await rig.state()).master_broker_id)
                rig.config.change({"electionsPaused": "false"})
            assert masters == [1, 2]

    run(test())


def test_replica_that_was_elected_uncleanly_has_time_to_begin_its_heartbeats() -> None:
    async def test() -> None:
        async with Rig(heartbeat_timeout_ms=5_000) as rig:
            await rig.create(broker_set(1, 2, 3, in_sync=(1,)))
            for _ in range(5):
                rig.beat(3)
                await asyncio.sleep(1)
            lost = (await rig.state()).master_broker_id
            asked = ElectMasterRequestHeader(CLUSTER, NAME, 2, designate_elect=True, unclean=True)
            elected = await rig.elections.elect(asked)
            masters = []
            for _ in range(7):
                rig.beat(3)
                await asyncio.sleep(1)
                masters.append((await rig.state()).master_broker_id)
            assert (lost, elected.code) == (None, 0)
            assert masters[:4] == [2] * 4
            assert masters[-1] is None, "it never began"

    run(test())
