"""The network interface of servers and clients, and its implementation over TCP.

All other code depends on `Network` only, so that a test can run a whole cluster in memory
(`kourou.testing.network.MemoryNetwork`). One test suite checks both for the same behaviour.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from kourou.decimals import decimal_or
from kourou.errors import AddressInUseError, ConfigError, ConnectFailedError, ListenFailedError
from kourou.model.route import WILDCARD_HOSTS
from kourou.remoting.admission import Admission, AdmissionListener, ends_if_cancelled
from kourou.remoting.tls import TlsContext

Address = tuple[str, int]
"""Host (a name, an IPv4 or an IPv6 address without brackets) and port."""

NO_ADDRESS: Final[Address] = ("0.0.0.0", 0)  # noqa: S104 - never bound
"""Address of a peer that left before its name was read."""

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]

BACKLOG: Final = 1024
"""Connections that may wait to be accepted, as RocketMQ's serverSocketBacklog."""

_PORT_MAX: Final = 65_535


class Listener(Protocol):
    """A port that accepts connections."""

    @property
    def address(self) -> Address:
        """The address listened on, with the actual port if 0 was requested."""

    def close(self) -> None:
        """Stop accepting; connections already accepted stay open. May be called twice."""


class Network(Protocol):
    """Opens and accepts connections."""

    async def listen(
        self, address: Address, factory: ProtocolFactory, *, admission: Admission | None = None
    ) -> Listener:
        """Accept connections, each served by a protocol created by `factory`.

        Port 0 requests any free port. `admission` says what may precede the protocol's own bytes,
        such as TLS; None: nothing.

        Raises:
            AddressInUseError: another socket listens there already.
            ListenFailedError: the address is not this machine's, or is not permitted.
        """

    async def connect(
        self,
        address: Address,
        factory: ProtocolFactory,
        timeout_s: float,
        *,
        tls: TlsContext | None = None,
    ) -> asyncio.BufferedProtocol:
        """Connect and return the connected protocol, created by `factory`.

        With `tls`, returns after the handshake. Cancelling leaves no connection behind.

        Raises:
            ConnectFailedError: refused, unreachable, unknown host, timed out after `timeout_s`, or
                one side rejected the other's certificate.
        """


class TcpNetwork:
    """TCP through the running event loop. asyncio and uvloop set TCP_NODELAY themselves.

    Args:
        reuse_port: other processes may listen on the same ports (SO_REUSEPORT), if they say so too;
            the system distributes connections among them.
    """

    def __init__(self, *, reuse_port: bool = False) -> None:
        self._reuse_port = reuse_port

    async def listen(
        self, address: Address, factory: ProtocolFactory, *, admission: Admission | None = None
    ) -> Listener:
        loop = asyncio.get_running_loop()
        host, port = address
        try:
            server = await loop.create_server(
                factory,
                host,
                port,
                backlog=BACKLOG,
                reuse_address=True,
                reuse_port=self._reuse_port or None,
                start_serving=admission is None,
            )
            if admission is not None:
                return AdmissionListener(_take_sockets(server), factory, admission)
        except OSError as error:
            name = format_address(address)
            if error.errno == errno.EADDRINUSE:
                raise AddressInUseError(name) from error
            raise ListenFailedError(name, _reason(error)) from error
        return _TcpListener(server)

    async def connect(
        self,
        address: Address,
        factory: ProtocolFactory,
        timeout_s: float,
        *,
        tls: TlsContext | None = None,
    ) -> asyncio.BufferedProtocol:
        loop = asyncio.get_running_loop()
        host, port = address
        try:
            async with asyncio.timeout(timeout_s):
                with ends_if_cancelled(factory) as create:
                    _, protocol = await loop.create_connection(
                        create, host, port, ssl=None if tls is None else tls.current()
                    )
        except TimeoutError as error:
            text = f"no connection to {format_address(address)} within {timeout_s:g} s"
            raise ConnectFailedError(text) from error
        except OSError as error:
            text = f"no connection to {format_address(address)}: {_reason(error)}"
            raise ConnectFailedError(text) from error
        return protocol


class _TcpListener:
    """Adapts an asyncio server to `Listener`."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        name = server.sockets[0].getsockname()
        self._address: Address = (name[0], name[1])

    @property
    def address(self) -> Address:
        return self._address

    def close(self) -> None:
        self._server.close()


def _take_sockets(server: asyncio.Server) -> list[socket.socket]:
    """Return listening duplicates of the sockets of `server`, and close `server`."""
    # Duplicates, because the loop keeps the originals and never releases them.
    taken = [socket.socket(fileno=os.dup(bound.fileno())) for bound in server.sockets]
    server.close()
    try:
        for bound in taken:
            bound.listen(BACKLOG)
    except OSError:
        for bound in taken:
            bound.close()
        raise
    return taken


def parse_address(text: str, default_port: int | None = None) -> Address:
    """Return the address that `host:port`, `host`, `[v6]:port`, `[v6]` or a bare v6 names.

    Raises:
        ConfigError: no host, no port and no default, or a port outside 0 to 65535.
    """
    text = text.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"address {text!r}: expected [IPv6 address]:port")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ConfigError(f"address {text!r} names no host: expected host:port")
    if any(map(str.isspace, host)):
        raise ConfigError(f"address {text!r} has a space within the host: expected host:port")
    if not port:
        if default_port is None:
            raise ConfigError(f"address {text!r} names no port: expected host:port")
        return host, default_port
    if not 0 <= decimal_or(port, -1) <= _PORT_MAX:
        raise ConfigError(f"address {text!r}: port {port!r} is not a number from 0 to {_PORT_MAX}")
    return host, int(port)


def parse_advertised(text: str, default_port: int | None = None) -> Address:
    """Return an address that is to be announced to clients, as `parse_address` does.

    Raises:
        ConfigError: also if it is a wildcard address, or has port 0.
    """
    host, port = parse_address(text, default_port)
    if host in WILDCARD_HOSTS:
        raise ConfigError(f"{host} is a wildcard address: use one to which clients can connect")
    if port == 0:
        omitted = "" if default_port is None else "omit the port, or "
        raise ConfigError(f"clients cannot connect to port 0: {omitted}use the real one")
    return host, port


def format_address(address: Address) -> str:
    """Return `host:port`, or `[v6]:port`."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(name: object) -> Address:
    """Return host and port of a socket's name, which is None once the peer has left."""
    return (name[0], name[1]) if isinstance(name, tuple) else NO_ADDRESS


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address or `localhost`; other names are not resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reason(error: OSError) -> str:
    """Return the error text without the address, which the caller adds."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    # asyncio puts the address into strerror. A failed name look-up has its own error numbers.
    if error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)
