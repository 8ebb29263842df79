"""Decisions about a broker set: each request's check of the state, its answer, its new state.

All functions are pure: they take the state of the set and the replicas that are alive, and return a
`Decision`. The caller stores the new state before it sends the answer. Codes and texts are those of
Java, except where a comment gives the reason.

Source: ReplicasInfoManager.java, SyncStateInfo.java, BrokerReplicaInfo.java,
DefaultElectPolicy.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from kourou.controller.broker_set import BrokerSet, Replica
from kourou.controller.heartbeats import Heartbeat, elect
from kourou.protocol.codes import ResponseCode
from kourou.protocol.controller.headers import (
    AlterSyncStateSetRequestHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdRequestHeader,
    ApplyBrokerIdResponseHeader,
    CleanControllerBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ElectMasterResponse,
    ElectMasterResponseHeader,
    GetNextBrokerIdRequestHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoResponseHeader,
    RegisterBrokerToControllerRequestHeader,
    RegisterBrokerToControllerResponseHeader,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
    applicant_address,
)
from kourou.protocol.json_records import encode_record
from kourou.protocol.routes import BrokerMemberGroup

Alive = Mapping[int, Heartbeat]
"""The replicas of the set that are alive, by id."""

BY_CONTROLLER: Final = -1
"""The broker id of an election that the controller itself begins."""


class Write(NamedTuple):
    """The new state of a broker set; None removes it."""

    broker_set: BrokerSet | None


class Decision(NamedTuple):
    """The answer to a request, and the state to store before it is sent.

    Attributes:
        write: None if the state does not change.
    """

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: object | None = None
    body: bytes = b""
    write: Write | None = None


def alter_sync_state_set(
    current: BrokerSet | None,
    asked: AlterSyncStateSetRequestHeader,
    proposed: SyncStateSet,
    alive: Alive,
) -> Decision:
    """Decide CONTROLLER_ALTER_SYNC_STATE_SET (1001)."""
    failed = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    header = AlterSyncStateSetResponseHeader()
    if current is None:
        return Decision(failed, "Broker metadata is not existed", header)
    wanted = set(proposed.sync_state_set or ())
    refusal = "Rejecting alter syncStateSet request because the"
    if wanted == set(current.sync_state_set):
        text = "newSyncStateSet is equal with oldSyncStateSet, no needed to update syncStateSet"
        return Decision(failed, f"The {text}", header)
    master = current.master_broker_id
    if master is None or master != asked.master_broker_id:
        was = "null" if master is None else master
        text = f"{refusal} current leader is:{{{was}}}, not {{{asked.master_broker_id}}}"
        return Decision(ResponseCode.CONTROLLER_INVALID_MASTER, text, header)
    epoch = current.master_epoch
    if epoch != asked.master_epoch:
        text = f"{refusal} current master epoch is:{{{epoch}}}, not {{{asked.master_epoch}}}"
        return Decision(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, text, header)
    epoch = current.sync_state_set_epoch
    if epoch != proposed.sync_state_set_epoch:
        not_epoch = proposed.sync_state_set_epoch
        text = f"{refusal} current syncStateSet epoch is:{{{epoch}}}, not {{{not_epoch}}}"
        return Decision(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, text, header)
    for broker_id in sorted(wanted):
        if current.replica(broker_id) is None:
            text = f"{refusal} replicas {{{broker_id}}} don't exist"
            return Decision(ResponseCode.CONTROLLER_INVALID_REPLICAS, text, header)
        # Java demands it of all, so that one member that it takes for lost, although its master has
        # its reports, keeps every other replica out of the set.
        is_kept = broker_id != master and broker_id in current.sync_state_set
        if broker_id not in alive and not is_kept:
            text = f"{refusal} replicas {{{broker_id}}} don't alive"
            return Decision(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, text, header)
    if master not in wanted:
        text = f"{refusal} newSyncStateSet don't contains origin leader {{{master}}}"
        return Decision(failed, text, header)
    after = replace(current, sync_state_set=tuple(sorted(wanted)), sync_state_set_epoch=epoch + 1)
    return Decision(
        header=AlterSyncStateSetResponseHeader(epoch + 1),
        body=encode_record(after.in_sync),
        write=Write(after),
    )


def elect_master(
    current: BrokerSet | None,
    asked: ElectMasterRequestHeader,
    alive: Alive,
    *,
    is_lease_over: bool,
    has_heard_all: bool,
) -> Decision:
    """Decide CONTROLLER_ELECT_MASTER (1002); with the id `BY_CONTROLLER`, a dead master's election.

    Args:
        current: the broker set.
        asked: the request.
        alive: the replicas that are alive.
        is_lease_over: whether the lease of a master that is not alive has certainly ended.
        has_heard_all: whether this controller has had the time to hear all replicas. One of them
            may report an epoch that a restored state lacks, in which the master would begin again.
    """
    if current is None:
        text = "Broker hasn't been registered"
        header = ElectMasterResponseHeader()
        return Decision(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, text, header)
    broker_id = BY_CONTROLLER if asked.broker_id is None else asked.broker_id
    master = current.master_broker_id
    elected = None
    if current.refusal is None:
        elected = _elected(current, broker_id, alive, is_designated=asked.designate_elect)
    if elected is not None and elected == master:
        if broker_id != master or asked.designate_elect:
            return _still_master(current)
        # It has restarted, and asks for a new epoch, because its slaves may have records of the old
        # one that it has lost. Java's brokers go on in the old one, and do not ask.
        if has_heard_all:
            return _elect(current, elected)
        text = "The other replicas have not been heard yet: ask again in some seconds"
        header = ElectMasterResponseHeader()
        return Decision(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, text, header)
    if master is not None and master not in alive and not is_lease_over:
        # The lease of the old master may not have ended, which Java has no notion of.
        text = f"The lease of master {master} may not have ended yet: ask again in some seconds"
        header = ElectMasterResponseHeader()
        return Decision(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, text, header)
    if elected is not None:
        return _elect(current, elected)
    if asked.unclean and asked.designate_elect:
        return _elect_unclean(current, broker_id, alive)
    if broker_id != BY_CONTROLLER:
        text = "Failed to elect a new master"
        header = ElectMasterResponseHeader()
        return Decision(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, text, header)
    # Brokers learn that there is no master, and each that returns asks for an election. The set
    # in sync stays: only its members have all acknowledged messages.
    after = replace(current, master_broker_id=None, master_epoch=current.master_epoch + 1)
    text = "Old master has down and failed to elect a new broker master"
    return Decision(
        ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
        text,
        ElectMasterResponseHeader(),
        write=None if master is None else Write(after),
    )


def _elect_unclean(current: BrokerSet, broker_id: int, alive: Alive) -> Decision:
    """Elect a replica that may lack acknowledged messages, if no other could be elected.

    It need not be alive: one that was shortened by a power cut sends no heartbeat. In a set that is
    refused, nobody knows which replicas are in sync; its epochs continue after the known ones.
    """
    failed, header = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, ElectMasterResponseHeader()
    if current.replica(broker_id) is None:
        return Decision(failed, f"Replica {broker_id} is not registered", header)
    in_sync = [id_ for id_ in current.sync_state_set if id_ in alive]
    if in_sync and current.refusal is None:
        text = f"The replicas {in_sync} are in sync and alive: one of them can be elected"
        return Decision(failed, text, header)
    epoch, set_epoch = current.known_epochs
    known = replace(
        current, master_epoch=epoch, sync_state_set_epoch=set_epoch, unclean_epoch=epoch + 1
    )
    return _elect(replace(known, refusal=None), broker_id)


def _elected(
    current: BrokerSet, broker_id: int, alive: Alive, *, is_designated: bool
) -> int | None:
    """Return the replica that is the master after the election; None if nobody can be elected."""
    if current.master_epoch == 0 and broker_id != BY_CONTROLLER:
        # No message has been acknowledged yet. Java elects unregistered ids as well.
        return None if current.replica(broker_id) is None else broker_id
    candidates = [id_ for id_ in current.sync_state_set if id_ in alive]
    master = current.master_broker_id
    if master in candidates and (not is_designated or broker_id == master):
        return master
    if is_designated:
        return broker_id if broker_id in candidates else None
    return elect(candidates, alive)


def _still_master(current: BrokerSet) -> Decision:
    text = (
        f"The old master {current.master_broker_id} is still alive, not need to elect new master "
        f"for broker {current.broker_name}"
    )
    body = encode_record(ElectMasterResponse(sync_state_set=current.sync_state_set))
    return Decision(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, text, current.master, body)


def _elect(current: BrokerSet, broker_id: int) -> Decision:
    after = replace(
        current,
        master_broker_id=broker_id,
        master_epoch=current.master_epoch + 1,
        sync_state_set=(broker_id,),
        sync_state_set_epoch=current.sync_state_set_epoch + 1,
    )
    addresses = {replica.broker_id: replica.address for replica in current.replicas}
    members = BrokerMemberGroup(current.cluster_name, current.broker_name, addresses)
    body = encode_record(ElectMasterResponse(members, after.sync_state_set))
    return Decision(header=after.master, body=body, write=Write(after))


def register_broker(
    current: BrokerSet | None, asked: RegisterBrokerToControllerRequestHeader, alive: Alive
) -> Decision:
    """Decide CONTROLLER_REGISTER_BROKER (1003): a replica that has an id comes to its set."""
    header = RegisterBrokerToControllerResponseHeader(asked.cluster_name, asked.broker_name)
    code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if current is None:
        text = f"Broker-set: {asked.broker_name} hasn't been registered in controller"
        return Decision(code, text, header)
    replica = current.replica(asked.broker_id)
    if replica is None:
        text = (
            f"BrokerId: {asked.broker_id} hasn't been registered in broker-set: {asked.broker_name}"
        )
        return Decision(code, text, header)
    if current.master_broker_id in alive:
        header.master_broker_id = current.master_broker_id
        header.master_address = current.master_address
        header.master_epoch = current.master_epoch
        header.sync_state_set_epoch = current.sync_state_set_epoch
    address = asked.broker_address
    write = None
    if address is not None and address != replica.address:
        moved = replace(replica, address=address)
        replicas = tuple(moved if one is replica else one for one in current.replicas)
        write = Write(replace(current, replicas=replicas))
    return Decision(header=header, body=encode_record(current.in_sync), write=write)


def get_replica_info(current: BrokerSet | None) -> Decision:
    """Answer CONTROLLER_GET_REPLICA_INFO (1004)."""
    if current is None:
        return Decision(
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            "Broker metadata is not existed",
            GetReplicaInfoResponseHeader(),
        )
    header = GetReplicaInfoResponseHeader(
        current.master_broker_id,
        current.master_address,
        current.master_epoch,
        current.unclean_epoch or None,
    )
    return Decision(header=header, body=encode_record(current.in_sync))


def replicas_info(
    current: BrokerSet, alive: Alive, last: Alive, now_ms: int, *, refusal: str | None = None
) -> ReplicasInfo:
    """Return the entry of a broker set in the answer to CONTROLLER_GET_SYNC_STATE_DATA (1006).

    Args:
        current: the broker set.
        alive: the replicas that are alive.
        last: the last heartbeats of all replicas.
        now_ms: the time, by the clock of the heartbeats.
        refusal: why the set is refused; None if it is not.
    """
    identities = [
        ReplicaIdentity(
            current.broker_name,
            replica.broker_id,
            replica.address,
            replica.broker_id in alive,
            None if (beat := last.get(replica.broker_id)) is None else beat.epoch,
            None if beat is None else beat.max_offset,
            None if beat is None else now_ms - beat.at_ms,
        )
        for replica in current.replicas
    ]
    in_sync = set(current.sync_state_set)
    return ReplicasInfo(
        current.master_broker_id,
        current.master_address,
        current.master_epoch,
        current.sync_state_set_epoch,
        tuple(one for one in identities if one.broker_id in in_sync),
        tuple(one for one in identities if one.broker_id not in in_sync),
        refusal,
    )


def get_next_broker_id(current: BrokerSet | None, asked: GetNextBrokerIdRequestHeader) -> Decision:
    """Answer CONTROLLER_GET_NEXT_BROKER_ID (1012)."""
    next_id = 1 if current is None else current.next_broker_id
    header = GetNextBrokerIdResponseHeader(asked.cluster_name, asked.broker_name, next_id)
    return Decision(header=header)


def apply_broker_id(current: BrokerSet | None, asked: ApplyBrokerIdRequestHeader) -> Decision:
    """Decide CONTROLLER_APPLY_BROKER_ID (1013): a new replica applies for an id."""
    name, broker_id = asked.broker_name or "", asked.applied_broker_id or 0
    header = ApplyBrokerIdResponseHeader(asked.cluster_name, asked.broker_name)
    check_code = asked.register_check_code or ""
    invalid = ResponseCode.CONTROLLER_BROKER_ID_INVALID
    if current is None:
        if broker_id != 1:
            text = (
                f"Broker-set: {name} hasn't been registered in controller, but broker try to apply "
                f"brokerId: {broker_id}"
            )
            return Decision(invalid, text, header)
        current = BrokerSet(asked.cluster_name or "", name)
    existing = current.replica(broker_id)
    if existing is not None and existing.register_check_code == check_code:
        return Decision(header=header)
    # Java assigns any free id, also that of a removed replica, whose log may differ.
    if existing is not None or broker_id < current.next_broker_id:
        text = f"Fail to apply brokerId: {broker_id} in broker-set: {name}"
        return Decision(invalid, text, header)
    replica = Replica(broker_id, applicant_address(check_code), check_code)
    after = replace(current, replicas=(*current.replicas, replica), next_broker_id=broker_id + 1)
    return Decision(header=header, write=Write(after))


def clean_broker_data(
    current: BrokerSet | None, asked: CleanControllerBrokerDataRequestHeader, alive: Alive
) -> Decision:
    """Decide CLEAN_BROKER_DATA (1011): remove replicas, or the whole set if none are named."""
    name = asked.broker_name
    invalid = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    try:
        ids = _ids(asked.broker_controller_ids_to_clean or "")
    except ValueError as error:
        text = (
            "Please set the option <brokerControllerIdsToClean> according to the format, "
            f"exception: {error}"
        )
        return Decision(invalid, text)
    if not asked.is_clean_living_broker:
        if not ids and current is not None and current.master_broker_id is not None:
            return Decision(invalid, f"Broker {name} is still alive, clean up failure")
        for broker_id in sorted(ids):
            if broker_id in alive:
                text = f"Broker [{name},  {broker_id}] is still alive, clean up failure"
                return Decision(invalid, text)
    if current is None:
        return Decision(invalid, f"Broker {name} is not existed,clean broker data failure.")
    # With isCleanLivingBroker, Java ignores the ids and removes the whole set.
    return _remove(current, ids or set(current.ids))


def _remove(current: BrokerSet, ids: set[int]) -> Decision:
    """Remove replicas of the set; refuse to remove all that are in sync unless all are removed."""
    replicas = tuple(one for one in current.replicas if one.broker_id not in ids)
    if not replicas:
        return Decision(write=Write(None))
    in_sync = tuple(id_ for id_ in current.sync_state_set if id_ not in ids)
    if current.sync_state_set and not in_sync:
        # Java leaves a set without a replica that could ever be elected.
        text = (
            f"Broker {current.broker_name}: only the replicas {current.sync_state_set} have all "
            "acknowledged messages, and without them no master can be elected: remove the whole "
            "set instead"
        )
        return Decision(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, text)
    after = replace(current, replicas=replicas)
    if in_sync != current.sync_state_set:
        epoch = current.sync_state_set_epoch + 1
        after = replace(after, sync_state_set=in_sync, sync_state_set_epoch=epoch)
    if current.master_broker_id in ids:
        epoch = current.master_epoch + 1
        after = replace(after, master_broker_id=None, master_epoch=epoch)
    return Decision(write=Write(after))


def _ids(text: str) -> set[int]:
    """Return the broker ids of a text, where they are joined by `;`."""
    return {int(part) for part in text.split(";")} if text.strip() else set()
