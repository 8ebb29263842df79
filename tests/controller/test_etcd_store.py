"""State in etcd: lost answers, ended leases, damaged, emptied and restored states."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.controller.etcd_store import EtcdStore
from kourou.controller.state_store import StateStore
from kourou.errors import ControllerStateError, NotLeadingError, WriteInDoubtError
from kourou.remoting.steady_time import steady_ms
from kourou.testing.etcd import SimulatedEtcd
from kourou.testing.loop import run_virtual
from tests.controller_sets import NAME, broker_set
from tests.controller_state import FIRST, SECOND, create


class Rig:
    """A simulated etcd."""

    def __init__(self) -> None:
        self.etcd = SimulatedEtcd(asyncio.get_running_loop().time)

    def open(self, prefix: str = "/kourou", lease_ms: int = 3000) -> EtcdStore:
        return EtcdStore(self.etcd, prefix, ttl_s=2, lease_ms=lease_ms, now_ms=steady_ms)


def run(test: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def with_rig() -> None:
        await test(Rig())

    run_virtual(with_rig())


@pytest.mark.parametrize("is_served", [False, True])
def test_lost_answer_leaves_a_write_in_doubt_until_it_is_repeated(*, is_served: bool) -> None:
    async def test(rig: Rig) -> None:
        store = rig.open()
        stored = await create(store)
        rig.etcd.lose_answer(is_served=is_served)
        wanted = broker_set(1, 2)
        with pytest.raises(WriteInDoubtError):
            await store.write(NAME, wanted, stored.version)
        result = await store.write(NAME, wanted, stored.version)
        assert result.is_written is not is_served
        assert result.stored is not None
        assert result.stored.broker_set == wanted
        await store.close()

    run(test)


@pytest.mark.parametrize("is_served", [False, True])
def test_campaign_whose_answer_is_lost_is_won_nevertheless(*, is_served: bool) -> None:
    async def test(rig: Rig) -> None:
        store = rig.open()
        rig.etcd.lose_answer(is_served=is_served)
        await asyncio.wait_for(store.campaign(FIRST), 5)
        assert store.leads()
        await store.close()

    run(test)


def test_controller_stops_leading_before_etcd_lets_another_one_lead() -> None:
    async def test(rig: Rig) -> None:
        first, second = rig.open(), rig.open()
        await create(first)
        waiting = asyncio.create_task(second.campaign(SECOND))
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        assert first._renewals is not None
        first._renewals.cancel()
        began_s, ended_s = loop.time(), 0.0
        while not waiting.done():
            if not ended_s and not first.leads():
                ended_s = loop.time()
            assert not (first.leads() and second.leads())
            await asyncio.sleep(0.01)
        assert 1.0 < ended_s - began_s < loop.time() - began_s < 3.0
        with pytest.raises(NotLeadingError):
            await first.write(NAME, None, 1)
        await second.close()

    run(test)


def test_late_write_of_an_earlier_leading_controller_changes_nothing() -> None:
    async def test(rig: Rig) -> None:
        first, second = rig.open(), rig.open()
        stored = await create(first)
        rig.etcd.restore(await without_leases(rig))
        await second.campaign(SECOND)
        assert first.leads()  # it has not heard of it yet
        with pytest.raises(NotLeadingError):
            await first.write(NAME, broker_set(1, 2), stored.version)
        assert not first.leads()
        await asyncio.wait_for(first.wait_deposed(), 1)
        await first.close()
        await second.close()

    async def without_leases(rig: Rig) -> Any:
        backup = rig.etcd.backup()
        for key in [key for key, one in backup.keys.items() if one.lease != "0"]:
            del backup.keys[key]
        backup.leases.clear()
        return backup

    run(test)


def test_leader_key_of_another_member_is_not_taken_over_with_an_equal_lease_id() -> None:
    async def test(rig: Rig) -> None:
        first, second = rig.open(), rig.open()
        await create(first)
        rig.etcd.last_lease -= 1  # the id is assigned again
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.campaign(SECOND), 1)
        assert first.leads()
        assert not second.leads()
        await first.close()
        await second.close()

    run(test)


def test_controller_that_resigns_leaves_the_leadership_to_another_one_for_a_while() -> None:
    async def test(rig: Rig) -> None:
        first, second = rig.open(), rig.open()
        await first.campaign(FIRST)
        assert not await first.resign()
        assert first.leads(), "there is no other one"
        campaign = asyncio.create_task(second.campaign(SECOND))
        await asyncio.sleep(0.5)
        assert await first.resign()
        assert not first.leads()
        again = asyncio.create_task(first.campaign(FIRST))
        await asyncio.wait_for(campaign, 1)
        await second.close()
        await asyncio.sleep(8)
        assert not again.done()
        await asyncio.wait_for(again, 3)
        await first.close()

    run(test)


def test_outage_of_etcd_ends_the_leadership_and_its_end_returns_it() -> None:
    async def test(rig: Rig) -> None:
        store = rig.open()
        stored = await create(store)
        rig.etcd.is_down = True
        await asyncio.sleep(2.5)
        assert not store.leads()
        assert "is down" in str(store.problem)
        rig.etcd.is_down = False
        await asyncio.wait_for(store.wait_deposed(), 5)
        term = await asyncio.wait_for(store.campaign(FIRST), 5)
        assert (term.sets, store.problem) == ({NAME: stored}, None)
        await store.close()

    run(test)


def test_emptied_etcd_is_refused_by_the_controller_that_used_it() -> None:
    async def test(rig: Rig) -> None:
        store = rig.open()
        stored = await create(store)
        rig.etcd.restore()
        with pytest.raises(NotLeadingError):
            await store.write(NAME, broker_set(1, 2), stored.version)
        with pytest.raises(ControllerStateError, match="has nothing below /kourou: it was emptied"):
            await store.campaign(FIRST)
        assert not store.leads()
        assert await rig.open().members() == []

    run(test)


def test_state_without_its_identity_and_damaged_sets_are_refused() -> None:
    async def refused(rig: Rig, key: bytes, value: str | None, reason: str) -> None:
        store = rig.open()
        await create(store)
        await store.close()
        damaged = rig.etcd.backup()
        if value is None:
            del damaged.keys[key]
        else:
            damaged.keys[key].value = value
        rig.etcd.restore(damaged)
        with pytest.raises(ControllerStateError, match=reason):
            await rig.open().campaign(FIRST)

    async def without_identity(rig: Rig) -> None:
        await refused(rig, b"/kourou/cluster", None, "a part of the state was removed")

    async def damaged(rig: Rig) -> None:
        await refused(rig, b"/kourou/sets/a", "e30=", "/kourou/sets/a is damaged")

    async def damaged_identity(rig: Rig) -> None:
        await refused(rig, b"/kourou/cluster", "e30=", "/kourou/cluster is damaged")

    for test in (without_identity, damaged, damaged_identity):
        run(test)


def test_states_below_other_prefixes_are_independent() -> None:
    async def test(rig: Rig) -> None:
        stores: list[StateStore] = [rig.open("/one"), rig.open("two/")]
        for store in stores:
            await create(store)
            assert store.leads()
        for store in stores:
            await store.close()

    run(test)


def test_longest_lease_of_all_controllers_is_stored() -> None:
    async def test(rig: Rig) -> None:
        for own_ms, expected_ms in ((3000, 3000), (9000, 9000), (1000, 9000)):
            store = rig.open(lease_ms=own_ms)
            assert (await store.campaign(FIRST)).lease_ms == expected_ms
            await store.close()

    run(test)


def test_waiting_controllers_and_renewals_write_nothing() -> None:
    async def test(rig: Rig) -> None:
        first, second = rig.open(), rig.open()
        await create(first)
        waiting = asyncio.create_task(second.campaign(SECOND))
        await asyncio.sleep(1)
        count = rig.etcd.write_count
        await asyncio.sleep(60)
        assert rig.etcd.write_count == count
        await first.close()
        await waiting
        await second.close()

    run(test)


def test_damaged_leader_key_is_reported_once_until_it_is_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: Rig) -> None:
        body = {"key": "L2tvdXJvdS9sZWFkZXI=", "value": "e30="}
        await rig.etcd.call("kv/put", body)
        store = rig.open()
        campaign = asyncio.create_task(store.campaign(FIRST))
        await asyncio.sleep(1)
        assert "the etcd key /kourou/leader is damaged" in str(store.problem)
        assert caplog.text.count("etcd.failed") == 1
        rig.etcd.restore()
        await asyncio.wait_for(campaign, 5)
        assert store.leads()
        await store.close()

    run(test)
