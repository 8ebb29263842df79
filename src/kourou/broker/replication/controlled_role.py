"""The role of a broker in controller mode, as its controller has decided it for one run.

A broker runs with one role. After a change of the role the caller stops it, and starts another
`Broker` on the same store: becoming master is what a start does.

    caller: registration, heartbeats,      broker: replication
    elections, lease
    Broker(role=..., controller=...)  -->  copies the log as this role demands
    ControllerPort.propose            <--  asks for another in-sync set
    ControllerPort.offer_role         <--  a master that reaches too few members
    Broker.adopt_in_sync              -->  takes a newer confirmed set
    Broker.truncation_needed          <--  a slave's log has an end that its master lacks
    Broker.fence, Broker.unfence      -->  refuses changes while the lease is not confirmed
    ControllerPort.confirm_master     <--  a master asks whether it may go on without controllers
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kourou.broker.config import BrokerConfig
from kourou.broker.replication.replication_config import BrokerRole


class InSyncSet(NamedTuple):
    """The replicas that have every acknowledged message, so that each of them can be elected.

    Attributes:
        members: their broker ids, the master's included.
        epoch: number of the set; each accepted change has a greater one.
    """

    members: frozenset[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class ControlledRole:
    """A decision of the controller.

    Attributes:
        broker_id: id of this broker, assigned by the controller. A master keeps it here, while name
            servers know it as 0.
        master_id: id of the master; equal to `broker_id` for the master itself.
        master_epoch: number of the master's election.
        master_ha_address: address of the master's port for slaves, as `host:port`; empty for the
            master itself.
        in_sync: the set that was confirmed with this decision.
    """

    broker_id: int
    master_id: int
    master_epoch: int
    master_ha_address: str
    in_sync: InSyncSet

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master."""
        return self.broker_id == self.master_id


class MasterClaim(NamedTuple):
    """The question of a master whether a member of its in-sync set confirms it.

    Attributes:
        member: the member that is asked, see `member_name`.
        epoch: of the master.
        promise_ms: for how long the member must not become master if it confirms.
    """

    member: str
    epoch: int
    promise_ms: int


def member_name(broker_name: str, broker_id: int) -> str:
    """Return the text by which a `MasterClaim` names a member."""
    return f"{broker_name}#{broker_id}"


class ControllerPort(Protocol):
    """The requests to the controller that replication needs."""

    async def propose(self, members: frozenset[int]) -> InSyncSet:
        """Ask for another in-sync set, as a change of `Broker.in_sync()`, in one request.

        Returns:
            The confirmed set, which the controller has stored.

        Raises:
            RemoteError: the controller has refused this request, or has decided otherwise.
            TransportError: no answer arrived: the set may or may not be stored.
        """

    def offer_role(self, silent: frozenset[int], needed: int) -> None:
        """Let a member of the in-sync set be elected that this master does not reach.

        No effect if none is alive at the controller that could acknowledge messages. May be called
        again while that is found out.

        Args:
            silent: broker ids of the members that report nothing.
            needed: number of replicas, the new master included, that must be alive beside this one.
        """

    async def confirm_master(self, claim: MasterClaim) -> bool:
        """Return whether this broker, as a member of the set, confirms a master.

        Raises:
            OSError: the promise cannot be stored.
        """

    def ask_role(self) -> None:
        """Ask the controller soon who is master: it has announced a change."""


class LogState(NamedTuple):
    """The end of a replica's log, as heartbeats report it for elections.

    Attributes:
        epoch: the newest epoch of the log; -1 without one.
        max_offset: end of the log, as durable as the flush mode promises.
        confirm_offset: the position up to which all members of the in-sync set have the log.
    """

    epoch: int
    max_offset: int
    confirm_offset: int


def config_for_role(config: BrokerConfig, role: ControlledRole) -> BrokerConfig:
    """Return the options with the broker id and the replication role that the controller decided.

    Raises:
        ConfigError: the id or the address of the role is out of its range.
    """
    broker_role = BrokerRole.SYNC_MASTER if role.is_master else BrokerRole.SLAVE
    replication = dataclasses.replace(
        config.replication, broker_role=broker_role, ha_master_address=role.master_ha_address
    )
    broker_id = 0 if role.is_master else role.broker_id
    return dataclasses.replace(config, broker_id=broker_id, replication=replication)
