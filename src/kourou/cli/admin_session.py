"""Administration sessions of commands: connect to a cluster, run requests, disconnect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kourou.cli import output
from kourou.cli.transport import client_credentials, client_namespace, client_tls
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig

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
