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
class BrokerTarget:
    """A broker: its name, its id (0 is the master), its address and its cluster.

    For a broker that is given by address, the name is the address, the id 0 and the cluster empty.
    """

    name: str
    id: int
    address: str
    cluster: str = ""


async def find_brokers(
    admin: AdminClient, selector: str | None, *, masters_only: bool = False
) -> list[BrokerTarget]:
    """Return the brokers, sorted by name and id.

    Args:
        admin: client for the look-up.
        selector: a name, or `host:port`, which is not looked up; None for all.
        masters_only: omit slaves.

    Raises:
        NoRouteError: no broker matches.
    """
    if selector is not None and ":" in selector:
        return [BrokerTarget(selector, MASTER_ID, selector)]
    info = await admin.cluster_info()
    found = sorted(
        BrokerTarget(name, broker_id, address, data.cluster)
        for name, data in info.brokers.items()
        if selector in (None, name)
        for broker_id, address in data.broker_addrs.items()
        if broker_id == MASTER_ID or not masters_only
    )
    if not found:
        registered = ", ".join(sorted(info.brokers)) or "none"
        name_text = "" if selector is None else f" {selector}"
        raise NoRouteError(f"no broker{name_text} is registered; registered brokers: {registered}")
    return found


async def query_brokers(
    admin: AdminClient,
    selector: str | None,
    query: Callable[[BrokerTarget], Awaitable[T]],
    *,
    masters_only: bool = False,
) -> dict[BrokerTarget, T]:
    """Query the brokers concurrently, and return their answers; raise the first error."""
    targets: Sequence[BrokerTarget] = await find_brokers(admin, selector, masters_only=masters_only)
    answers = await asyncio.gather(*map(query, targets))
    return dict(zip(targets, answers, strict=True))
