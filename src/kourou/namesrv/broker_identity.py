"""What brokers say of themselves when they register, and what they are told of each other.

Source: RegisterBrokerRequestHeader.java, RegisterBrokerResult.java,
NotifyMinBrokerIdChangeRequestHeader.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """What a broker says of itself when it registers.

    Attributes:
        address: `host:port` for clients.
        ha_address: `host:port` for its slaves.
        timeout_ms: forget it after so long a silence; None takes the name server's default.
        enable_acting_master: None tells of a broker older than the option.
        zone: where it runs, if brokers are told apart by zone.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    zone: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """What its sign of life is kept under."""
        return self.cluster, self.address


@dataclass(frozen=True, slots=True)
class MasterAddresses:
    """Where a slave finds its master; None twice for a master, or where none lives."""

    ha_address: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """Another broker of a name has the least id now: it stands in for the master, or is it.

    Attributes:
        offline_address: of the broker that left; None if one joined.
        ha_address: for slaves, of the broker that joined; None if one left.
        connections: of those to tell: all that remain, or all but the one that joined.
    """

    min_id: int
    min_address: str
    offline_address: str | None
    ha_address: str | None
    connections: tuple[Hashable, ...]
