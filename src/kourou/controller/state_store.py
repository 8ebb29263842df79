"""The durable state of controllers, and the leadership among them.

A store keeps one text for each broker set, and elects one leading controller. Each change is atomic
and compared: it fails unless this controller still leads and the set is as it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kourou.controller.broker_set import BrokerSet


@dataclass(frozen=True, slots=True)
class Member:
    """One of the controllers that share a state.

    Attributes:
        member_id: distinguishes it from the others.
        address: where it serves brokers, `host:port`.
    """

    member_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A broker set and its version in the store, which each write increases."""

    broker_set: BrokerSet
    version: int


@dataclass(slots=True)
class Term:
    """The time in which one controller leads.

    Attributes:
        sets: the state at its beginning, by broker name.
        lease_ms: the longest lease that an earlier leading controller may have confirmed.
    """

    sets: Mapping[str, Stored] = field(default_factory=dict)
    lease_ms: int = 0


class WriteResult(NamedTuple):
    """Result of a write.

    Attributes:
        is_written: False if the set had another version than the write named.
        stored: the set that is stored now; None if there is none.
    """

    is_written: bool
    stored: Stored | None


class StateStore(Protocol):
    """Durable state of broker sets, shared by the controllers of a cluster."""

    @property
    def problem(self) -> str | None:
        """Why the state cannot be used now; None while it can."""

    async def campaign(self, member: Member) -> Term:
        """Wait until this controller leads, and return the state.

        Raises:
            ControllerStateError: the state is damaged, or not the one that this process had before.
        """

    def leads(self) -> bool:
        """Whether this controller certainly leads now: no other one can."""

    async def wait_deposed(self) -> None:
        """Return when this controller no longer leads."""

    async def resign(self) -> bool:
        """End the leadership in favour of another controller, for a while; False without one."""

    async def write(self, name: str, broker_set: BrokerSet | None, version: int) -> WriteResult:
        """Replace the set of that broker name, durably, if it has that version.

        Args:
            name: the broker name.
            broker_set: None removes it.
            version: that of the set being replaced; 0 for a new set.

        Raises:
            NotLeadingError: this controller does not lead; nothing was written.
            WriteInDoubtError: the set may or may not have been written. Until the same write has
                been repeated with another result, nothing may be answered about the set.
        """

    async def leader(self) -> Member | None:
        """Return the leading controller; None if there is none or it is unknown."""

    async def members(self) -> list[Member]:
        """Return the controllers that run, as far as this one knows."""

    async def close(self) -> None:
        """End the leadership and release the state."""
