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

from kourou.errors import GrpcError
from kourou.http2.calls import Call, CallConnection, Method
from kourou.http2.connection import Http2Connection
from kourou.http2.deadlines import Deadlines
from kourou.http2.grpc_messages import GrpcStatus
from kourou.http2.headers import RequestHead
from kourou.http2.limits import GrpcLimits
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
        methods: by path, such as b"/package.Service/Method".
        limits: those of the server.
        memory: of incomplete requests.
        open_bytes: bytes of the fields of open calls.
        partials: incomplete frames.
        unread: output that clients have not read.
        deadlines: of the open calls.
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
        self.methods = {path.encode(): method for path, method in methods.items()}
        self.limits = limits
        self.memory = RequestMemory(
            limits.incomplete_bytes_max, limits.incomplete_timeout_s, self._loop.time
        )
        self.open_bytes = 0
        self.partials = PartialFrames(limits.partial_bytes_max)
        self.connections: dict[GrpcConnection, None] = {}
        self.unread = UnreadOutput(limits.output_bytes_total_max, lambda: self.connections)
        self.deadlines = Deadlines(self._loop, _end_by_deadline)
        self.turns = Turns()
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.on_opened = on_opened
        self.on_closed = on_closed

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
        forwarded_for: client address from the load balancer's preamble; set before it begins.
        unread_bytes: see `kourou.remoting.output.Sender`.
        open_bytes: bytes of the fields of its open calls.
        is_flush_due: see `CallConnection`.
    """

    def __init__(self, shared: SharedState, number: int) -> None:
        self.id = number
        self._shared = shared
        self.limits = shared.limits
        self.memory = shared.memory
        self._loop = asyncio.get_running_loop()
        self.http2 = Http2Connection(shared.limits.http2, self, self._loop.time)
        self.outgoing = self.http2.outgoing
        self.raise_window = self.http2.raise_window
        self.spend = self.http2.spend
        self.remote_address = self.local_address = NO_ADDRESS
        self.forwarded_for: Address | None = None
        self.is_tls = False
        self.on_closed: list[Callable[[CallConnection], None]] = []
        self.state: Any = None
        self.unread_bytes = self.open_bytes = 0
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
        self._idle_since_s: float | None = None  # set by `check_ages`, reset by each call
        self._ping_sent_at_s: float | None = None

    def has_room(self) -> bool:
        """See `CallConnection`."""
        shared = self._shared
        while shared.open_bytes > self.limits.open_calls_bytes_max:
            largest = max(shared.connections, key=lambda one: one.open_bytes)
            if largest is self:
                return False
            largest.drop(f"{largest.open_bytes} bytes of metadata of open calls, the most of all")
            largest.http2.close()
        return True

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
            if self._idle_since_s is None or self.unread_now():
                self._idle_since_s = now_s
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
        self.outgoing.take()
        self._shared.on_closed(self)
        for on_closed in self.on_closed:
            try:
                on_closed(self)
            except Exception:
                log.exception("connection.callback_failed peer=%s", self.remote_address)
        self.on_closed.clear()

    # Streams

    def create_stream(self, stream_id: int, send_window: int, receive_window: int) -> Call:
        return Call(self, stream_id, send_window, receive_window)

    def on_request(self, stream: Call, head: RequestHead) -> None:
        self._idle_since_s = None
        shared = self._shared
        shared.open_bytes += head.list_bytes
        self.open_bytes += head.list_bytes
        try:
            stream.begin(head, shared.methods.get(head.path))
        except Exception as error:  # noqa: BLE001 - one call's failure must not end others
            self._failed(stream, error)
        if stream.deadline_s is not None and stream.is_active:
            shared.deadlines.add(stream, stream.deadline_s)

    def on_data(self, stream: Call, data: bytes) -> None:
        try:
            stream.receive(data)
        except Exception as error:  # noqa: BLE001 - as in `on_request`
            self._failed(stream, error)

    def on_reset(self, stream: Call) -> None:
        self._forget(stream)
        self._cancel(stream)

    def on_writable(self, stream: Call) -> None:
        if stream.on_writable is not None:
            try:
                stream.on_writable()
            except Exception as error:  # noqa: BLE001 - as in `on_request`
                self._failed(stream, error)

    def on_answered(self, call: Call) -> None:
        """See `CallConnection`."""
        self._forget(call)
        if not self.is_flush_due:
            self.is_flush_due = True
            self._loop.call_soon(self._flush)
        if call.unsent is not None:
            self.count_unread()

    def refuse(self, call: Call, error: GrpcError) -> None:
        """See `CallConnection`."""
        self._cancel(call)
        call.finish(error.status, error.text)

    def on_deadline(self, call: Call) -> None:
        """End a call whose deadline has passed."""
        if call.is_active:
            self._cancel(call)
            call.finish(GrpcStatus.DEADLINE_EXCEEDED, f"not answered within {call.timeout_s:g} s")

    def _forget(self, call: Call) -> None:
        """Release what the server holds for a call that is over."""
        if call.is_forgotten:
            return
        call.is_forgotten = True
        if call.on_message is not None or call.on_writable is not None:
            call.on_message = call.on_end = call.on_writable = None  # they refer to the call
        self._shared.open_bytes -= call.head.list_bytes
        self.open_bytes -= call.head.list_bytes
        if call.is_counted:
            call.forget()
        if call.deadline_s is not None:
            self._shared.deadlines.discard(call, call.deadline_s)
        if self.http2.is_draining and not self.http2.streams:
            self.http2.close()
            self.flush_soon()

    def _failed(self, call: Call, error: Exception) -> None:
        """End a call whose data is refused or whose method has failed."""
        if isinstance(error, GrpcError):
            self.refuse(call, error)
            return
        path = call.head.path.decode("ascii", "replace")
        log.error("call.failed path=%s peer=%s", path, self.remote_address, exc_info=error)
        self.refuse(call, GrpcError(GrpcStatus.INTERNAL, f"{type(error).__name__}: {error}"))

    def _cancel(self, call: Call) -> None:
        try:
            call.cancelled()
        except Exception:
            log.exception("call.cancel_failed peer=%s", self.remote_address)


def _end_by_deadline(call: Call) -> None:
    cast(GrpcConnection, call.connection).on_deadline(call)
