"""Contract of the states of controllers: functions that run on each implementation.

`ALONE` holds for every state, `SHARED` for states that several controllers share. Each function
gets a function that opens the state for one more controller; those of etcd alone get that, too.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import pytest

from kourou.controller.broker_set import BrokerSet
from kourou.controller.etcd_gateway import Etcd
from kourou.controller.state_store import Member, StateStore, Stored
from kourou.errors import NotLeadingError
from tests.controller_sets import NAME, broker_set

Open = Callable[[], StateStore]
Contract = Callable[[Open], Coroutine[Any, Any, None]]
EtcdContract = Callable[[Open, Etcd], Coroutine[Any, Any, None]]

FIRST: Final = Member("n0", "h:1")
SECOND: Final = Member("n1", "h:2")
TIMEOUT_S: Final = 20.0


async def write(store: StateStore, after: BrokerSet | None, version: int) -> Stored | None:
    """Write a set that must be accepted; return it as stored."""
    result = await store.write(NAME, after, version)
    assert result.is_written
    assert (None if result.stored is None else result.stored.broker_set) == after
    return result.stored


async def create(store: StateStore) -> Stored:
    """Lead, and create the set."""
    term = await store.campaign(FIRST)
    assert term.sets == {}
    stored = await write(store, broker_set(1), 0)
    assert stored is not None
    return stored


async def a_written_set_is_read_in_the_next_term(open_state: Open) -> None:
    store = open_state()
    stored = await create(store)
    await store.close()
    assert not store.leads()

    store = open_state()
    term = await store.campaign(FIRST)
    assert dict(term.sets) == {NAME: stored}
    assert store.leads()
    after = await write(store, broker_set(1, 2, epoch=2), stored.version)
    assert after is not None
    assert after.version > stored.version
    await store.close()


async def a_write_from_another_version_changes_nothing(open_state: Open) -> None:
    store = open_state()
    stored = await create(store)
    wanted = broker_set(1, 2)
    for version in (0, stored.version + 1, max(0, stored.version - 1)):
        result = await store.write(NAME, wanted, version)
        assert (result.is_written, result.stored) == (False, stored)
        result = await store.write(NAME, None, version)
        assert (result.is_written, result.stored) == (False, stored)
    result = await store.write("other", wanted, stored.version)
    assert (result.is_written, result.stored) == (False, None)
    await store.close()


async def a_removed_set_is_gone_and_can_be_created_again(open_state: Open) -> None:
    store = open_state()
    stored = await create(store)
    assert await write(store, None, stored.version) is None
    result = await store.write(NAME, broker_set(1), stored.version)
    assert (result.is_written, result.stored) == (False, None)
    again = await write(store, broker_set(1, 2), 0)
    await store.close()

    store = open_state()
    assert dict((await store.campaign(FIRST)).sets) == {NAME: again}
    await store.close()


async def many_sets_with_any_names_are_read(open_state: Open) -> None:
    store = open_state()
    await store.campaign(FIRST)
    # More than one page of etcd.
    names = [*(f"broker-{number}" for number in range(510)), "a b/c", "a\u00fc", "%"]
    for name in names:
        wanted = replace(broker_set(1), broker_name=name)
        assert (await store.write(name, wanted, 0)).is_written
    await store.close()

    store = open_state()
    assert sorted((await store.campaign(FIRST)).sets) == sorted(names)
    await store.close()


async def the_leading_controller_is_known(open_state: Open) -> None:
    store = open_state()
    assert not store.leads()
    assert await store.leader() is None
    await store.campaign(FIRST)
    assert await store.leader() == FIRST
    assert await store.members() == [FIRST]
    await store.close()
    await asyncio.wait_for(store.wait_deposed(), TIMEOUT_S)


async def only_one_controller_leads(open_state: Open) -> None:
    first, second = open_state(), open_state()
    await create(first)
    waiting = asyncio.create_task(second.campaign(SECOND))
    await asyncio.sleep(3)
    assert not waiting.done()
    assert (first.leads(), second.leads()) == (True, False)
    assert await second.leader() == FIRST
    assert sorted(await first.members(), key=str) == [FIRST, SECOND]
    with pytest.raises(NotLeadingError):
        await second.write(NAME, None, 1)
    await first.close()
    term = await asyncio.wait_for(waiting, TIMEOUT_S)
    assert second.leads()
    assert list(term.sets) == [NAME]
    await second.close()


async def a_leader_key_with_another_lease_is_not_its_own(open_state: Open, etcd: Etcd) -> None:
    """Give the leader key, created by the same revision, to another controller's lease."""
    store = open_state()
    stored = await create(store)
    key = base64.b64encode(b"/kourou/leader").decode()
    (before,) = (await etcd.call("kv/range", {"key": key}))["kvs"]
    lease = (await etcd.call("lease/grant", {"TTL": "60"}))["ID"]
    await etcd.call("kv/put", {"key": key, "value": before["value"], "lease": lease})
    (after,) = (await etcd.call("kv/range", {"key": key}))["kvs"]
    assert after["create_revision"] == before["create_revision"]
    with pytest.raises(NotLeadingError):
        await store.write(NAME, broker_set(1, 2), stored.version)
    assert not store.leads()
    await store.close()
    await etcd.call("lease/revoke", {"ID": lease})

    store = open_state()
    assert dict((await store.campaign(FIRST)).sets) == {NAME: stored}
    await store.close()


async def a_leader_without_its_key_is_deposed(open_state: Open, etcd: Etcd) -> None:
    """Remove the leader key, as an etcd that was restored may lack it; the lease goes on."""
    store = open_state()
    await store.campaign(FIRST)
    key = base64.b64encode(b"/kourou/leader").decode()
    await etcd.call("kv/txn", {"success": [{"request_delete_range": {"key": key}}]})
    async with asyncio.timeout(10):
        await store.wait_deposed()
    assert not store.leads()
    await store.campaign(FIRST)
    await store.close()


async def a_term_begins_with_the_longest_lease_of_earlier_ones(open_state: Open) -> None:
    store = open_state()
    assert (await store.campaign(FIRST)).lease_ms == 3000
    await store.close()


ALONE: Final[tuple[Contract, ...]] = (
    a_written_set_is_read_in_the_next_term,
    a_write_from_another_version_changes_nothing,
    a_removed_set_is_gone_and_can_be_created_again,
    many_sets_with_any_names_are_read,
    the_leading_controller_is_known,
    a_term_begins_with_the_longest_lease_of_earlier_ones,
)
SHARED: Final[tuple[Contract, ...]] = (*ALONE, only_one_controller_leads)
OF_ETCD: Final[list[EtcdContract]] = [
    a_leader_key_with_another_lease_is_not_its_own,
    a_leader_without_its_key_is_deposed,
]
