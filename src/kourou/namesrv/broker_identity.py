"""Broker identities from registrations, and the data that brokers receive about each other.

Source: RegisterBrokerRequestHeader.java, RegisterBrokerResult.java,
NotifyMinBrokerIdChangeRequestHeader.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """The identity fields of a broker's registration.

    Attributes:
        address: `host:port` for clients.
        ha_address: `host:port` for its slaves.
        timeout_ms: the broker expires this long after its last heartbeat or registration; None
            means the name server's default.
        enable_acting_master: None if the broker is older than the option.
        zone: the zone in which it runs; None if it names none.
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
        """Key of the broker in the table of live brokers."""
        return self.cluster, self.address


@dataclass(frozen=True, slots=True)
class MasterAddresses:
    """A slave's master: its addresses; both None for a master, or if no master is registered."""

    ha_address: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """Change of the broker with the lowest id of a broker name: the master or the acting master.

    Attributes:
        offline_address: address of the broker that left; None if one joined.
        ha_address: `ha_address` of the broker that joined; None if one left.
        connections: connections of the brokers to notify. After a broker left: all that remain.
            After one joined: all others, or the one itself if it is the only broker of the name.
    """

    min_id: int
    min_address: str
    offline_address: str | None
    ha_address: str | None
    connections: tuple[Hashable, ...]
