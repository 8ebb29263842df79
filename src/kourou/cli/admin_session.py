"""Administration sessions of commands, and the brokers that a command selects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kourou.cli import output
from kourou.cli.transport import client_credentials, client_namespace, client_tls
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig
from kourou.errors import NoRouteError
from kourou.model.route import MASTER_ID
from kourou.protocol.brokers import UNWRITABLE_KEY

T = TypeVar("T")

GRACE_S: Final = 1.0
"""Extra time of a session beyond the timeout of one request. A request to a silent server times out
first, so that the error names that server."""


def admin_config(timeout_s: float) -> AdminConfig:
    """Return the client options of commands, with TLS, namespace and keys from the environment."""
    return AdminConfig(
        admin_timeout_ms=max(1, int(timeout_s * 1000)),
        tls=client_tls(),
        namespace=client_namespace(),
        credentials=client_credentials(),
    )


class AdminSession:
    """The name servers of a command, and the timeout of each request."""

    def __init__(self, namesrv: str, timeout_s: float) -> None:
        self._namesrv = namesrv
        self._timeout_s = timeout_s

    def run(self, action: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Connect, call `action` with the client, disconnect, and return the result.

        Raises:
            TransportError: no answer arrived in time, or no server could be connected to.
            RemoteError: a server refused.
        """
        config = admin_config(self._timeout_s)

        async def answer() -> T:
            async with AdminClient(self._namesrv, config=config) as admin:
                return await action(admin)

        return output.run_bounded(
            answer(), self._timeout_s + GRACE_S, f"the cluster at {self._namesrv}"
        )


@dataclass(frozen=True, order=True, slots=True)
class BrokerTarget:
    """A broker: its name, its id (0 is the master), its address and its cluster.

    For a broker that is given by address, the name is the address, the id 0 and the cluster empty.
    """

    name: str
    id: int
    address: str
    cluster: str = ""


def runtime_number(text: str | None) -> float | None:
    """Return the first number of a value of a broker's runtime information.

    None if there is none, or if it is negative, by which brokers mean unknown.
    """
    try:
        number = float((text or "").split()[0])
    except (ValueError, IndexError):
        return None
    return number if 0 <= number < float("inf") else None


def refusal_of(info: Mapping[str, str]) -> str:
    """Return why the store of a broker with this runtime information accepts no messages.

    Empty if it does, or for a Java broker, which does not tell: its `brokerActive` is another
    state, which is false at every slave.
    """
    return info.get(UNWRITABLE_KEY, "")


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
