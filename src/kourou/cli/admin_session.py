"""One question to a cluster: connect, ask, disconnect, within a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kourou.cli import output
from kourou.cli.transport import client_credentials, client_namespace, client_tls
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig

T = TypeVar("T")

GRACE_S: Final = 1.0
"""So much longer than one request all of them together may take: a server that does not answer is
named by the request that it left open."""


def admin_config(timeout_s: float) -> AdminConfig:
    """Return how commands ask, as the environment says."""
    return AdminConfig(
        admin_timeout_ms=max(1, int(timeout_s * 1000)),
        tls=client_tls(),
        namespace=client_namespace(),
        credentials=client_credentials(),
    )


class AdminSession:
    """Where to ask, and how long to wait for each answer."""

    def __init__(self, namesrv: str, timeout_s: float) -> None:
        self._namesrv = namesrv
        self._timeout_s = timeout_s

    def ask(self, question: Callable[[AdminClient], Awaitable[T]]) -> T:
        """Return the answer.

        Raises:
            TransportError: no answer came in time, or no server was reached.
            RemoteError: a server refused.
        """
        config = admin_config(self._timeout_s)

        async def answer() -> T:
            async with AdminClient(self._namesrv, config=config) as admin:
                return await question(admin)

        return output.ask(answer(), self._timeout_s + GRACE_S, f"the cluster at {self._namesrv}")
