"""Headers for requests among replicas, name servers and controllers: 905, 906, 908 and 1008.

Source: NotifyMinBrokerIdChangeRequestHeader.java, ExchangeHAInfoRequestHeader.java and
ResponseHeader, ResetMasterFlushOffsetHeader.java, NotifyBrokerRoleChangedRequestHeader.java.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fields import Int, Long


@dataclass(slots=True)
class NotifyMinBrokerIdChangeRequestHeader:
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), name server to brokers, one-way.

    Attributes:
        min_broker_id: the smallest id of a live replica; 0 is the master's.
        offline_broker_addr: address of the replica that went offline, if any.
        ha_broker_addr: replication address of the replica with the smallest id.
    """

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@dataclass(slots=True)
class ExchangeHAInfoRequestHeader:
    """EXCHANGE_BROKER_HA_INFO (906): a replica sends or queries the master's addresses.

    Attributes:
        master_ha_address: None to query.
    """

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@dataclass(slots=True)
class ExchangeHAInfoResponseHeader:
    """The addresses of the responding broker; empty unless it is the master and was queried."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@dataclass(slots=True)
class ResetMasterFlushOffsetHeader:
    """RESET_MASTER_FLUSH_OFFSET (908): the physical offset up to which the master is durable."""

    master_flush_offset: Long


@dataclass(slots=True)
class NotifyBrokerRoleChangedRequestHeader:
    """NOTIFY_BROKER_ROLE_CHANGED (1008), controller to brokers; body: the replicas in sync."""

    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    master_broker_id: Long | None = None
