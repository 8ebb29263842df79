"""A client's connections to servers: one for each address, opened on demand and reopened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from kourou.errors import ClosedError, ConnectFailedError, RequestTimeoutError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import BINARY_CODE_MAX, RemotingCommand, SerializeType
from kourou.remoting.connection import Connection, FastPath
from kourou.remoting.connections import Connections
from kourou.remoting.dispatch import Dispatcher, Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import parse_address
from kourou.remoting.request_hooks import RequestHook, RequestHooks
from kourou.remoting.runtime import Runtime
from kourou.remoting.tls import TlsClientConfig, TlsContext

log = logging.getLogger(__name__)

Connected = Callable[[str, Connection], None]


class ConnectionPool:
    """The connections of one client. Must be created inside a running loop.

    Addresses are texts, `host:port`, as name servers and brokers return them.

    Args:
        runtime: provides the network.
        handlers: handlers of requests from servers, by request code; other codes are answered
            "not supported".
        limits: bounds of each connection, and the connect timeout.
        on_connected: called with the address and each new connection, before anything is sent.
        tls: TLS settings; None: plain connections.
        serialize_type: encoding of requests; a request whose code does not fit the binary
            encoding is written as JSON.
        fast_path: handles the responses that it recognizes.
        hooks: called around each request.
        namespace: the client's namespace.

    Attributes:
        is_binary: requests are written in the binary encoding.
        hooks: as given. Code that sends by other means than `request` and `oneway` must call them
            itself.
        namespace: as given, for code that decodes responses.

    Raises:
        ConfigError: a file named by `tls` cannot be used.
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
        fast_path: FastPath | None = None,
        hooks: Sequence[RequestHook] = (),
        namespace: str = "",
    ) -> None:
        self.hooks = RequestHooks(hooks)
        self._is_hooked = bool(hooks)
        self.namespace = namespace
        self._network = runtime.network
        self._limits = limits
        self._on_connected = on_connected
        self._tls = None if tls is None else TlsContext.of_client(tls)
        self.is_binary = serialize_type is SerializeType.ROCKETMQ
        self._dispatcher = Dispatcher(handlers)
        self._connections = Connections(
            self._dispatcher, limits, is_accepting=False, fast_path=fast_path
        )
        self._by_address: dict[str, Connection] = {}
        self._attempts: dict[str, asyncio.Task[Connection]] = {}
        self._is_closed = False

    async def get(self, address: str) -> Connection:
        """Return the open connection to `address`; open one if there is none.

        Concurrent callers share one attempt to connect; cancelling a caller does not cancel the
        attempt.

        Raises:
            ConfigError: the address does not parse.
            ConnectFailedError: refused, unreachable, or not within `connect_timeout_ms`.
            ClosedError: the pool is closed.
        """
        if self._is_closed:
            raise ClosedError("the connection pool is closed")
        connection = self._by_address.get(address)
        if connection is not None and connection.is_open:
            return connection
        attempt = self._attempts.get(address)
        if attempt is None:
            attempt = asyncio.create_task(self._connect(address), name=f"connect {address}")
            self._attempts[address] = attempt
            attempt.add_done_callback(lambda done: self._end_attempt(address, done))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if attempt.cancelled() and me is not None and not me.cancelling():
                raise ClosedError("the connection pool was closed") from None
            raise

    def connections(self) -> list[Connection]:
        """Return all connections, open or closing."""
        return list(self._by_address.values())

    def existing(self, address: str) -> Connection | None:
        """Return the existing connection to `address`, which may already be closing, or None."""
        return self._by_address.get(address)

    def request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_s: float,
        *,
        is_retry: bool = False,
    ) -> Coroutine[Any, Any, RemotingCommand]:
        """Send a request to `address` and return the response, whatever its code.

        A server that is shutting down may answer GO_AWAY without serving the request. The request
        is then sent once more, on a new connection, unless `is_retry` says that this call
        already is the second attempt. If the peer sends nothing at all meanwhile,
        and for `SILENCE_S`, its connection is aborted, and the next request opens a new one.

        Raises:
            ConnectFailedError: no connection within `timeout_s` or `connect_timeout_ms`; not sent.
            RequestTimeoutError: no response within `timeout_s`; it may have been served.
            ConnectionLostError: closed before the response arrived; it may have been served.
            TooManyRequestsError: `requests_waiting_max` requests are pending already; not sent.
            FrameTooLargeError: larger than peers accept; not sent.
            MalformedHeaderError: a text of it is not valid Unicode; not sent.
            ConfigError: the address does not parse.
            ClosedError: the pool is closed.
        """
        # Not a coroutine itself: one more would cost each request a microsecond.
        if self._is_hooked:
            return self._request_with_hooks(address, command, timeout_s, is_retry)
        return self._request(address, command, timeout_s, is_retry)

    async def _request_with_hooks(
        self,
        address: str,
        command: RemotingCommand,
        timeout_s: float,
        is_retry: bool,  # noqa: FBT001 - as `request` passes it on
    ) -> RemotingCommand:
        if self.is_binary:
            _make_binary(command)
        self.hooks.before(address, command)
        answer = await self._request(address, command, timeout_s, is_retry)
        self.hooks.after(address, command, answer)
        return answer

    async def _request(
        self,
        address: str,
        command: RemotingCommand,
        timeout_s: float,
        is_retry: bool,  # noqa: FBT001 - as `request` passes it on
    ) -> RemotingCommand:
        if self.is_binary:
            _make_binary(command)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ends_at_s = began_s + timeout_s
        connection = self._by_address.get(address)
        if connection is None or not connection.is_open:
            connection = await self._get_within(address, timeout_s)
            began_s = loop.time()
        answer = await self._request_on(connection, command, ends_at_s - began_s, began_s)
        if answer.code != ResponseCode.GO_AWAY or is_retry:
            return answer
        self.retire(address, connection)
        connection = await self._get_within(address, ends_at_s - loop.time())
        began_s = loop.time()
        return await self._request_on(connection, command, ends_at_s - began_s, began_s)

    def retire(self, address: str, connection: Connection) -> None:
        """Stop using a connection whose server is shutting down; pending responses may arrive."""
        if self._by_address.get(address) is connection:
            del self._by_address[address]

    async def oneway(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> None:
        """Send a oneway request; return when it is queued.

        Raises:
            ConnectFailedError: no connection within `timeout_s` or `connect_timeout_ms`.
            RequestTimeoutError: the peer did not read earlier output within `timeout_s`; not sent.
            ConnectionLostError: closed; not sent.
            FrameTooLargeError, MalformedHeaderError, ConfigError, ClosedError: as `request`.
        """
        if self.is_binary:
            _make_binary(command)
        if self._is_hooked:
            self.hooks.before(address, command)
        connection = await self._get_within(address, timeout_s)
        await connection.oneway(command, timeout_s)

    async def close(self) -> None:
        """Close all connections; queued output may leave within `drain_timeout_ms`.

        Pending requests fail with ConnectionLostError, pending connects with ClosedError.
        """
        self._is_closed = True
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        self._by_address.clear()
        await self._connections.close("the client is closing")
        self._dispatcher.release()

    def abort(self) -> None:
        """Abort all connections immediately, as a killed process would."""
        self._is_closed = True
        for attempt in self._attempts.values():
            attempt.cancel()
        self._by_address.clear()
        self._connections.abort("the client was aborted")

    async def _connect(self, address: str) -> Connection:
        protocol = await self._network.connect(
            parse_address(address),
            self._connections.create,
            self._limits.connect_timeout_ms / 1000,
            tls=self._tls,
        )
        assert isinstance(protocol, Connection)
        self._by_address[address] = protocol
        protocol.on_closed.append(lambda closed: self.retire(address, closed))
        log.debug("connection.made address=%s", address)
        if self._on_connected is not None:
            self._on_connected(address, protocol)
        return protocol

    def _end_attempt(self, address: str, attempt: asyncio.Task[Connection]) -> None:
        del self._attempts[address]
        if not attempt.cancelled():
            # If all callers were cancelled, nothing else retrieves the exception, and asyncio
            # would log it.
            attempt.exception()

    async def _get_within(self, address: str, timeout_s: float) -> Connection:
        connection = self._by_address.get(address)
        if connection is not None and connection.is_open:
            return connection
        try:
            async with asyncio.timeout(timeout_s):
                return await self.get(address)
        except TimeoutError:
            text = f"no connection to {address} within {timeout_s:g} s"
            raise ConnectFailedError(text) from None

    async def _request_on(
        self, connection: Connection, command: RemotingCommand, timeout_s: float, sent_at_s: float
    ) -> RemotingCommand:
        try:
            return await connection.request(command, timeout_s)
        except RequestTimeoutError:
            connection.abort_if_silent(sent_at_s)
            raise


def _make_binary(command: RemotingCommand) -> None:
    if command.code <= BINARY_CODE_MAX:
        command.serialize_type = SerializeType.ROCKETMQ
