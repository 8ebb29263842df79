"""Headers of controllers, which choose masters: codes 1001 to 1005 and 1011 to 1013.

`invoke_time` is the time of the request, epoch milliseconds.

Source: the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.controller.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long


@dataclass(slots=True)
class AlterSyncStateSetRequestHeader:
    """CONTROLLER_ALTER_SYNC_STATE_SET (1001); the body is the replicas in sync."""

    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_epoch: Int | None = None
    invoke_time: Long | None = None


@dataclass(slots=True)
class AlterSyncStateSetResponseHeader:
    """The epoch from now on."""

    new_sync_state_set_epoch: Int = 0


@dataclass(slots=True)
class ElectMasterRequestHeader:
    """CONTROLLER_ELECT_MASTER (1002).

    Attributes:
        broker_id: who asks, or who shall be it if `designate_elect`.
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Long | None = None
    designate_elect: bool = False
    invoke_time: Long | None = None


@dataclass(slots=True)
class ElectMasterResponseHeader:
    """The master from now on."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@dataclass(slots=True)
class RegisterBrokerToControllerRequestHeader:
    """CONTROLLER_REGISTER_BROKER (1003); the replicas in sync answer."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Long | None = None
    broker_address: str | None = None
    invoke_time: Long | None = None


@dataclass(slots=True)
class RegisterBrokerToControllerResponseHeader:
    """The master that there is, if there is one."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


@dataclass(slots=True)
class GetReplicaInfoRequestHeader:
    """CONTROLLER_GET_REPLICA_INFO (1004); the replicas in sync answer."""

    broker_name: str | None = None


@dataclass(slots=True)
class GetReplicaInfoResponseHeader:
    """The master that there is, if there is one."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None


@dataclass(slots=True)
class GetMetaDataResponseHeader:
    """What answers CONTROLLER_GET_METADATA_INFO (1005).

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
    """CLEAN_BROKER_DATA (1011): forget replicas.

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
    """The id that a new replica may apply for."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Long | None = None


@dataclass(slots=True)
class ApplyBrokerIdRequestHeader:
    """CONTROLLER_APPLY_BROKER_ID (1013).

    Attributes:
        register_check_code: tells the same replica again; an id of another one is refused.
    """

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Long | None = None
    register_check_code: str | None = None


@dataclass(slots=True)
class ApplyBrokerIdResponseHeader:
    """Whose id it is."""

    cluster_name: str | None = None
    broker_name: str | None = None
