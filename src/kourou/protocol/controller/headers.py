"""Headers and bodies of requests about replicas: codes 1001 to 1013.

Brokers and tools send them to a controller, except 1007 (tool to broker) and 1008 (controller to
broker). The heartbeat that brokers send to controllers as well as to name servers (904) is in
`kourou.protocol.topic_table`. `invoke_time` is the time of the request in epoch milliseconds.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header and
org.apache.rocketmq.remoting.protocol.header.controller; SyncStateSet.java,
ElectMasterResponseBody.java, BrokerReplicasInfo.java, EpochEntryCache.java, EpochEntry.java,
TempBrokerMetadata.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kourou.protocol.codes import RequestCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import Int, Long
from kourou.protocol.json_records import FieldCodec, from_json, to_json
from kourou.protocol.json_values import Json, as_list, as_text
from kourou.protocol.request_spec import PROPERTIES_CODEC, BodyCodec, RequestSpec, record_codec
from kourou.protocol.routes import BrokerMemberGroup


@dataclass(slots=True)
class NotifyBrokerRoleChangedRequestHeader:
    """NOTIFY_BROKER_ROLE_CHANGED (1008), controller to brokers; body: the replicas in sync."""

    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    master_broker_id: Long | None = None


@dataclass(slots=True)
class AlterSyncStateSetRequestHeader:
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001); the body lists the replicas in sync."""

    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_epoch: Int | None = None
    invoke_time: Long | None = None


@dataclass(slots=True)
class AlterSyncStateSetResponseHeader:
    """The new epoch."""

    new_sync_state_set_epoch: Int = 0


@dataclass(slots=True)
class ElectMasterRequestHeader:
    """CONTROLLER_ELECT_MASTER (1002).

    Attributes:
        broker_id: the requesting broker, or with `designate_elect` the broker to elect.
        unclean: Kourou's own field: with `designate_elect`, elect a replica that is not in sync,
            because none of those that are is alive, or because the controllers refuse the set.
            Java's controllers ignore it, and refuse.
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Long | None = None
    designate_elect: bool = False
    invoke_time: Long | None = None
    unclean: bool | None = field(default=None, metadata={"wire": "kourouUnclean"})


@dataclass(slots=True)
class ElectMasterResponseHeader:
    """The new master."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@dataclass(slots=True)
class RegisterBrokerToControllerRequestHeader:
    """CONTROLLER_REGISTER_BROKER (1003); the response body lists the replicas in sync."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long | None = None
    broker_address: str | None = None
    invoke_time: Long | None = None


@dataclass(slots=True)
class RegisterBrokerToControllerResponseHeader:
    """The current master, if there is one."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@dataclass(slots=True)
class GetReplicaInfoRequestHeader:
    """CONTROLLER_GET_REPLICA_INFO (1004); the response body lists the replicas in sync."""

    broker_name: str | None = None


@dataclass(slots=True)
class GetReplicaInfoResponseHeader:
    """The current master, if there is one.

    Attributes:
        unclean_epoch: Kourou's own field: the last epoch whose master was elected without being in
            sync; None if there was none.
    """

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    unclean_epoch: Int | None = field(default=None, metadata={"wire": "kourouUncleanEpoch"})


@dataclass(slots=True)
class GetMetaDataResponseHeader:
    """Response to CONTROLLER_GET_METADATA_INFO (1005).

    Attributes:
        peers: the controllers, joined by `;`.
    """

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


@dataclass(slots=True)
class CleanControllerBrokerDataRequestHeader:
    """CLEAN_BROKER_DATA (1011): remove replicas from the controller.

    Attributes:
        broker_controller_ids_to_clean: broker ids, joined by `;`; None for all.
    """

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Long | None = None


@dataclass(slots=True)
class GetNextBrokerIdRequestHeader:
    """CONTROLLER_GET_NEXT_BROKER_ID (1012)."""

    cluster_name: str | None = None
    broker_name: str | None = None


@dataclass(slots=True)
class GetNextBrokerIdResponseHeader:
    """The id for which a new replica may apply."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Long | None = None


@dataclass(slots=True)
class ApplyBrokerIdRequestHeader:
    """CONTROLLER_APPLY_BROKER_ID (1013).

    Attributes:
        register_check_code: identifies the replica in a repeated request; an id that belongs to
            another replica is refused.
    """

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Long | None = None
    register_check_code: str | None = None


@dataclass(slots=True)
class ApplyBrokerIdResponseHeader:
    """The broker to which the id was assigned."""

    cluster_name: str | None = None
    broker_name: str | None = None


@dataclass(frozen=True, slots=True)
class SyncStateSet:
    """The ids of the brokers in sync, and their epoch: the body of 1001, 1003, 1004 and 1008."""

    sync_state_set: tuple[int, ...] | None = None
    sync_state_set_epoch: int = 0


def _group_to_json(group: BrokerMemberGroup) -> Json:
    addresses = {str(broker_id): address for broker_id, address in group.broker_addrs.items()}
    return to_json(group) | {"brokerAddrs": addresses}


def _group_from_json(value: object, label: str) -> BrokerMemberGroup:
    return from_json(BrokerMemberGroup, value, label)


@dataclass(frozen=True, slots=True)
class ElectMasterResponse:
    """Response body of CONTROLLER_ELECT_MASTER (1002).

    Java's controller writes the broker ids without quotes, which Java's brokers and tools do not
    decode: they report a failure of an election that succeeded.
    """

    broker_member_group: BrokerMemberGroup | None = field(
        default=None, metadata={"codec": FieldCodec(_group_to_json, _group_from_json)}
    )
    sync_state_set: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """One replica registered at a controller.

    Attributes:
        epoch, max_offset: Kourou's own fields: the newest epoch and the end of its log by its last
            heartbeat, also if it is not alive; None if this controller has received none.
        silent_ms: Kourou's own field: the time since its last heartbeat, likewise.
    """

    broker_name: str | None = None
    broker_id: int | None = None
    broker_address: str | None = None
    alive: bool | None = None
    epoch: int | None = None
    max_offset: int | None = None
    silent_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicasInfo:
    """The replicas of one broker registered at a controller.

    Attributes:
        refusal: Kourou's own field: why the controller decides nothing about the set; None
            if it does.
    """

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    in_sync_replicas: tuple[ReplicaIdentity, ...] = ()
    not_in_sync_replicas: tuple[ReplicaIdentity, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerReplicasInfo:
    """Response body of CONTROLLER_GET_SYNC_STATE_DATA (1006), by broker name."""

    replicas_info_table: Mapping[str, ReplicasInfo] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpochEntry:
    """Physical offsets at which one master's epoch begins and ends.

    Attributes:
        end_offset: the largest 64-bit integer while the epoch lasts.
    """

    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 0x7FFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class EpochEntryCache:
    """Response body of GET_BROKER_EPOCH_CACHE (1007)."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: int = 0
    epoch_list: tuple[EpochEntry, ...] = ()
    max_offset: int = 0


def encode_broker_names(names: Sequence[str]) -> bytes:
    """Return the body of CONTROLLER_GET_SYNC_STATE_DATA (1006)."""
    return dumps(list(names))


def decode_broker_names(body: bytes) -> list[str]:
    """Return the broker names decoded from a body.

    Raises:
        MalformedBodyError: the body is not an array of texts.
    """
    return [as_text(name, "broker name") for name in as_list(loads(body), "broker names")]


_SYNC_STATE: Final = record_codec(SyncStateSet)


def register_check_code(address: str, time_ms: int) -> str:
    """Return the text with which a replica applies for an id (1013).

    The replica keeps it until it has the id: a repeated application with the same text succeeds.

    Args:
        address: where the replica serves clients.
        time_ms: time of the first application in epoch milliseconds.
    """
    return f"{address};{time_ms}"


def applicant_address(check_code: str) -> str:
    """Return the address in a register check code."""
    return check_code.partition(";")[0]


SPECS: Final = (
    RequestSpec(RequestCode.GET_BROKER_EPOCH_CACHE, response_body=record_codec(EpochEntryCache)),
    RequestSpec(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        NotifyBrokerRoleChangedRequestHeader,
        request_body=_SYNC_STATE,
    ),
    RequestSpec(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        AlterSyncStateSetRequestHeader,
        AlterSyncStateSetResponseHeader,
        _SYNC_STATE,
        _SYNC_STATE,
    ),
    RequestSpec(
        RequestCode.CONTROLLER_ELECT_MASTER,
        ElectMasterRequestHeader,
        ElectMasterResponseHeader,
        response_body=record_codec(ElectMasterResponse),
    ),
    RequestSpec(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        RegisterBrokerToControllerRequestHeader,
        RegisterBrokerToControllerResponseHeader,
        response_body=_SYNC_STATE,
    ),
    RequestSpec(
        RequestCode.CONTROLLER_GET_REPLICA_INFO,
        GetReplicaInfoRequestHeader,
        GetReplicaInfoResponseHeader,
        response_body=_SYNC_STATE,
    ),
    RequestSpec(RequestCode.CONTROLLER_GET_METADATA_INFO, None, GetMetaDataResponseHeader),
    RequestSpec(
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
        request_body=BodyCodec(decode_broker_names, encode_broker_names),
        response_body=record_codec(BrokerReplicasInfo),
    ),
    RequestSpec(RequestCode.UPDATE_CONTROLLER_CONFIG, request_body=PROPERTIES_CODEC),
    RequestSpec(RequestCode.GET_CONTROLLER_CONFIG, response_body=PROPERTIES_CODEC),
    RequestSpec(RequestCode.CLEAN_BROKER_DATA, CleanControllerBrokerDataRequestHeader),
    RequestSpec(
        RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
        GetNextBrokerIdRequestHeader,
        GetNextBrokerIdResponseHeader,
    ),
    RequestSpec(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        ApplyBrokerIdRequestHeader,
        ApplyBrokerIdResponseHeader,
    ),
)
