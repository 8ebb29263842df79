"""A connection: frames in and out, requests in both directions.

A read is handled in one pass: all complete frames in order, then one write of what their handlers
sent. Output sent outside a pass is written once, at the end of the loop iteration.

    state      reads  sends  ends when
    open       yes    yes    the peer closes, the network fails, `close` or `abort` is called
    closing    no     no     output queued before `close` has left, or after `drain_timeout_ms`
    closed     no     no     -

Pending requests fail when the state leaves `open`; `on_closed` is called once, in state `closed`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from kourou.errors import ConnectionLostError, ProtocolError, RequestTimeoutError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.frame import decode_frame, encode_frame, frame_size
from kourou.remoting.frame_buffer import FrameBuffer, PartialFrames
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.log_rate import LogRate
from kourou.remoting.network import NO_ADDRESS, Address, address_of, format_address
from kourou.remoting.output import CLIENT_WRITE_BYTES, COUNTED_BYTES, Output, UnreadOutput
from kourou.remoting.pending import PendingRequest, PendingRequests
from kourou.remoting.unanswered import Unanswered, UnansweredBytes

log = logging.getLogger(__name__)

FastPath = Callable[["Connection", bytearray, int, int], int]
"""Fast path: called with the connection, a buffer, and the start and end of its unhandled bytes.
Serves the leading complete frames that it recognizes and returns the position where it stopped;
the frames from there on take the general path. It may keep copies of frames until the loop
iteration ends: see `before_next` and `replay_frames`."""

PASS_S: Final = 0.02
"""Seconds after which a server's pass yields to other connections: the remaining frames of the
read are handled in later loop iterations. A single frame is never split."""

SILENCE_S: Final = 1.0
"""Silence of the peer, while a request waits, after which a client gives up the connection. The
timeout of a request may be shorter: others on the connection are not lost with it."""

_BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"


class Connection(asyncio.BufferedProtocol):
    """Either side of a connection. Created by `Connections.create` only.

    Attributes:
        remote_address: the peer's address; behind a trusted load balancer, its client's address.
        local_address: the local address that the peer is connected to.
        forwarded_for: client address from the load balancer's preamble; set before the connection
            begins.
        on_closed: called in order, once, with this connection when it has closed.
        on_resumed: called once with this connection when `is_paused` ends, then reset to None; also
            reset when the connection leaves the state `open`.
        limits: the limits of this connection.
        fast_path: tried on frames before the general path; None: no fast path.
        before_next: set by a fast path that keeps frames; called before anything else from the peer
            is handled. Reset when this side closes the connection: the kept frames then count as
            never read.
        last_received_s: time of the last bytes from the peer, in seconds of the loop's clock.
        pending: our requests without a response yet.
        unanswered: the peer's unanswered requests.
        unread_bytes: see `Sender`.
    """

    __slots__ = (  # smaller and faster: the hot paths read many of them
        "__weakref__", "_abort_timer", "_close_reason", "_dispatch", "_frames", "_header_bytes_max",
        "_is_accepted", "_is_flush_due", "_is_lost", "_is_yielding", "_last_active_s", "_loop",
        "_on_connected", "_output", "_partial_since_s", "_silent_since_s", "_timer", "_transport",
        "_unread", "_warnings", "_write_bytes", "before_next", "fast_path", "forwarded_for",
        "last_received_s", "limits", "local_address", "on_closed", "on_resumed", "pending",
        "remote_address", "unanswered", "unread_bytes",
    )  # fmt: skip

    def __init__(
        self,
        dispatch: Callable[[Request], None],
        limits: ConnectionLimits,
        partials: PartialFrames,
        unanswered: UnansweredBytes,
        unread: UnreadOutput,
        warnings: LogRate,
        on_connected: Callable[[Connection], None],
        *,
        is_accepted: bool,
        timer: Callable[[], float],
        fast_path: FastPath | None = None,
    ) -> None:
        self.remote_address = self.local_address = NO_ADDRESS
        self.forwarded_for: Address | None = None
        self.on_closed: list[Callable[[Connection], None]] = []
        self.on_resumed: Callable[[Connection], None] | None = None
        self.fast_path = fast_path
        self.before_next: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._dispatch = dispatch
        self.limits = limits
        self._warnings = warnings
        self._on_connected = on_connected
        self._is_accepted = is_accepted
        self._timer = timer
        self._is_yielding = False
        self._transport: asyncio.Transport | None = None
        self._close_reason: str | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._is_lost = False
        self._frames = FrameBuffer(partials)
        self._partial_since_s: float | None = None
        self._last_active_s = self.last_received_s = self._loop.time()
        self._silent_since_s = -1.0
        self._output = Output()
        self._unread = unread
        self.unread_bytes = 0
        pause_bytes = limits.output_pause_bytes
        self._write_bytes = pause_bytes if is_accepted else min(pause_bytes, CLIENT_WRITE_BYTES)
        # Responses of brokers may have longer headers: they name each message of a batch.
        self._header_bytes_max = limits.header_bytes_max if is_accepted else limits.frame_bytes_max
        self._is_flush_due = False
        self.pending = PendingRequests(limits.requests_waiting_max, NO_ADDRESS)
        self.unanswered = Unanswered(limits, unanswered)

    def __repr__(self) -> str:
        state = self._close_reason or "open"
        return f"<Connection {format_address(self.remote_address)} {state}>"

    @property
    def is_open(self) -> bool:
        """Whether the connection is made and neither closing nor closed."""
        return self._close_reason is None and self._transport is not None

    # Sending

    def send(self, command: RemotingCommand) -> None:
        """Queue a frame, to be written with all others of this loop iteration. Ignored if closed.

        Raises:
            FrameTooLargeError: the command is larger than peers accept; nothing is queued.
            MalformedHeaderError: a text of it is not valid Unicode; nothing is queued.
        """
        self.send_frames(encode_frame(command))

    def send_frames(self, data: bytes) -> None:
        """Queue encoded frames. Ignored if closed."""
        if not self.is_open:
            return
        self._output.put(data)
        if self._output.size_bytes >= self._write_bytes:
            self._write_output()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def send_now(self, frames: bytes) -> None:
        """Write encoded frames immediately, or queue them behind output that is already queued.

        For callers that send nothing else in this loop iteration. Ignored if closed.
        """
        if self._is_flush_due or self._output.size_bytes or self._transport is None:
            self.send_frames(frames)
        elif self._close_reason is None:
            self._write(frames)

    @property
    def is_paused(self) -> bool:
        """Whether the peer has so much unread that output which can wait should wait."""
        return self._output.is_paused

    def unread_now(self) -> int:
        """See `Sender`."""
        if self._transport is None or not self.is_open:
            return 0  # closing: released after `drain_timeout_ms` at the latest
        return self._transport.get_write_buffer_size()

    # Requests to the peer

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return the response, whatever its code.

        Sets the opaque of `command`. Waits before sending while output is paused. Cancelling leaves
        the request unsent or sent, never half; a late response is dropped.

        Raises:
            RequestTimeoutError: no response within `timeout_s`; the request may have been served.
            ConnectionLostError: closed before the response arrived; it may have been served.
            TooManyRequestsError: `requests_waiting_max` requests are pending already; not sent.
            FrameTooLargeError, MalformedHeaderError: as `send`; not sent.
        """
        ends_at_s = self._loop.time() + timeout_s
        await self._wait_writable(timeout_s)
        answer = self.pending.add(command.code, timeout_s, ends_at_s)
        opaque = command.opaque = answer.opaque
        try:
            self.send(command)
            return await answer
        finally:
            self.pending.discard(opaque)
            del answer  # breaks a cycle: the traceback of its error refers to this frame

    def register_pending(self, pending: PendingRequest[Any], ends_at_s: float) -> bool:
        """Register `pending` for a request that the caller sends next, with `pending.opaque`.

        Return False, and change nothing, if the request cannot be sent now: the connection is not
        open, output is paused, or too many requests are pending.
        """
        if self._close_reason is not None or self._transport is None or self._output.is_paused:
            return False
        return self.pending.put(pending, ends_at_s)

    async def oneway(self, command: RemotingCommand, timeout_s: float) -> None:
        """Send a oneway request; return when it is queued, not when it has arrived.

        Raises:
            RequestTimeoutError: the peer did not read earlier output within `timeout_s`; not sent.
            ConnectionLostError: closed; not sent.
            FrameTooLargeError, MalformedHeaderError: as `send`; not sent.
        """
        await self._wait_writable(timeout_s)
        command.opaque = self.pending.next_opaque()
        self.send(command)

    async def _wait_writable(self, timeout_s: float) -> None:
        """Wait until output is not paused, and check that the connection is open."""
        try:
            await self._output.wait_resumed(timeout_s)
        except TimeoutError:
            peer = format_address(self.remote_address)
            text = f"{peer} did not read for {timeout_s:g} s; the request was not sent"
            raise RequestTimeoutError(text) from None
        if not self.is_open:
            reason = self._close_reason or "not connected"
            raise ConnectionLostError(f"{format_address(self.remote_address)}: {reason}")

    # Ending

    def close(self, reason: str) -> None:
        """Stop reading and sending; queued output may leave within `drain_timeout_ms`."""
        if not self.is_open:
            return
        self._write_output()
        self._begin_closing(reason)
        if self._transport is not None:
            self._transport.close()
            delay_s = self.limits.drain_timeout_ms / 1000
            self._abort_timer = self._loop.call_later(delay_s, self._transport.abort)

    def end_requests(self, reason: str) -> None:
        """Send nothing more; receive the responses that the peer has written, then close.

        A transport without half-closed connections (TLS) is closed at once.
        """
        transport = self._transport
        if transport is None or not self.is_open or not transport.can_write_eof():
            self.close(reason)
            return
        self._write_output()
        transport.write_eof()

    def abort(self, reason: str) -> None:
        """Close immediately and discard queued output. Also cuts short a `close` in progress."""
        self._begin_closing(reason)
        if self._transport is not None:
            self._transport.abort()

    def abort_if_silent(self, since_s: float) -> None:
        """Abort if requests have waited for `SILENCE_S` while nothing at all was received.

        Called when a request has timed out; `since_s`: when it was sent, by the loop's clock.
        """
        if self.last_received_s > since_s:
            return
        if self._silent_since_s < self.last_received_s:
            self._silent_since_s = since_s
        if self._loop.time() - self._silent_since_s >= SILENCE_S:
            self.abort("silent since a request was sent")

    def drop(self, reason: str) -> None:
        """Abort because of the peer's behaviour, and log the reason."""
        if self.is_open:
            self._warn(reason)
            self.abort(reason)

    def check_ages(self, now_s: float) -> None:
        """Close if idle or if a frame takes too long. `now_s`: the loop's clock."""
        if not self.is_open:
            return
        idle_ms = (now_s - self._last_active_s) * 1000
        if idle_ms > self.limits.idle_timeout_ms:
            self.close(f"idle for {self.limits.idle_timeout_ms} ms")
        elif self._partial_since_s is not None and not self._output.is_paused:
            age_ms = (now_s - self._partial_since_s) * 1000
            if age_ms > self.limits.frame_timeout_ms:
                self.drop(
                    f"frame incomplete after {self.limits.frame_timeout_ms} ms, "
                    f"{self._frames.held_bytes} bytes received"
                )

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if self._is_lost:
            stream.abort()
            return
        self._transport = stream
        self._transport.set_write_buffer_limits(high=self.limits.output_pause_bytes)
        self.remote_address = self.forwarded_for or address_of(transport.get_extra_info("peername"))
        self.pending.peer = self.remote_address
        self.local_address = address_of(transport.get_extra_info("sockname"))
        self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's signature
        if self.before_next is not None:
            self.before_next()
        frames = self._frames
        return frames.shared_view if frames.is_empty else frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self._close_reason is not None or self._transport is None:
            return
        now_s = self._last_active_s = self.last_received_s = self._loop.time()
        frames = self._frames
        at, is_declined = 0, False
        if self.fast_path is not None and frames.is_empty and not self._output.is_paused:
            # Most reads of a server contain only frames that the fast path serves; returning here
            # saves six calls.
            self._is_flush_due = True  # this pass writes at its end
            at = self.fast_path(self, frames.shared, 0, nbytes)
            if at == nbytes:
                self._is_flush_due = False
                if self._output.size_bytes:
                    self._write_output()
                return
            is_declined = at == 0
        buffer, end = frames.received(nbytes)
        self._handle_read(buffer, at, end, now_s, is_declined=is_declined)

    def replay_frames(self, frames: bytes) -> None:
        """Handle frames that a fast path kept and does not serve, outside of a read."""
        if self.is_open:
            self._frames.put_back(frames, self)
            if not self._must_pause():
                self._handle_held()

    def eof_received(self) -> None:
        if self.before_next is not None:
            self.before_next()
        self.close("closed by the peer")

    def pause_writing(self) -> None:
        self._output.pause()
        if self._is_accepted and self._transport is not None:
            # Only on servers: if both sides stopped reading, both would wait forever.
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._output.resume()
        self._last_active_s = self._loop.time()
        if self._is_accepted:
            # Not immediately: another connection may be using the shared buffer in its pass.
            self._loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        """Handle the frames held while paused, then resume reading."""
        if self._must_pause() or not self.is_open or self._transport is None:
            return
        if self.on_resumed is not None:
            resumed, self.on_resumed = self.on_resumed, None
            resumed(self)
        if self._frames.held_bytes:
            self._handle_held()
        if not self._must_pause() and self.is_open:
            self._transport.resume_reading()

    def _yield(self) -> None:
        """Let other connections run before the rest of the read is handled."""
        assert self._transport is not None, "a pass is in progress"
        self._is_yielding = True
        self._transport.pause_reading()
        self._loop.call_soon(self._resume_pass)

    def _resume_pass(self) -> None:
        self._is_yielding = False
        self._resume_reading()

    def _handle_held(self) -> None:
        """Handle the held bytes, without a new read."""
        # The time spent paused is not the peer's fault, so the frame's age starts now.
        now_s = self._partial_since_s = self._loop.time()
        self._frames.space()
        buffer, end = self._frames.received(0)
        try:
            self._handle_read(buffer, 0, end, now_s)
        except BaseException:
            self.abort("internal error")  # as the loop does for an error in `buffer_updated`
            raise

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_lost:
            return  # see `ends_if_cancelled`
        self._is_lost = True
        if self.before_next is not None:
            self.before_next()
        self._begin_closing(f"lost: {exc}" if exc else "closed by the peer")
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._transport = None
        for callback in self.on_closed:
            try:
                callback(self)
            except Exception:
                log.exception("connection.callback_failed peer=%s", self.remote_address)

    # Receiving

    def _handle_read(
        self, buffer: bytearray, start: int, end: int, now_s: float, *, is_declined: bool = False
    ) -> None:
        """Handle the complete frames between `start` and `end` in one pass.

        `is_declined`: the fast path declined the first frame, and is not tried on it again.
        """
        self._is_flush_due = True  # this pass writes at its end
        consumed = start
        try:
            consumed = self._handle_frames(buffer, start, end, is_declined=is_declined)
        except ProtocolError as error:
            self._warn(str(error))
            self.close(str(error))
        self._write_output()
        self._is_flush_due = False
        if not self.is_open:
            return
        if consumed == end:
            self._partial_since_s = None
        elif consumed or self._partial_since_s is None:
            self._partial_since_s = now_s
        self._frames.hold(consumed, end, self)

    def _handle_frames(self, buffer: bytearray, start: int, end: int, *, is_declined: bool) -> int:
        """Handle complete frames from `start` on; return the position of the first unhandled byte.

        Stops early when the connection closes, when a server's output is paused, or after `PASS_S`.
        The remaining frames are held, and handled when the peer has read or in a later loop
        iteration.
        """
        at = start
        ends_at_s = self._timer() + PASS_S
        while end - at >= 4 and self.is_open and not self._must_pause():
            if is_declined:
                is_declined = False
            elif self.fast_path is not None:
                began_at, at = at, self.fast_path(self, buffer, at, end)
                if at != began_at:
                    continue  # the next frame may be for another fast path
            size = frame_size(buffer, at, limit=self.limits.frame_bytes_max)
            if at + 4 + size > end:
                break
            data = memoryview(buffer)[at + 4 : at + 4 + size]
            command = decode_frame(data, header_bytes_max=self._header_bytes_max)
            at += 4 + size
            if command.is_response:
                self.pending.complete(command)
            else:
                self._on_request(command, size)
                if self._is_accepted and at < end and self._timer() > ends_at_s and self.is_open:
                    self._yield()
        return at

    def _must_pause(self) -> bool:
        return self._is_accepted and (self._output.is_paused or self._is_yielding)

    def _on_request(self, command: RemotingCommand, size: int) -> None:
        if self.unanswered.add(size):
            self._dispatch(Request(command, self, size))
        elif not command.is_oneway:
            self.send(response(command, ResponseCode.SYSTEM_BUSY, _BUSY))

    # Helpers

    def _flush(self) -> None:
        self._is_flush_due = False
        self._write_output()

    def _write_output(self) -> None:
        """Pass queued output to the transport."""
        if self._transport is not None and self._output.size_bytes:
            self._write(self._output.take())

    def _write(self, frames: bytes) -> None:
        """Write, or drop the connection if the peer has too much unread."""
        assert self._transport is not None, "the connection is open"
        waiting = self._transport.get_write_buffer_size() + len(frames)
        if waiting > self.limits.output_bytes_max:
            self.drop(f"{waiting} bytes of output unread, limit {self.limits.output_bytes_max}")
            return
        self._transport.write(frames)
        if not self._output.is_paused:
            self._last_active_s = self._loop.time()
        if waiting > COUNTED_BYTES and self._transport is not None:
            unread = self._transport.get_write_buffer_size()
            if (unread or self.unread_bytes) and self._close_reason is None:  # else it stays 0
                self._unread.count(self, unread)

    def _begin_closing(self, reason: str) -> None:
        """Leave the state `open`: fail pending requests, drop buffers. Keeps the first reason."""
        if self._close_reason is not None:
            return
        self._close_reason = reason
        log.debug("connection.closed peer=%s reason=%s", self.remote_address, reason)
        self.before_next = None
        self.on_resumed = None
        self._is_yielding = False
        self._unread.forget(self)
        self._output.clear()
        self._output.resume()  # so that waiting senders see the close
        self._frames.clear(self)
        self.unanswered.close()
        self._partial_since_s = None
        self.pending.fail_all(reason)

    def _warn(self, reason: str) -> None:
        suppressed = self._warnings.take(self._loop.time())
        if suppressed is not None:
            peer = format_address(self.remote_address)
            log.warning(
                "connection.dropped peer=%s reason=%r suppressed=%d", peer, reason, suppressed
            )


class Request:
    """A request from a peer, and the connection to reply on."""

    __slots__ = ("_is_answered", "_size", "command", "connection")

    def __init__(self, command: RemotingCommand, connection: Connection, size: int) -> None:
        self.command = command
        self.connection = connection
        self._size = size  # bytes of its frame
        self._is_answered = False

    @property
    def is_oneway(self) -> bool:
        """Whether the peer expects no response."""
        return self.command.is_oneway

    @property
    def remote_address(self) -> Address:
        """The peer's address."""
        return self.connection.remote_address

    def reply(self, answer: RemotingCommand) -> None:
        """Send the response. Ignored for a oneway request or if the connection has closed.

        A second call is ignored and logged. A response that cannot be encoded is replaced by an
        error.
        """
        if self._is_answered:
            log.error("request.answered_twice code=%d", self.command.code)
            return
        self._is_answered = True
        self.connection.unanswered.remove(self._size)
        if self.is_oneway:
            return
        try:
            self.connection.send(answer)
        except ProtocolError as error:  # too large, or text that is not Unicode
            self.connection.send(response(self.command, ResponseCode.SYSTEM_ERROR, str(error)))
