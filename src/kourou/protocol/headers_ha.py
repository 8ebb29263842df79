"""Headers among replicas of a broker, the name server and controllers: 905, 906, 908 and 1008.

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
        min_broker_id: the least id that is alive now; 0 is the master's.
        offline_broker_addr: who left, if somebody did.
        ha_broker_addr: where the new one offers replication.
    """

    min_broker_id: Long | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@dataclass(slots=True)
class ExchangeHAInfoRequestHeader:
    """EXCHANGE_BROKER_HA_INFO (906): a replica tells or asks for the master's addresses.

    Attributes:
        master_ha_address: None asks.
    """

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@dataclass(slots=True)
class ExchangeHAInfoResponseHeader:
    """The same of whoever answers; empty unless it is the master and was asked."""

    master_ha_address: str | None = None
    master_flush_offset: Long | None = None
    master_address: str | None = None


@dataclass(slots=True)
class ResetMasterFlushOffsetHeader:
    """RESET_MASTER_FLUSH_OFFSET (908): what is on the master's disk, in physical offsets."""

    master_flush_offset: Long


@dataclass(slots=True)
class NotifyBrokerRoleChangedRequestHeader:
    """NOTIFY_BROKER_ROLE_CHANGED (1008), controller to brokers; the body: who is in sync."""

    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None
    master_broker_id: Long | None = None
