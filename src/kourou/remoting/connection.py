"""One connection: frames in, frames out, requests in both directions.

A read is handled in one pass: all whole frames in it, in order, and what they send leaves in one
write at its end. What is sent outside a pass leaves in one write at the end of the loop's turn.

    state      reads  sends  ends
    open       yes    yes    peer closes, the network fails, or one of the two below
    closing    no     no     output queued before `close` has left, or `drain_timeout_ms` passed
    closed     no     no     -

Pending requests fail when the state leaves `open`; `on_closed` is called once, when it is `closed`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from kourou.errors import ConnectionLostError, ProtocolError, RequestTimeoutError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.frame import decode_frame, encode_frame, frame_size
from kourou.remoting.frame_buffer import FrameBuffer, PartialFrames
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.log_rate import LogRate
from kourou.remoting.network import Address, format_address
from kourou.remoting.output import Output
from kourou.remoting.pending import PendingRequests
from kourou.remoting.unanswered import Unanswered, UnansweredBytes

log = logging.getLogger(__name__)

_NOWHERE: Final[Address] = ("0.0.0.0", 0)  # noqa: S104 - the peer left before we could ask
_BUSY: Final = "[OVERLOAD]system busy, start flow control for a while"


class Connection(asyncio.BufferedProtocol):
    """Either side of a connection. Made by `Connections.make`, not by hand.

    Attributes:
        remote_address: the peer's; behind a load balancer that is trusted, the one it speaks for.
        local_address: the one the peer reached us by.
        forwarded_for: what a load balancer said; set before the connection begins.
        on_closed: called once with this connection when it has ended, in order.
    """

    def __init__(
        self,
        dispatch: Callable[[Request], None],
        limits: ConnectionLimits,
        partials: PartialFrames,
        unanswered: UnansweredBytes,
        warnings: LogRate,
        on_made: Callable[[Connection], None],
        *,
        is_accepted: bool,
    ) -> None:
        self.remote_address = self.local_address = _NOWHERE
        self.forwarded_for: Address | None = None
        self.on_closed: list[Callable[[Connection], None]] = []
        self._loop = asyncio.get_running_loop()
        self._dispatch = dispatch
        self._limits = limits
        self._warnings = warnings
        self._on_made = on_made
        self._is_accepted = is_accepted
        self._transport: asyncio.Transport | None = None
        self._close_reason: str | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._frames = FrameBuffer(self, partials)
        self._partial_since_s: float | None = None
        self._last_active_s = self._last_received_s = self._loop.time()
        self._output = Output()
        self._is_flush_due = False
        self._pending = PendingRequests(limits.requests_waiting_max)
        self._unanswered = Unanswered(limits, unanswered)

    def __repr__(self) -> str:
        state = self._close_reason or "open"
        return f"<Connection {format_address(self.remote_address)} {state}>"

    @property
    def is_open(self) -> bool:
        """Whether sending still has a meaning."""
        return self._close_reason is None and self._transport is not None

    @property
    def last_received_s(self) -> float:
        """When bytes last came from the peer, in seconds of the loop's clock."""
        return self._last_received_s

    # Sending

    def send(self, command: RemotingCommand) -> None:
        """Queue a frame; it leaves with all others of this turn of the loop. Ignored when closed.

        Raises:
            FrameTooLargeError: the command is larger than peers take; nothing is queued.
            MalformedHeaderError: a text of it is not valid Unicode; nothing is queued.
        """
        self.send_frames(encode_frame(command))

    def send_frames(self, data: bytes) -> None:
        """Queue frames that are encoded already. Ignored when closed."""
        if not self.is_open:
            return
        self._output.put(data)
        if self._output.size_bytes >= self._limits.output_pause_bytes:
            self._write_output()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    async def request(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return the peer's answer, whatever its code.

        Gives `command` an opaque of this connection. While the peer is slow to read, waits before
        sending. Cancelling leaves the request unsent or sent, never half; a late answer is dropped.

        Raises:
            RequestTimeoutError: no answer within `timeout_s`; the request may have been served.
            ConnectionLostError: closed before the answer came; it may have been served.
            TooManyRequestsError: `requests_waiting_max` requests wait already; not sent.
            FrameTooLargeError, MalformedHeaderError: as `send`; not sent.
        """
        ends_at_s = self._loop.time() + timeout_s
        await self._until_writable(timeout_s)
        peer = format_address(self.remote_address)
        answer = self._pending.add(command.code, peer, timeout_s, ends_at_s)
        opaque = command.opaque = self._pending.last_opaque
        try:
            self.send(command)
            return await answer
        finally:
            self._pending.discard(opaque)

    async def oneway(self, command: RemotingCommand, timeout_s: float) -> None:
        """Send a request that is never answered; returns when it is queued, not when it arrived.

        Raises:
            RequestTimeoutError: the peer did not read what came before within `timeout_s`.
            ConnectionLostError: closed; not sent.
            FrameTooLargeError, MalformedHeaderError: as `send`; not sent.
        """
        await self._until_writable(timeout_s)
        command.opaque = self._pending.next_opaque()
        self.send(command)

    # Ending

    def close(self, reason: str) -> None:
        """Take and send no more; what is queued may leave until `drain_timeout_ms` has passed."""
        if not self.is_open:
            return
        self._write_output()
        self._leave_open(reason)
        if self._transport is not None:
            self._transport.close()
            delay_s = self._limits.drain_timeout_ms / 1000
            self._abort_timer = self._loop.call_later(delay_s, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Close at once, queued output lost. Also ends a `close` that is under way."""
        self._leave_open(reason)
        if self._transport is not None:
            self._transport.abort()

    def drop(self, reason: str) -> None:
        """Abort because of what the peer does, and say so in the log."""
        if self.is_open:
            self._warn(reason)
            self.abort(reason)

    def check_ages(self, now_s: float) -> None:
        """Close if nothing happens, or a frame takes too long. `now_s`: the loop's clock."""
        if not self.is_open:
            return
        idle_ms = (now_s - self._last_active_s) * 1000
        if idle_ms > self._limits.idle_timeout_ms:
            self.close(f"idle for {self._limits.idle_timeout_ms} ms")
        elif self._partial_since_s is not None and not self._output.is_paused:
            age_ms = (now_s - self._partial_since_s) * 1000
            if age_ms > self._limits.frame_timeout_ms:
                self.drop(
                    f"frame not whole after {self._limits.frame_timeout_ms} ms, "
                    f"{self._frames.held_bytes} bytes of it came"
                )

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.output_pause_bytes)
        self.remote_address = self.forwarded_for or _address(transport.get_extra_info("peername"))
        self.local_address = _address(transport.get_extra_info("sockname"))
        self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's signature
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_open:
            return
        now_s = self._last_active_s = self._last_received_s = self._loop.time()
        buffer, end = self._frames.received(nbytes)
        self._handle_read(buffer, end, now_s)

    def eof_received(self) -> None:
        self.close("closed by the peer")

    def pause_writing(self) -> None:
        self._output.pause()
        if self._is_accepted and self._transport is not None:
            # Only servers: if both ends stopped reading, both would wait for ever.
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._output.resume()
        self._last_active_s = self._loop.time()
        if self._is_accepted:
            # Not now: another connection may be in its pass, and the shared buffer is its own.
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        """Handle the frames that were kept while the peer did not read, and then read more."""
        if self._must_pause() or not self.is_open or self._transport is None:
            return
        now_s = self._loop.time()
        if self._frames.held_bytes:
            self._partial_since_s = now_s  # the time until now was not the peer's to send in
            self._frames.space()
            buffer, end = self._frames.received(0)
            self._handle_read(buffer, end, now_s)
        if not self._output.is_paused and self.is_open:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_open(f"lost: {exc}" if exc else "closed by the peer")
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._transport = None
        for callback in self.on_closed:
            try:
                callback(self)
            except Exception:
                log.exception("connection.callback_failed peer=%s", self.remote_address)

    # Receiving

    def _handle_read(self, buffer: bytearray, end: int, now_s: float) -> None:
        """Handle the whole frames among the first `end` bytes of `buffer` in one pass."""
        self._is_flush_due = True  # by the end of this pass
        consumed = 0
        try:
            consumed = self._handle_frames(buffer, 0, end)
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
        self._frames.keep(consumed, end)

    def _handle_frames(self, buffer: bytearray, start: int, end: int) -> int:
        """Handle whole frames from `start` on; return where the first that is not begins.

        Stops early when the connection closes, or when a server's output has piled up: the frames
        that remain are kept and handled when the peer has read.

        A path for plain sends that need no decoded command would take the same arguments, be tried
        first in this loop, and return how far it came.
        """
        view = memoryview(buffer)
        at = start
        while end - at >= 4 and self.is_open and not self._must_pause():
            size = frame_size(buffer, at, limit=self._limits.frame_bytes_max)
            if at + 4 + size > end:
                break
            command = decode_frame(view[at + 4 : at + 4 + size])
            at += 4 + size
            if command.is_response:
                self._pending.settle(command)
            else:
                self._on_request(command, size)
        return at

    def _must_pause(self) -> bool:
        return self._is_accepted and self._output.is_paused

    def _on_request(self, command: RemotingCommand, size: int) -> None:
        if self._unanswered.add(size):
            self._dispatch(Request(command, self, size))
        elif not command.is_oneway:
            self.send(response(command, ResponseCode.SYSTEM_BUSY, _BUSY))

    # Small steps of the above

    def _flush(self) -> None:
        self._is_flush_due = False
        self._write_output()

    def _write_output(self) -> None:
        """Hand what is queued to the transport; drop a peer that lets too much gather."""
        if self._transport is None or not self._output.size_bytes:
            return
        waiting = self._transport.get_write_buffer_size() + self._output.size_bytes
        if waiting > self._limits.output_bytes_max:
            self.drop(f"{waiting} bytes wait for it to read, {self._limits.output_bytes_max} may")
            return
        self._transport.write(self._output.take())
        if not self._output.is_paused:
            self._last_active_s = self._loop.time()

    async def _until_writable(self, timeout_s: float) -> None:
        """Return once the peer has read enough, with the connection open."""
        try:
            await self._output.until_resumed(timeout_s)
        except TimeoutError:
            peer = format_address(self.remote_address)
            text = f"{peer} did not read for {timeout_s:g} s; the request was not sent"
            raise RequestTimeoutError(text) from None
        if not self.is_open:
            raise ConnectionLostError(
                f"{format_address(self.remote_address)}: {self._close_reason or 'not connected'}"
            )

    def _leave_open(self, reason: str) -> None:
        """Fail and forget all that needs an open connection; only the first reason counts."""
        if self._close_reason is not None:
            return
        self._close_reason = reason
        log.debug("connection.closed peer=%s reason=%s", self.remote_address, reason)
        self._output.clear()
        self._output.resume()  # those who wait to send are to see that it is over
        self._frames.clear()
        self._unanswered.close()
        self._partial_since_s = None
        text = f"connection to {format_address(self.remote_address)} ended: {reason}"
        self._pending.fail_all(text)

    def _warn(self, reason: str) -> None:
        suppressed = self._warnings.take(self._loop.time())
        if suppressed is not None:
            peer = format_address(self.remote_address)
            log.warning(
                "connection.dropped peer=%s reason=%r suppressed=%d", peer, reason, suppressed
            )


class Request:
    """A request from a peer, and the way back to it."""

    __slots__ = ("_is_answered", "_size", "command", "connection")

    def __init__(self, command: RemotingCommand, connection: Connection, size: int) -> None:
        self.command = command
        self.connection = connection
        self._size = size  # bytes of its frame
        self._is_answered = False

    @property
    def is_oneway(self) -> bool:
        """Whether the peer wants no answer."""
        return self.command.is_oneway

    @property
    def remote_address(self) -> Address:
        """Where the request came from."""
        return self.connection.remote_address

    def reply(self, answer: RemotingCommand) -> None:
        """Send the one answer. Ignored for a oneway request, and when the connection has closed."""
        if self._is_answered:
            log.error("request.answered_twice code=%d", self.command.code)
            return
        self._is_answered = True
        self.connection._unanswered.remove(self._size)  # noqa: SLF001 - two halves of one thing
        if self.is_oneway:
            return
        try:
            self.connection.send(answer)
        except ProtocolError as error:  # too large, or text that is not Unicode
            self.connection.send(response(self.command, ResponseCode.SYSTEM_ERROR, str(error)))


def _address(name: object) -> Address:
    """Return host and port of a socket's name, which is None once the peer has left."""
    return (name[0], name[1]) if isinstance(name, tuple) else _NOWHERE
