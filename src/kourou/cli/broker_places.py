"""Selection of the brokers of a command: all, those of a name, or the one at an address."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kourou.client.administration.admin import AdminClient
from kourou.errors import NoRouteError
from kourou.model.route import MASTER_ID

T = TypeVar("T")


@dataclass(frozen=True, order=True, slots=True)
class BrokerPlace:
    """A broker: its name, its id (0 is the master), its address and its cluster.

    For a broker that is given by address, the name is the address, the id 0 and the cluster empty.
    """

    name: str
    id: int
    address: str
    cluster: str = ""


async def find_brokers(
    admin: AdminClient, wanted: str | None, *, masters_only: bool = False
) -> list[BrokerPlace]:
    """Return the brokers, sorted by name and id.

    Args:
        admin: client for the look-up.
        wanted: a name, or `host:port`, which is not looked up; None for all.
        masters_only: omit slaves.

    Raises:
        NoRouteError: no broker matches.
    """
    if wanted is not None and ":" in wanted:
        return [BrokerPlace(wanted, MASTER_ID, wanted)]
    info = await admin.cluster_info()
    found = sorted(
        BrokerPlace(name, broker_id, address, data.cluster)
        for name, data in info.brokers.items()
        if wanted in (None, name)
        for broker_id, address in data.broker_addrs.items()
        if broker_id == MASTER_ID or not masters_only
    )
    if not found:
        known = ", ".join(sorted(info.brokers)) or "none"
        asked = "" if wanted is None else f" {wanted}"
        raise NoRouteError(f"no broker{asked} is registered; registered brokers: {known}")
    return found


async def ask_brokers(
    admin: AdminClient,
    wanted: str | None,
    question: Callable[[BrokerPlace], Awaitable[T]],
    *,
    masters_only: bool = False,
) -> dict[BrokerPlace, T]:
    """Query the brokers concurrently, and return their answers; raise the first error."""
    places: Sequence[BrokerPlace] = await find_brokers(admin, wanted, masters_only=masters_only)
    answers = await asyncio.gather(*map(question, places))
    return dict(zip(places, answers, strict=True))
