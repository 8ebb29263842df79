"""A gRPC server: connections on a port, and the calls on their streams.

A call is an object that a method's function answers, at once or later. The hot path of a unary call
is one read, one call of its function and one write, without a task or a timer. Output of one loop
iteration is written once.

While a client does not read, at most `UNREAD_BYTES` wait for it, and nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, cast

from kourou.http2.connection import Http2Connection, Http2Limits, Stream
from kourou.http2.grpc_messages import (
    GrpcError,
    GrpcStatus,
    MessageReader,
    encode_message,
    parse_timeout,
    percent_encode,
)
from kourou.http2.headers import RequestHead, encode_response
from kourou.remoting.admission import Admission
from kourou.remoting.network import Address, Listener, Network, format_address

log = logging.getLogger(__name__)

UNREAD_BYTES: Final = 1024 * 1024
"""Output of a connection above which nothing more is read from it."""
READ_BYTES: Final = 256 * 1024
SWEEP_S: Final = 5.0
"""Interval of the check for idle and stalled connections."""
DEADLINE_TICK_S: Final = 0.02
"""Calls whose deadlines are within one tick end together."""
CLOSE_S: Final = 1.0
"""Seconds in which the last output of a closing connection may leave."""
_CONTENT_TYPE: Final = b"application/grpc"
_HEAD_FIELDS: Final = {"content-type": "application/grpc", "grpc-accept-encoding": "identity,gzip"}
_HEAD: Final = encode_response(_HEAD_FIELDS, has_status=True)
_OK: Final = encode_response({"grpc-status": "0"}, has_status=False)
_ENCODINGS: Final = ("", "identity", "gzip")
_TEXT_MAX: Final = 4096
_NO_ADDRESS: Final[Address] = ("0.0.0.0", 0)  # noqa: S104 - the peer left before its name was read


class Kind(Enum):
    """How a method takes requests and returns responses."""

    UNARY = auto()
    SERVER_STREAM = auto()
    BIDI = auto()


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service.

    Attributes:
        kind: how often it is answered.
        handle: called with each call and the bytes of its request; of a bidirectional method, with
            no bytes when the call begins. It runs on the event loop and must not block. An error
            that it raises ends the call with INTERNAL, or with the status of a `GrpcError`.
    """

    kind: Kind
    handle: Callable[[Call, bytes], None]


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """Limits of a server.

    Attributes:
        http2: limits of each connection.
        message_bytes_max: largest request, inflated.
        incomplete_bytes_max: bytes of incomplete requests of all connections.
        connections_max: open connections.
        idle_s: seconds without an open stream after which a connection is closed.
        stalled_s: seconds after which a connection is closed that sends an incomplete frame, or
            does not read.
    """

    http2: Http2Limits = field(default_factory=Http2Limits)
    message_bytes_max: int = 130 * 1024 * 1024
    incomplete_bytes_max: int = 256 * 1024 * 1024
    connections_max: int = 20_000
    idle_s: float = 120.0
    stalled_s: float = 30.0


class Call:
    """One call of a method. All methods are ignored once the call is over.

    Attributes:
        connection: the connection that it came by.
        deadline_s: time of the loop at which it must be answered; None: no limit.
        on_cancel: called once if the client cancels the call or leaves, or the deadline passes.
        on_message: of a bidirectional call: called with each request.
        on_end: of a bidirectional call: called when the client sends no more.
        on_writable: called when all data that had to wait was sent.
        counted_bytes: bytes of an incomplete request that the server has counted.
    """

    __slots__ = (
        "_fields", "_has_head", "_metadata", "_reader", "_request", "connection", "counted_bytes",
        "deadline_s", "method", "on_cancel", "on_end", "on_message", "on_writable", "stream",
    )  # fmt: skip

    def __init__(self, connection: GrpcConnection, stream: Stream, method: Method) -> None:
        self.connection = connection
        self.stream = stream
        self.method = method
        self.counted_bytes = 0
        self.deadline_s: float | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_message: Callable[[bytes], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self._fields: tuple[tuple[bytes, bytes], ...] = ()
        self._metadata: dict[str, str] | None = None
        self._has_head = False
        self._reader: MessageReader | None = None
        self._request: bytes | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        """The fields of the request, by name; of a repeated field, the last one."""
        if self._metadata is None:
            self._metadata = {
                name.decode("ascii", "replace"): value.decode("utf-8", "replace")
                for name, value in self._fields
            }
        return self._metadata

    @property
    def is_active(self) -> bool:
        """Whether it can still be answered."""
        return not self.stream.is_closed and not self.stream.is_local_ended

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that the client's windows do not allow yet."""
        return self.stream.unsent_bytes

    def reply(self, message: bytes) -> None:
        """Send the only response, with status OK."""
        if self._has_head:
            self.send(message)
            self.finish()
            return
        self._has_head = True
        self.connection.http2.reply(self.stream, _HEAD, encode_message(message), _OK)
        self._over()

    def send_headers(self) -> None:
        """Tell the client that the call is served, before the first response."""
        if not self._has_head:
            self._has_head = True
            self.connection.http2.send_headers(self.stream, _HEAD)
            self.connection.flush_soon()

    def send(self, message: bytes) -> None:
        """Send one response."""
        self.send_headers()
        self.connection.http2.send_data(self.stream, encode_message(message))
        self.connection.flush_soon()

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """End the call with a status and its text."""
        if not self.is_active:
            return
        http2 = self.connection.http2
        if self._has_head and status is GrpcStatus.OK:
            http2.send_headers(self.stream, _OK, ends=True)
        else:
            fields = {"grpc-status": str(int(status))}
            if text:
                fields["grpc-message"] = percent_encode(text[:_TEXT_MAX])
            if not self._has_head:
                fields = {**_HEAD_FIELDS, **fields}
            block = encode_response(fields, has_status=not self._has_head)
            http2.send_headers(self.stream, block, ends=True)
        self._has_head = True
        self._over()

    def _over(self) -> None:
        self.on_cancel = None
        self.connection.on_call_over(self)

    # Called by the connection

    def begin(self, head: RequestHead) -> None:
        """Check the fields, and start a bidirectional method.

        Raises:
            GrpcError: the call is refused.
        """
        self._fields = head.fields
        encoding = timeout = kind = b""
        for name, value in head.fields:
            if name == b"grpc-timeout":
                timeout = value
            elif name == b"grpc-encoding":
                encoding = value
            elif name == b"content-type":
                kind = value
        if not kind.startswith(_CONTENT_TYPE):
            raise GrpcError(
                GrpcStatus.UNKNOWN, f"content-type {kind.decode('ascii', 'replace')!r} is not gRPC"
            )
        name_of_encoding = encoding.decode("ascii", "replace")
        if name_of_encoding not in _ENCODINGS:
            raise GrpcError(
                GrpcStatus.UNIMPLEMENTED,
                f"grpc-encoding {name_of_encoding!r} is not supported: use identity or gzip",
            )
        self._reader = MessageReader(name_of_encoding, self.connection.limits.message_bytes_max)
        if timeout:
            timeout_s = parse_timeout(timeout.decode("ascii", "replace"))
            if timeout_s is None:
                raise GrpcError(GrpcStatus.INTERNAL, f"grpc-timeout {timeout!r} is malformed")
            self.deadline_s = self.connection.now_s() + timeout_s
        if self.method.kind is Kind.BIDI:
            self.method.handle(self, b"")

    def on_data(self, data: bytes) -> None:
        """Handle data of the request.

        Raises:
            GrpcError: the request is refused.
        """
        reader = self._reader
        assert reader is not None, "the call has begun"
        for message in reader.feed(data):
            if self.method.kind is Kind.BIDI:
                if self.on_message is not None:
                    self.on_message(message)
            elif self._request is None:
                self._request = message
            else:
                raise GrpcError(GrpcStatus.UNIMPLEMENTED, "more than one request in a unary call")
        if self.stream.is_remote_closed and self.is_active:
            self._on_end(reader)

    def _on_end(self, reader: MessageReader) -> None:
        if reader.held_bytes:
            raise GrpcError(GrpcStatus.INTERNAL, "the last request is incomplete")
        if self.method.kind is Kind.BIDI:
            if self.on_end is not None:
                self.on_end()
            return
        if self._request is None:
            raise GrpcError(GrpcStatus.INTERNAL, "the call ended without a request")
        request, self._request = self._request, b""
        self.method.handle(self, request)

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete request."""
        return 0 if self._reader is None else self._reader.held_bytes

    def cancelled(self) -> None:
        """Report that the call is over without an answer."""
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()


class GrpcConnection(asyncio.BufferedProtocol):
    """One connection of a client; a `StreamHandler`.

    Attributes:
        http2: its protocol.
        limits: those of the server.
        remote_address, local_address: of the peer, behind a load balancer of its client; and ours.
        forwarded_for: the client's address from a load balancer's preamble.
        on_closed: called in order, once, when it has closed.
        user: for the program that serves the calls.
    """

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.limits = server.limits
        self.http2 = Http2Connection(server.limits.http2, self, self._loop.time)
        self.remote_address = self.local_address = _NO_ADDRESS
        self.forwarded_for: Address | None = None
        self.on_closed: list[Callable[[GrpcConnection], None]] = []
        self.user: object = None
        self._transport: asyncio.Transport | None = None
        self._is_flush_due = False
        self._is_receiving = False
        self._is_paused = False
        self._is_draining = False
        self._last_read_s = self._last_open_s = self._last_written_s = self._loop.time()

    def now_s(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    @property
    def is_open(self) -> bool:
        """Whether calls can be answered."""
        return self._transport is not None and not self.http2.is_closed

    # Output

    def flush_soon(self) -> None:
        """Write the output at the end of this loop iteration."""
        if not self._is_flush_due and not self._is_receiving:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        if transport is None:
            return
        if self.http2.has_output:
            transport.write(self.http2.take_output())
            if not self._is_paused:
                self._last_written_s = self._loop.time()
        if self.http2.is_closed:
            if self.http2.close_reason:
                self._server.warn(self, self.http2.close_reason)
            self._transport = None
            transport.close()
            self._loop.call_later(CLOSE_S, transport.abort)

    def close(self) -> None:
        """End the connection and its calls."""
        self.http2.close()
        self._flush()

    def drain(self) -> None:
        """Accept no more calls; close when the present ones are over."""
        self._is_draining = True
        self.http2.drain()
        if not self.http2.streams:
            self.http2.close()
        self._flush()

    def abort(self) -> None:
        """End at once, as a killed process would."""
        if self._transport is not None:
            self._transport.abort()

    def check_ages(self, now_s: float) -> None:
        """Close the connection if it is idle or stalled."""
        if self._transport is None:
            return
        limits = self.limits
        if self.http2.streams:
            self._last_open_s = now_s
        if self._is_paused and now_s - self._last_written_s > limits.stalled_s:
            self._server.warn(self, f"did not read for {limits.stalled_s:g} s")
            self.abort()
        elif self.http2.held_bytes and now_s - self._last_read_s > limits.stalled_s:
            self._server.warn(self, f"frame incomplete after {limits.stalled_s:g} s")
            self.abort()
        elif now_s - self._last_open_s > limits.idle_s:
            self.drain()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        self._transport = stream
        stream.set_write_buffer_limits(high=UNREAD_BYTES)
        self.remote_address = self.forwarded_for or _address(stream.get_extra_info("peername"))
        self.local_address = _address(stream.get_extra_info("sockname"))
        if not self._server.add(self):
            stream.abort()
            return
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's signature
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._last_read_s = self._last_open_s = self._loop.time()
        self._is_receiving = True
        try:
            self.http2.receive(bytes(self._server.read_buffer[:nbytes]))
        finally:
            self._is_receiving = False
        self._flush()

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self._is_paused = True
        self._last_written_s = self._loop.time()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the loop's
        self._transport = None
        self.http2.close()
        self._server.remove(self)
        for on_closed in self.on_closed:
            on_closed(self)
        self.on_closed.clear()

    # Streams

    def on_request(self, stream: Stream, head: RequestHead) -> None:
        method = self._server.methods.get(head.path)
        call = Call(self, stream, method or _UNKNOWN)
        stream.user = call
        if method is None:
            path = head.path.decode("ascii", "replace").lstrip("/")
            call.finish(GrpcStatus.UNIMPLEMENTED, f"Method not found: {path}")
            return
        try:
            call.begin(head)
            if stream.is_remote_closed and not stream.is_closed:
                call.on_data(b"")
        except GrpcError as error:
            call.finish(error.status, error.text)
        except Exception as error:  # noqa: BLE001 - one call's failure must not touch others
            self._failed(call, error)
        if call.deadline_s is not None and call.is_active:
            self._server.deadlines.add(call)

    def on_data(self, stream: Stream, data: bytes) -> None:
        call = cast(Call, stream.user)
        try:
            call.on_data(data)
            if call.held_bytes != call.counted_bytes:
                self._count_held(call, call.held_bytes)
        except GrpcError as error:
            call.finish(error.status, error.text)
        except Exception as error:  # noqa: BLE001 - one call's failure must not touch others
            self._failed(call, error)

    def on_reset(self, stream: Stream) -> None:
        call = cast("Call | None", stream.user)
        if call is None:
            return
        if call.counted_bytes:
            self._count_held(call, 0)
        if call.deadline_s is not None:
            self._server.deadlines.discard(call)
        try:
            call.cancelled()
        except Exception:  # as in `on_request`
            log.exception("grpc_call.cancel_failed peer=%s", self.remote_address)

    def on_writable(self, stream: Stream) -> None:
        call = cast(Call, stream.user)
        if call.on_writable is not None:
            call.on_writable()

    def on_call_over(self, call: Call) -> None:
        """Forget a call that is answered, and write the answer soon."""
        if call.counted_bytes:
            self._count_held(call, 0)
        if call.deadline_s is not None:
            self._server.deadlines.discard(call)
        if self._is_draining and not self.http2.streams:
            self.http2.close()
        self.flush_soon()

    def _count_held(self, call: Call, held: int) -> None:
        """Count the incomplete request of a call.

        Raises:
            GrpcError: those of all calls are too large.
        """
        grown = held - call.counted_bytes
        call.counted_bytes = held
        self._server.held_bytes += grown
        limit = self.limits.incomplete_bytes_max
        if grown > 0 and self._server.held_bytes > limit:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"incomplete requests of all clients exceed {limit} bytes: send less at once",
            )

    def _failed(self, call: Call, error: Exception) -> None:
        log.error("grpc_call.failed peer=%s", self.remote_address, exc_info=error)
        call.finish(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}")


class _Deadlines:
    """The deadlines of open calls, with one timer for all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._by_tick: dict[int, dict[Call, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Call) -> None:
        """End the call when its deadline has passed."""
        assert call.deadline_s is not None
        self._by_tick.setdefault(_tick(call.deadline_s), {})[call] = None
        if self._timer is None:
            self._timer = self._loop.call_later(DEADLINE_TICK_S, self._expire)

    def discard(self, call: Call) -> None:
        """Forget the call."""
        assert call.deadline_s is not None
        tick = _tick(call.deadline_s)
        calls = self._by_tick.get(tick)
        if calls is not None and calls.pop(call, call) is None and not calls:
            del self._by_tick[tick]

    def close(self) -> None:
        """End no more calls."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._by_tick.clear()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for tick in [tick for tick in self._by_tick if tick * DEADLINE_TICK_S <= now]:
            for call in self._by_tick.pop(tick, ()):
                if call.is_active:
                    call.cancelled()
                    call.finish(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed")
        if self._by_tick:
            self._timer = self._loop.call_later(DEADLINE_TICK_S, self._expire)


class GrpcServer:
    """Serves methods on one port. Created inside a running loop; started and stopped once.

    Attributes:
        methods: by path, such as b"/package.Service/Method".
        limits: its limits.
        held_bytes: bytes of incomplete requests of all connections.
        deadlines: of the open calls.
        read_buffer: shared by all connections, which handle what they read at once.
    """

    def __init__(
        self,
        network: Network,
        methods: Mapping[str, Method],
        limits: GrpcLimits | None = None,
        *,
        admission: Admission | None = None,
        name: str = "grpc",
    ) -> None:
        """Create a server that does not listen yet.

        Args:
            network: where it listens.
            methods: by path, such as "/package.Service/Method".
            limits: None for the defaults.
            admission: what may precede HTTP/2, such as TLS; None: nothing.
            name: the server's name in the log.
        """
        self._network = network
        self.methods = {path.encode(): method for path, method in methods.items()}
        self.limits = limits or GrpcLimits()
        self._admission = admission
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._listener: Listener | None = None
        self._open: dict[GrpcConnection, None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._is_stopping = False
        self.held_bytes = 0
        self.deadlines = _Deadlines(self._loop)
        self.read_buffer = memoryview(bytearray(READ_BYTES))

    @property
    def connections(self) -> list[GrpcConnection]:
        """The open connections."""
        return list(self._open)

    async def start(self, address: Address) -> Address:
        """Accept connections and return the address, with the port given when 0 was asked.

        Raises:
            AddressInUseError: another socket listens there already.
            ListenFailedError: the address is not this machine's, or is not permitted.
        """
        self._listener = await self._network.listen(address, self.create, admission=self._admission)
        log.info(
            "server.started name=%s address=%s", self._name, format_address(self._listener.address)
        )
        return self._listener.address

    def create(self) -> GrpcConnection:
        """Return the server's side of a new connection."""
        return GrpcConnection(self)

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls; close the connections after their calls, or after `grace_s`."""
        if self._listener is None or self._is_stopping:
            return
        self._is_stopping = True
        self._listener.close()
        for connection in self.connections:
            connection.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._emptied.wait()  # drained connections close after their last call
        except TimeoutError:
            log.warning("grpc_calls.ended server=%s reason=stopping", self._name)
        for connection in self.connections:
            connection.close()
        try:
            async with asyncio.timeout(CLOSE_S * 2):
                await self._emptied.wait()
        except TimeoutError:  # a transport that never reports its end must not hold up the stop
            log.error("connections.not_closed count=%d", len(self._open))  # noqa: TRY400
        self.deadlines.close()
        log.info("server.stopped name=%s", self._name)

    def abort(self) -> None:
        """Stop as a killed process would."""
        self._is_stopping = True
        if self._listener is not None:
            self._listener.close()
        self.deadlines.close()
        for connection in self.connections:
            connection.abort()

    # Called by the connections

    def add(self, connection: GrpcConnection) -> bool:
        """Track a new connection; return False if there is no room for it."""
        if self._is_stopping:
            return False
        if len(self._open) >= self.limits.connections_max:
            self.warn(connection, f"{self.limits.connections_max} connections are open already")
            return False
        self._open[connection] = None
        self._emptied.clear()
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._check_ages)
        return True

    def remove(self, connection: GrpcConnection) -> None:
        """Forget a closed connection."""
        self._open.pop(connection, None)
        if not self._open:
            self._emptied.set()
            if self._sweep is not None:
                self._sweep.cancel()
                self._sweep = None

    def warn(self, connection: GrpcConnection, reason: str) -> None:
        """Log why a connection was closed."""
        peer = format_address(connection.remote_address)
        log.warning("connection.dropped server=%s peer=%s reason=%r", self._name, peer, reason)

    def _check_ages(self) -> None:
        self._sweep = self._loop.call_later(SWEEP_S, self._check_ages)
        now_s = self._loop.time()
        for connection in self.connections:
            connection.check_ages(now_s)


_UNKNOWN: Final = Method(Kind.UNARY, lambda _, __: None)
"""Method of a call with an unknown path, until it is refused."""


def _tick(deadline_s: float) -> int:
    """Return the first tick that is not before a deadline."""
    return int(deadline_s / DEADLINE_TICK_S) + 1


def _address(name: object) -> Address:
    """Return host and port of a socket's name, which is None once the peer has left."""
    return (name[0], name[1]) if isinstance(name, tuple) else _NO_ADDRESS
