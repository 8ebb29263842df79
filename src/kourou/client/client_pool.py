"""ClientPool: a client's connections, whose requests are all written as the client is told to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from kourou.errors import ConfigError
from kourou.protocol.command import BINARY_CODE_MAX, RemotingCommand, SerializeType
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import Connected, ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.tls import TlsClientConfig

SERIALIZE_TYPE_VARIABLE: Final = "ROCKETMQ_SERIALIZE_TYPE"
"""Environment variable that names the form of headers where the client does not."""


class ClientPool(ConnectionPool):
    """Connections of one client. Made inside a running loop.

    Args:
        runtime, handlers, limits, on_connected, tls: as in `ConnectionPool`.
        serialize_type: how headers are written; a request whose code does not fit the binary form
            is written as JSON all the same.
    """

    def __init__(
        self,
        runtime: Runtime,
        handlers: Mapping[int, Handler],
        limits: ConnectionLimits,
        on_connected: Connected | None = None,
        *,
        tls: TlsClientConfig | None = None,
        serialize_type: SerializeType = SerializeType.JSON,
    ) -> None:
        super().__init__(runtime, handlers, limits, on_connected, tls=tls)
        self._serialize_type = serialize_type

    async def request(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        self._prepare(command)
        return await super().request(address, command, timeout_s)

    async def oneway(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> None:
        self._prepare(command)
        await super().oneway(address, command, timeout_s)

    def _prepare(self, command: RemotingCommand) -> None:
        if command.code <= BINARY_CODE_MAX:
            command.serialize_type = self._serialize_type


def serialize_type_of_environment() -> SerializeType:
    """Return what the environment names, as RocketMQ's clients read it; JSON where it does not.

    Raises:
        ConfigError: it names no form.

    Source: RemotingCommand.java.
    """
    name = os.environ.get(SERIALIZE_TYPE_VARIABLE, "").strip()
    if not name:
        return SerializeType.JSON
    try:
        return SerializeType[name]
    except KeyError:
        raise ConfigError(
            f"{SERIALIZE_TYPE_VARIABLE} is {name!r}: allowed are JSON and ROCKETMQ"
        ) from None
