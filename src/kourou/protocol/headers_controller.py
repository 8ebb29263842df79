"""Headers for controllers, which elect masters: codes 1001 to 1005 and 1011 to 1013.

`invoke_time` is the time of the request in epoch milliseconds.

Source: the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.controller.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long


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
    """

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Long | None = None
    designate_elect: bool = False
    invoke_time: Long | None = None


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
    """The current master, if there is one."""

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None


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
