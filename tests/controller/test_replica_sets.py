"""Decisions about broker sets: codes, texts and states of Java's controller, and the exceptions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kourou.controller.broker_set import (
    BrokerSet,
    Refusal,
    decode_broker_set,
    encode_broker_set,
)
from kourou.controller.heartbeats import Heartbeat, elect
from kourou.controller.replica_sets import (
    BY_CONTROLLER,
    Decision,
    Write,
    alter_sync_state_set,
    apply_broker_id,
    clean_broker_data,
    elect_master,
    get_next_broker_id,
    get_replica_info,
    register_broker,
    replicas_info,
)
from kourou.errors import MalformedBodyError
from kourou.protocol.controller.headers import (
    AlterSyncStateSetRequestHeader,
    ApplyBrokerIdRequestHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponse,
    ElectMasterResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
    SyncStateSet,
)
from kourou.protocol.json_records import decode_record
from tests.controller_sets import CLUSTER, NAME, beat, broker_set

ALIVE = {1: beat(), 2: beat(), 3: beat()}


def after(decision: Decision) -> BrokerSet:
    """Return the state that the decision stores."""
    assert decision.write is not None
    assert decision.write.broker_set is not None
    return decision.write.broker_set


def apply(current: BrokerSet | None, broker_id: int, code: str = "h:9;1") -> Decision:
    return apply_broker_id(current, ApplyBrokerIdRequestHeader(CLUSTER, NAME, broker_id, code))


def alter(
    current: BrokerSet | None,
    proposed: tuple[int, ...],
    *,
    master: int = 1,
    epoch: int = 1,
    in_sync_epoch: int = 1,
    alive: dict[int, Heartbeat] = ALIVE,
) -> Decision:
    header = AlterSyncStateSetRequestHeader(NAME, master, epoch)
    return alter_sync_state_set(current, header, SyncStateSet(proposed, in_sync_epoch), alive)


def ask_election(
    current: BrokerSet | None,
    broker_id: int = BY_CONTROLLER,
    *,
    designate: bool = False,
    alive: dict[int, Heartbeat] = ALIVE,
    is_lease_over: bool = True,
    unclean: bool | None = None,
) -> Decision:
    header = ElectMasterRequestHeader(CLUSTER, NAME, broker_id, designate, unclean=unclean)
    return elect_master(current, header, alive, is_lease_over=is_lease_over, has_heard_all=True)


def clean(
    current: BrokerSet | None,
    ids: str | None,
    *,
    living: bool = False,
    alive: dict[int, Heartbeat] = ALIVE,
) -> Decision:
    header = CleanControllerBrokerDataRequestHeader(CLUSTER, NAME, ids, living)
    return clean_broker_data(current, header, alive)


def test_first_replica_creates_the_set_with_id_1() -> None:
    header = GetNextBrokerIdRequestHeader(CLUSTER, NAME)
    assert get_next_broker_id(None, header).header == GetNextBrokerIdResponseHeader(
        CLUSTER, NAME, 1
    )

    created = after(apply(None, 1))

    assert created == replace(
        broker_set(1, master=None, epoch=0, in_sync=(), in_sync_epoch=0),
        replicas=created.replicas,
    )
    assert created.replicas[0].address == "h:9"
    assert get_next_broker_id(created, header).header == GetNextBrokerIdResponseHeader(
        CLUSTER, NAME, 2
    )


def test_first_replica_of_a_set_cannot_apply_for_another_id() -> None:
    refused = apply(None, 2)

    assert (refused.code, refused.write) == (2014, None)
    assert refused.remark == (
        "Broker-set: a hasn't been registered in controller, but broker try to apply brokerId: 2"
    )


def test_repeated_application_succeeds_and_another_for_the_same_id_is_refused() -> None:
    current = broker_set(1)

    assert apply(current, 1, "h:1;0") == Decision(header=apply(current, 2).header)
    refused = apply(current, 1, "h:1;5")
    assert (refused.code, refused.remark) == (
        2014, "Fail to apply brokerId: 1 in broker-set: a",
    )  # fmt: skip


def test_id_of_a_removed_replica_is_never_assigned_again() -> None:
    cleaned = after(clean(broker_set(1, 2), "2", alive={1: beat()}))

    assert cleaned.ids == (1,)
    assert apply(cleaned, 2).code == 2014
    assert after(apply(cleaned, 3)).ids == (1, 3)


@pytest.mark.parametrize(
    ("current", "asked", "code", "remark"),
    [
        (None, {}, 2013, "Broker metadata is not existed"),
        (
            broker_set(1, 2, in_sync=(1, 2)),
            {"master": 2},
            2013,
            "The newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet",
        ),
        (
            broker_set(1, 2),
            {"master": 2},
            2002,
            "Rejecting alter syncStateSet request because the current leader is:{1}, not {2}",
        ),
        (
            broker_set(1, 2, master=None),
            {},
            2002,
            "Rejecting alter syncStateSet request because the current leader is:{null}, not {1}",
        ),
        (
            broker_set(1, 2),
            {"epoch": 2},
            2000,
            "Rejecting alter syncStateSet request because the current master epoch is:{1}, not {2}",
        ),
        (
            broker_set(1, 2),
            {"in_sync_epoch": 0},
            2001,
            (
                "Rejecting alter syncStateSet request because the current syncStateSet epoch "
                "is:{1}, not {0}"
            ),
        ),
        (
            broker_set(1),
            {},
            2003,
            "Rejecting alter syncStateSet request because the replicas {2} don't exist",
        ),
        (
            broker_set(1, 2),
            {"alive": {1: beat()}},
            2006,
            "Rejecting alter syncStateSet request because the replicas {2} don't alive",
        ),
    ],
)
def test_change_of_the_set_in_sync_is_refused_like_in_java(
    current: BrokerSet | None, asked: dict[str, int], code: int, remark: str
) -> None:
    refused = alter(current, (1, 2), **asked)  # type: ignore[arg-type]  # some of its options

    assert (refused.code, refused.remark, refused.write) == (code, remark, None)


def test_member_that_is_not_alive_keeps_no_other_replica_out_of_the_set() -> None:
    current = broker_set(1, 2, 3, in_sync=(1, 2))
    changed = alter(current, (1, 2, 3), alive={1: beat(), 3: beat()})
    refused = alter(current, (1, 2, 3), alive={2: beat(), 3: beat()})

    assert after(changed).sync_state_set == (1, 2, 3)
    assert (refused.code, refused.write) == (2006, None)


def test_master_cannot_leave_the_set_in_sync() -> None:
    refused = alter(broker_set(1, 2, in_sync=(1, 2)), (2,))

    assert (refused.code, refused.write) == (2013, None)
    assert "don't contains origin leader {1}" in (refused.remark or "")


def test_change_of_the_set_in_sync_raises_its_epoch() -> None:
    decision = alter(broker_set(1, 2), (2, 1))

    assert after(decision) == broker_set(1, 2, in_sync=(1, 2), in_sync_epoch=2)
    assert decision.code == 0
    assert decode_record(SyncStateSet, decision.body) == SyncStateSet((1, 2), 2)


def test_first_election_chooses_the_replica_that_asks() -> None:
    fresh = broker_set(1, 2, master=None, epoch=0, in_sync=(), in_sync_epoch=0)
    decision = ask_election(fresh, 2, alive={})

    assert after(decision) == broker_set(1, 2, master=2, in_sync=(2,))
    assert decision.header == ElectMasterResponseHeader(2, "h:2", 1, 1)
    body = decode_record(ElectMasterResponse, decision.body)
    assert body.sync_state_set == (2,)
    assert body.broker_member_group is not None
    assert body.broker_member_group.broker_addrs == {1: "h:1", 2: "h:2"}
    assert ask_election(fresh, 3).code == 2012


def test_election_is_refused_while_the_master_is_alive() -> None:
    current = broker_set(1, 2, in_sync=(1, 2))
    decision = ask_election(current, 2)

    assert (decision.code, decision.write) == (2011, None)
    assert decision.remark == (
        "The old master 1 is still alive, not need to elect new master for broker a"
    )
    assert decision.header == current.master
    assert decode_record(ElectMasterResponse, decision.body).sync_state_set == (1, 2)


def test_only_a_replica_in_sync_is_elected() -> None:
    current = broker_set(1, 2, 3, in_sync=(1, 2))
    ahead = {3: beat(epoch=9, max_offset=999), 2: beat()}

    assert after(ask_election(current, alive=ahead)) == broker_set(
        1, 2, 3, master=2, epoch=2, in_sync=(2,), in_sync_epoch=2
    )
    assert ask_election(current, 3, designate=True).code == 2012
    assert after(ask_election(current, 2, designate=True)).master_broker_id == 2


def test_replica_out_of_sync_is_elected_on_request_if_none_in_sync_is_alive() -> None:
    current = broker_set(1, 2, 3, in_sync=(1, 2))
    alive = {3: beat()}
    unclean = ask_election(current, 3, designate=True, unclean=True, alive=alive)
    refused = ask_election(current, 3, designate=True, unclean=True)
    early = ask_election(current, 3, designate=True, unclean=True, alive=alive, is_lease_over=False)

    assert after(unclean) == replace(
        broker_set(1, 2, 3, master=3, epoch=2, in_sync=(3,), in_sync_epoch=2), unclean_epoch=2
    )
    header = get_replica_info(after(unclean)).header
    assert header == GetReplicaInfoResponseHeader(3, "h:3", 2, 2)
    assert (refused.code, refused.write) == (2012, None)
    assert refused.remark == "The replicas [1, 2] are in sync and alive: one of them can be elected"
    assert (early.code, early.write) == (2012, None)
    assert ask_election(current, 9, designate=True, unclean=True, alive=alive).write is None
    assert ask_election(current, 3, designate=True, alive=alive).write is None


def test_replica_without_heartbeats_can_be_elected_uncleanly() -> None:
    """One that was shortened by a power cut sends none, in sync or not."""
    current = broker_set(1, 2, in_sync=(1,))

    for broker_id in (1, 2):
        elected = ask_election(current, broker_id, designate=True, unclean=True, alive={})
        assert after(elected).master_broker_id == broker_id
        assert after(elected).unclean_epoch == 2


def test_nobody_is_elected_before_the_lease_of_a_dead_master_has_ended() -> None:
    current = broker_set(1, 2, in_sync=(1, 2))
    alive = {2: beat()}

    for designate in (False, True):
        refused = ask_election(current, 2, designate=designate, alive=alive, is_lease_over=False)
        assert (refused.code, refused.write) == (2012, None)
    assert after(ask_election(current, 2, alive=alive)).master_broker_id == 2


def test_master_is_cleared_if_no_replica_in_sync_is_alive() -> None:
    current = broker_set(1, 2)
    cleared = ask_election(current, alive={2: beat()})

    assert cleared.code == 2004
    assert after(cleared) == broker_set(1, 2, master=None, epoch=2)
    assert ask_election(after(cleared), alive={2: beat()}).write is None
    asked = ask_election(current, 2, alive={2: beat()})
    assert (asked.code, asked.write) == (2012, None)
    assert ask_election(None).code == 2010


def test_latest_epoch_then_longest_log_then_priority_is_elected() -> None:
    assert elect([1, 2], {1: beat(1, 900), 2: beat(2, 100)}) == 2
    assert elect([1, 2], {1: beat(1, 100), 2: beat(1, 100 + 2**33)}) == 2
    assert elect([1, 2], {1: beat(1, 5, 8), 2: beat(1, 5, 7)}) == 2
    assert elect([2, 1], {1: beat(), 2: beat()}) == 1
    assert elect([1, 2], {3: beat()}) is None


def test_registration_names_the_master_only_while_it_is_alive() -> None:
    current = broker_set(1, 2)
    header = RegisterBrokerToControllerRequestHeader(CLUSTER, NAME, 2, "h:2")
    with_master = RegisterBrokerToControllerResponseHeader(CLUSTER, NAME, 1, "h:1", 1, 1)
    without = RegisterBrokerToControllerResponseHeader(CLUSTER, NAME)

    decision = register_broker(current, header, ALIVE)
    assert (decision.code, decision.header, decision.write) == (0, with_master, None)
    assert decode_record(SyncStateSet, decision.body) == SyncStateSet((1,), 1)
    assert register_broker(current, header, {2: beat()}).header == without


def test_registration_stores_a_changed_address() -> None:
    header = RegisterBrokerToControllerRequestHeader(CLUSTER, NAME, 2, "moved:2")

    stored = after(register_broker(broker_set(1, 2), header, ALIVE))

    assert [replica.address for replica in stored.replicas] == ["h:1", "moved:2"]


def test_unregistered_replica_is_refused() -> None:
    header = RegisterBrokerToControllerRequestHeader(CLUSTER, NAME, 7, "h:7")

    unknown = register_broker(None, header, ALIVE)
    assert (unknown.code, unknown.remark) == (
        2010, "Broker-set: a hasn't been registered in controller",
    )  # fmt: skip
    refused = register_broker(broker_set(1), header, ALIVE)
    assert (refused.code, refused.remark) == (
        2010, "BrokerId: 7 hasn't been registered in broker-set: a",
    )  # fmt: skip


def test_replica_info_has_the_epoch_also_without_a_master() -> None:
    decision = get_replica_info(broker_set(1, 2, master=None, epoch=2))

    assert decision.header == GetReplicaInfoResponseHeader(None, None, 2)
    assert decode_record(SyncStateSet, decision.body) == SyncStateSet((1,), 1)
    assert get_replica_info(None).code == 2008


def test_replicas_are_listed_in_and_out_of_sync() -> None:
    info = replicas_info(broker_set(1, 2), {2: beat()}, {2: beat(max_offset=7)}, 30)

    assert [(one.broker_id, one.alive) for one in info.in_sync_replicas] == [(1, False)]
    assert [(one.broker_id, one.alive) for one in info.not_in_sync_replicas] == [(2, True)]
    (two,) = info.not_in_sync_replicas
    assert (two.epoch, two.max_offset, two.silent_ms) == (1, 7, 30)
    assert (info.master_address, info.master_epoch, info.sync_state_set_epoch) == ("h:1", 1, 1)


def test_forced_election_waits_for_the_lease_and_continues_the_known_epochs() -> None:
    refused = replace(broker_set(1, 2, epoch=3), refusal=Refusal("older", 7, 9))
    asked = ElectMasterRequestHeader(CLUSTER, NAME, 2, True, unclean=True)

    def decide(*, is_lease_over: bool) -> Decision:
        return elect_master(
            refused, asked, {2: beat()}, is_lease_over=is_lease_over, has_heard_all=True
        )

    assert decide(is_lease_over=False).code == 2012
    stored = after(decide(is_lease_over=True))
    assert (stored.master_broker_id, stored.master_epoch, stored.sync_state_set_epoch) == (2, 8, 10)
    assert decode_broker_set(encode_broker_set(refused)) == refused


def test_living_replicas_are_removed_only_on_request() -> None:
    current = broker_set(1, 2, 3, in_sync=(1, 2))

    assert clean(current, None).remark == "Broker a is still alive, clean up failure"
    assert clean(current, "2").remark == "Broker [a,  2] is still alive, clean up failure"
    assert clean(current, "x").code == 2009
    assert clean(None, "2", alive={}).remark == (
        "Broker a is not existed,clean broker data failure."
    )
    assert after(clean(current, "2", living=True)) == broker_set(1, 3, in_sync_epoch=2)
    assert clean(current, None, living=True).write == Write(None)


def test_removed_master_leaves_the_set_without_a_master() -> None:
    current = broker_set(1, 2, in_sync=(1, 2))

    assert after(clean(current, "1", alive={2: beat()})) == broker_set(
        2, master=None, epoch=2, in_sync=(2,), in_sync_epoch=2
    )


def test_all_replicas_in_sync_can_be_removed_only_with_the_whole_set() -> None:
    current = broker_set(1, 2)

    refused = clean(current, "1", alive={})
    assert (refused.code, refused.write) == (2009, None)
    assert clean(current, "1;2", alive={}).write == Write(None)


def test_stored_set_decodes_to_the_same() -> None:
    current = broker_set(1, 2, in_sync=(1, 2))

    assert decode_broker_set(encode_broker_set(current)) == current


@pytest.mark.parametrize(
    "wrong",
    [
        broker_set(1, in_sync=(2,)),
        broker_set(1, master=2),
        broker_set(1, 1),
        replace(broker_set(1, 2), next_broker_id=2),
    ],
)
def test_contradictory_stored_set_is_refused(wrong: BrokerSet) -> None:
    with pytest.raises(MalformedBodyError, match="broker set a"):
        decode_broker_set(encode_broker_set(wrong))
