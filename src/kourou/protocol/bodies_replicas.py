"""JSON bodies of a broker's replicas: addresses, replication, sync state set, epochs.

Source: BrokerMemberGroup.java, GetBrokerMemberGroupResponseBody.java, HARuntimeInfo.java,
SyncStateSet.java, ElectMasterResponseBody.java, BrokerReplicasInfo.java, EpochEntryCache.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_values import as_list, as_text


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup:
    """The replicas of one broker.

    Attributes:
        broker_addrs: broker id to address; 0 is the master's.
    """

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GetBrokerMemberGroupResponse:
    """Response body of GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup | None = None


@dataclass(frozen=True, slots=True)
class HAClientRuntimeInfo:
    """Replication state of a slave; times are in epoch milliseconds, offsets are physical."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


@dataclass(frozen=True, slots=True)
class HAConnectionRuntimeInfo:
    """State of a master's replication to one slave.

    Attributes:
        diff: lag of the slave in bytes.
    """

    addr: str | None = None
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


@dataclass(frozen=True, slots=True)
class HARuntimeInfo:
    """Response body of GET_BROKER_HA_STATUS (907)."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[HAConnectionRuntimeInfo, ...] = ()
    ha_client_runtime_info: HAClientRuntimeInfo = HAClientRuntimeInfo()


@dataclass(frozen=True, slots=True)
class SyncStateSet:
    """The ids of the brokers in sync, and their epoch: the body of 1001, 1003, 1004 and 1008."""

    sync_state_set: tuple[int, ...] | None = None
    sync_state_set_epoch: int = 0


@dataclass(frozen=True, slots=True)
class ElectMasterResponse:
    """Response body of CONTROLLER_ELECT_MASTER (1002)."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """One replica registered at a controller."""

    broker_name: str | None = None
    broker_id: int | None = None
    broker_address: str | None = None
    alive: bool | None = None


@dataclass(frozen=True, slots=True)
class ReplicasInfo:
    """The replicas of one broker registered at a controller."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    in_sync_replicas: tuple[ReplicaIdentity, ...] = ()
    not_in_sync_replicas: tuple[ReplicaIdentity, ...] = ()


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
