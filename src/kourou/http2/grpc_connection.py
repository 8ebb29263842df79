"""A connection of a gRPC server: passes bytes between its transport and HTTP/2.

Output of one iteration of the event loop is written once. While a client does not read, nothing
more is read from it, and messages to it wait in their streams. A client that sends many frames at
once has them handled in several iterations, so that others wait for a few milliseconds only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from kourou.http2.calls import CallConnection, Method
from kourou.http2.connection import Http2Connection
from kourou.http2.limits import GrpcLimits
from kourou.http2.open_calls import OpenCalls, SharedCalls
from kourou.http2.request_memory import RequestMemory
from kourou.http2.turns import Turns
from kourou.remoting.frame_buffer import PartialFrames
from kourou.remoting.log_rate import LogRate
from kourou.remoting.network import NO_ADDRESS, Address, address_of, format_address
from kourou.remoting.output import COUNTED_BYTES, UnreadOutput

log = logging.getLogger(__name__)

READ_BYTES: Final = 256 * 1024
"""Largest single read."""
LINGER_S: Final = 1.0
"""Time in seconds without a byte read after which a connection that is closing is aborted. Until
then the socket stays open: unread input would otherwise discard the last output."""


class SharedState:
    """State that all connections of one server share.

    Attributes:
        limits: those of the server.
        memory: of incomplete requests.
        calls: what their open calls share.
        partials: incomplete frames.
        unread: output that clients have not read.
        turns: the shares of the connections in a turn.
        read_buffer: the buffer of each read, whose bytes are copied at once.
        connections: the open ones.
        on_opened, on_closed: called with each connection when it opens and when it has closed.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: GrpcLimits,
        name: str,
        on_opened: Callable[[GrpcConnection], None],
        on_closed: Callable[[GrpcConnection], None],
    ) -> None:
        """Start without connections. `name` is the server's name in the log."""
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._warnings = LogRate()
        self.limits = limits
        self.memory = RequestMemory(
            limits.incomplete_bytes_max, limits.incomplete_timeout_s, self._loop.time
        )
        self.calls = SharedCalls(methods, limits.open_calls_bytes_max, self._make_room)
        self.partials = PartialFrames(limits.partial_bytes_max)
        self.connections: dict[GrpcConnection, None] = {}
        self.unread = UnreadOutput(limits.output_bytes_total_max, lambda: self.connections)
        self.turns = Turns()
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.on_opened = on_opened
        self.on_closed = on_closed

    def _make_room(self, calls: OpenCalls) -> bool:
        """Close connections for the fields of a new call; False if its own has the most."""
        while self.calls.open_bytes > self.calls.open_bytes_max:
            largest = max(self.connections, key=lambda one: one.calls.open_bytes)
            if largest.calls is calls:
                return False
            size = largest.calls.open_bytes
            largest.drop(f"{size} bytes of metadata of open calls, the most of all")
            largest.http2.close()
        return True

    def warn(self, connection: GrpcConnection, reason: str) -> None:
        """Log why a connection was closed, at a limited rate."""
        suppressed = self._warnings.take(self._loop.time())
        if suppressed is not None:
            log.warning(
                "connection.dropped server=%s peer=%s reason=%r suppressed=%d",
                self._name,
                format_address(connection.remote_address),
                reason,
                suppressed,
            )


class GrpcConnection(asyncio.BufferedProtocol):
    """One connection; see `CallConnection` for its attributes.

    Attributes:
        http2: its protocol.
        calls: its open calls.
        forwarded_for: client address from the load balancer's preamble; set before it begins.
        unread_bytes: see `kourou.remoting.output.Sender`.
        is_flush_due: see `CallConnection`.
    """

    def __init__(self, shared: SharedState, number: int) -> None:
        self.id = number
        self._shared = shared
        self.limits = shared.limits
        self.memory = shared.memory
        self._loop = asyncio.get_running_loop()
        self.calls = OpenCalls(shared.calls, self)
        self.http2 = self.calls.http2 = Http2Connection(
            shared.limits.http2, self.calls, self._loop.time
        )
        self.outgoing = self.http2.outgoing
        self.raise_window = self.http2.raise_window
        self.spend = self.http2.spend
        self.remote_address = self.local_address = NO_ADDRESS
        self.forwarded_for: Address | None = None
        self.is_tls = False
        self.on_closed: list[Callable[[CallConnection], None]] = []
        self.state: Any = None
        self.unread_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._is_lost = self._is_dropped = False
        self.is_flush_due = False
        self._is_partial = False
        self._is_yielding = False
        self._linger: asyncio.TimerHandle | None = None
        self.turn = object()
        self.read_at_s = self._partial_since_s = self._loop.time()
        self._paused_at_s = 0.0
        self._paused_bytes = 0
        self._idle_since_s: float | None = None
        self._calls_when_idle = 0
        self._ping_sent_at_s: float | None = None

    def __repr__(self) -> str:
        return f"<GrpcConnection {self.id} {format_address(self.remote_address)}>"

    @property
    def is_open(self) -> bool:
        """Whether calls can be answered."""
        return self._transport is not None and not (self.http2.is_closed or self._is_dropped)

    # Output

    def flush_soon(self) -> None:
        """See `CallConnection`."""
        if not self.is_flush_due:
            self.is_flush_due = True
            self._loop.call_soon(self._flush)

    def write_now(self) -> None:
        """See `CallConnection`."""
        self._flush()
        self.is_flush_due = True

    def _flush(self) -> None:
        self.is_flush_due = False
        outgoing, transport = self.outgoing, self._transport
        if transport is None:
            return
        if outgoing.ready:
            outgoing.resume()
        if outgoing.pending_bytes:
            transport.write(outgoing.take())
            if transport.get_write_buffer_size() or outgoing.unsent_bytes or self.unread_bytes:
                self.count_unread()
            if outgoing.ready and outgoing.can_resume:
                self.flush_soon()
        if self.http2.is_closed and self._linger is None:
            self._begin_closing(transport)

    def count_unread(self) -> None:
        """See `CallConnection`."""
        unread = self.unread_now()
        if unread > COUNTED_BYTES or self.unread_bytes:
            if unread > self.limits.output_bytes_max:
                self.drop(f"{unread} bytes of output unread, limit {self.limits.output_bytes_max}")
            else:
                self._shared.unread.count(self, unread)

    def unread_now(self) -> int:
        """See `Sender`."""
        if self._transport is None or self._is_dropped:
            return 0
        return self._transport.get_write_buffer_size() + self.outgoing.unsent_bytes

    # Ending

    def drain(self) -> None:
        """Accept no more calls; close when the open ones are over."""
        self.http2.drain()
        if not self.http2.streams:
            self.http2.close()
        self._flush()

    def close(self) -> None:
        """End the connection and its calls."""
        self.http2.close()
        self._flush()

    def abort(self) -> None:
        """End at once, as a killed process would."""
        if self._transport is not None:
            self._transport.abort()

    def drop(self, reason: str) -> None:
        """Abort because of the client's behaviour, and log the reason."""
        if self._transport is not None and not self._is_dropped:
            self._is_dropped = True
            self._shared.unread.forget(self)
            self._shared.warn(self, reason)
            self._transport.abort()

    def _begin_closing(self, transport: asyncio.Transport) -> None:
        """Let the last output leave, then close."""
        if self.http2.close_reason:
            self._shared.warn(self, self.http2.close_reason)
        self._wait_closed(transport, transport.get_write_buffer_size())
        try:
            if transport.can_write_eof():
                transport.resume_reading()  # to see the client's end, and to discard its input
                transport.write_eof()
                return
        except OSError:  # the client has reset the connection, which the loop reports later
            pass
        transport.close()

    def _wait_closed(self, transport: asyncio.Transport, unread: int) -> None:
        """Abort after `LINGER_S` without the client reading any of the `unread` bytes."""

        def check() -> None:
            left = transport.get_write_buffer_size()
            if left < unread:
                self._wait_closed(transport, left)
            else:
                transport.abort()

        self._linger = self._loop.call_later(LINGER_S, check)

    def check_ages(self, now_s: float) -> None:
        """Close the connection if it is idle, stalled or dead. `now_s`: the loop's time."""
        if not self.is_open:
            return
        limits = self.limits
        if self._is_stalled(now_s):
            self.drop(f"read nothing for {limits.stalled_timeout_s:g} s")
        elif self._is_partial and now_s - self._partial_since_s > limits.stalled_timeout_s:
            self.drop(f"a frame is incomplete after {limits.stalled_timeout_s:g} s")
        elif not self.http2.streams:
            begun = self.calls.begun
            if self._idle_since_s is None or begun != self._calls_when_idle or self.unread_now():
                self._idle_since_s, self._calls_when_idle = now_s, begun
            elif now_s - self._idle_since_s > limits.idle_timeout_s:
                self.drain()
        elif self._ping_sent_at_s is not None:
            if now_s - self._ping_sent_at_s > limits.ping_timeout_s:
                self.drop(f"no answer to a ping for {limits.ping_timeout_s:g} s")
        elif now_s - self.read_at_s > limits.ping_interval_s and not self.outgoing.is_paused:
            self._ping_sent_at_s = now_s
            self.http2.ping()
            self._flush()

    def _is_stalled(self, now_s: float) -> bool:
        """Return whether the client has read none of its output for too long."""
        if not self.outgoing.is_paused or self._transport is None:
            return False
        unread = self._transport.get_write_buffer_size()
        if unread < self._paused_bytes:
            self._paused_bytes, self._paused_at_s = unread, now_s
        return now_s - self._paused_at_s > self.limits.stalled_timeout_s

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if self._is_lost:
            stream.abort()
            return
        self._transport = stream
        stream.set_write_buffer_limits(high=self.limits.output_pause_bytes)
        self.remote_address = self.forwarded_for or address_of(stream.get_extra_info("peername"))
        self.local_address = address_of(stream.get_extra_info("sockname"))
        self.is_tls = stream.get_extra_info("sslcontext") is not None
        self._shared.on_opened(self)
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's signature
        return self._shared.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        http2 = self.http2
        if http2.is_closed:
            return
        self.read_at_s = self._loop.time()
        self._ping_sent_at_s = None
        self._receive(bytes(self._shared.read_buffer[:nbytes]), self.read_at_s)
        if nbytes == READ_BYTES:  # uvloop would read on in this iteration
            self._yield()

    def _receive(self, data: bytes, now_s: float) -> None:
        http2 = self.http2
        self.is_flush_due = True  # this turn writes at its end
        self.turn = object()
        http2.receive(data, self._shared.turns.share(self.id, now_s))
        held = http2.held_bytes
        if held or self._is_partial:
            self._hold(held)
        self._flush()
        if http2.has_more:
            self._yield()

    def _yield(self) -> None:
        """Handle what has been received, and read on, after other connections."""
        transport = self._transport
        if self._is_yielding or self.http2.is_closed or transport is None or transport.is_closing():
            return
        self._is_yielding = True
        transport.pause_reading()
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_yielding = False
        if self.http2.has_more:
            self._receive(b"", self._loop.time())
        transport = self._transport
        if self._is_yielding or transport is None or transport.is_closing():
            return
        if not self.outgoing.is_paused:
            transport.resume_reading()

    def _hold(self, held: int) -> None:
        """Count the bytes of an incomplete frame or header block, or of frames to be handled."""
        partials = self._shared.partials
        if not held or self.http2.is_held_new:
            partials.release(self)
        if held:
            if not self._is_partial or self.http2.is_held_new:
                self._partial_since_s = self.read_at_s
            partials.hold(self, held)
        self._is_partial = held > 0

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self.outgoing.is_paused = True
        if self._transport is not None:
            self._paused_at_s = self._loop.time()
            self._paused_bytes = self._transport.get_write_buffer_size()
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.outgoing.is_paused = False
        if self._transport is not None:
            if not self._is_yielding:
                self._transport.resume_reading()
            self.flush_soon()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the loop's
        if self._is_lost:
            return
        self._is_lost = True
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
        self._shared.partials.release(self)
        self._shared.unread.forget(self)
        self.http2.close()
        self.http2.release()
        self.calls = cast(Any, None)  # they refer to this connection; see `release`
        self.outgoing.take()
        self._shared.on_closed(self)
        for on_closed in self.on_closed:
            try:
                on_closed(self)
            except Exception:
                log.exception("connection.callback_failed peer=%s", self.remote_address)
        self.on_closed.clear()
