"""Calls of methods: gRPC on the streams of HTTP/2 connections.

A call is an object that the function of its method answers, at once or later, on the event loop. A
unary call costs one call of that function and no task; a timer is shared by all.

    kind            the function is called          then
    unary           with the request                `reply`, or `finish` with an error
    server stream   with the request                `send` any number of times, `finish`
    bidi            when the call begins, with no   `on_message` for each request, `on_end` when the
                    bytes                           client sends no more; `send`, `finish`

A call ends when the function ends it, or with `on_cancel`: the client cancels it or leaves, its
deadline passes, or its data is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol

from kourou.errors import GrpcError
from kourou.http2 import frames
from kourou.http2.frames import HeaderFrame, header_frame
from kourou.http2.grpc_messages import (
    ENCODINGS,
    PREFIX_BYTES,
    WORK_BYTES,
    GrpcStatus,
    MessageReader,
    message_prefix,
    parse_timeout,
    percent_encode,
)
from kourou.http2.headers import RequestHead, encode_response
from kourou.http2.limits import GrpcLimits
from kourou.http2.outgoing import Outgoing
from kourou.http2.request_memory import RequestMemory
from kourou.http2.streams import Stream
from kourou.remoting.network import Address

_CONTENT_TYPE: Final = b"application/grpc"
_HEAD_FIELDS: Final = {"content-type": "application/grpc", "grpc-accept-encoding": "identity,gzip"}
_HEAD: Final = header_frame(encode_response(_HEAD_FIELDS, 200), ends=False)
_OK: Final = header_frame(encode_response({"grpc-status": "0"}), ends=True)
_NOT_GRPC: Final = header_frame(
    encode_response({"content-type": "text/plain; charset=utf-8"}, 415), ends=False
)
_NOT_GRPC_END: Final = header_frame(encode_response({"grpc-status": "13"}), ends=True)
_TEXT_BYTES_MAX: Final = 1024
"""Longest text of a status: encoded it has three times as many, and clients accept 8 KiB."""


class Kind(Enum):
    """Kinds of methods by their requests and responses."""

    UNARY = auto()
    SERVER_STREAM = auto()
    BIDI = auto()


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service.

    Attributes:
        kind: how it takes requests and returns responses.
        handle: called on the event loop with each call, and its request if the kind has one. It
            must not block. A `GrpcError` that it raises ends the call with that status, any other
            error with INTERNAL.
    """

    kind: Kind
    handle: Callable[[Call, bytes], None]


class CallConnection(Protocol):
    """The connection of a call.

    Attributes:
        id: unique among the connections of the server's life.
        remote_address: the client's address, also behind a trusted load balancer.
        local_address: the address that the client is connected to.
        is_tls: whether it uses TLS.
        on_closed: called in order, once, with this connection when it has closed.
        state: for the program that serves the calls.
        read_at_s: the loop's time of the last read.
        turn: another object each time that received frames are handled. Nothing else runs
            meanwhile: what a method has looked up for one call holds for the next one of the turn.
    """

    id: int
    remote_address: Address
    local_address: Address
    is_tls: bool
    on_closed: list[Callable[[CallConnection], None]]
    state: Any
    read_at_s: float
    turn: object

    @property
    def is_open(self) -> bool:
        """Whether calls can be answered."""

    @property
    def outgoing(self) -> Outgoing:
        """The sending half."""

    @property
    def limits(self) -> GrpcLimits:
        """The limits of the server."""

    @property
    def memory(self) -> RequestMemory:
        """The memory of the server's incomplete requests."""

    def raise_window(self, call: Call, size: int) -> None:
        """Let the client send up to `size` bytes of a call."""

    def spend(self, work: int, charged: int) -> None:
        """Count the frame that is being handled as more; see `Http2Connection.spend`."""

    def flush_soon(self) -> None:
        """Write what is queued at the end of this iteration of the event loop."""

    @property
    def is_flush_due(self) -> bool:
        """Whether output is written at the end of this iteration."""

    def write_now(self) -> None:
        """Write what is queued, before the flush that is due."""

    def count_unread(self) -> None:
        """Count output that waits; drop the connection if there is too much."""


class CallsOfConnection(Protocol):
    """The open calls of a connection; see `kourou.http2.open_calls.OpenCalls`."""

    def has_room(self) -> bool:
        """Return whether the fields of the newest call fit into the memory of all open calls.

        If they do not, connections with more open calls than this one are closed for them.
        """

    def on_answered(self, call: Call) -> None:
        """Handle that a call has ended by an answer."""

    def refuse(self, call: Call, error: GrpcError) -> None:
        """End a call because of its data."""

    def end_by_deadline(self, call: Call) -> None:
        """End a call whose deadline has passed."""


class Call(Stream):
    """One call of a method. What is sent after its end is ignored.

    Attributes:
        connection: the connection that it came by.
        calls: the open calls of the connection.
        method: None if the path is unknown.
        head: the fields of the request.
        deadline_s: the loop's time at which it must have been answered; None: no limit.
        timeout_s: the seconds that it had when it arrived; None: no limit.
        on_cancel: called once if it ends without an answer of the method.
        on_message: of a bidi call: called with each request.
        on_end: of a bidi call: called when the client sends no more.
        on_writable: called when no message of the call waits any more, after `writable` was False.
        is_counted: its incomplete request is known to the memory of requests.
        is_forgotten: the server has released what it holds for the call.
    """

    head: RequestHead

    def __init__(
        self,
        connection: CallConnection,
        calls: CallsOfConnection,
        stream_id: int,
        send_window: int,
        receive_window: int,
    ) -> None:
        super().__init__(stream_id, send_window, receive_window)
        self.connection = connection
        self.calls = calls
        self.method: Method | None = None
        self.deadline_s: float | None = None
        self.timeout_s: float | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_message: Callable[[bytes], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.is_counted = False
        self.is_forgotten = False
        self._metadata: dict[str, str] | None = None
        self._has_head = False
        self._reader: MessageReader | None = None
        self._request: bytes | None = None
        self._is_reserved = False
        self._is_waiting = False

    @property
    def metadata(self) -> Mapping[str, str]:
        """The fields of the request by name, without those whose names begin with a colon.

        Values of a repeated name are joined by commas; those of names that end with `-bin` are
        in base64.
        """
        if self._metadata is None:
            found: dict[str, str] = {}
            for name_bytes, value_bytes, _, _ in self.head.fields:
                name = name_bytes.decode("ascii", "replace")
                value = value_bytes.decode("utf-8", "replace")
                if name[0] != ":":
                    found[name] = f"{found[name]},{value}" if name in found else value
            self._metadata = found
        return self._metadata

    @property
    def is_active(self) -> bool:
        """Whether it can still be answered."""
        return not (self.is_closed or self.is_local_ended)

    @property
    def writable(self) -> bool:
        """Whether no message waits for the client; if False, wait for `on_writable`."""
        return self.unsent is None

    # Answers

    def reply(self, message: bytes) -> None:
        """Send the only response, and status OK."""
        outgoing = self.connection.outgoing
        prefix = len(message).to_bytes(PREFIX_BYTES, "big")  # `message_prefix` without its call
        if self._has_head:
            outgoing.put_data(self, prefix + message)
            outgoing.put_headers(self, _OK, ends=True)
        else:
            self._has_head = True
            outgoing.put_reply(self, _HEAD, prefix, message, _OK)
        self.on_cancel = None
        self.calls.on_answered(self)

    def reply_all(self, messages: Sequence[bytes]) -> bool:
        """Send all responses of a stream, and status OK, if they need not wait for the client.

        Return False, without any effect, if they do, or if the call is over. The first answer of a
        connection in an iteration of the event loop is written at once: it may have been awaited.
        """
        framed = b"".join([message_prefix(len(one)) + one for one in messages])
        outgoing = self.connection.outgoing
        if self._has_head or not self.is_active or not outgoing.takes_at_once(self, len(framed)):
            return False
        self._has_head = True
        is_first = not self.connection.is_flush_due
        outgoing.put_reply(self, _HEAD, b"", framed, _OK)
        self._ended()
        if is_first:
            self.connection.write_now()
        return True

    def spend(self, work: int) -> None:
        """Count the frame that is being handled as that of `work` more; see `kourou.http2.turns`.

        For functions of methods that cost much more than a frame, when they are called.
        """
        self.connection.spend(work, 0)

    def send_headers(self) -> None:
        """Send the fields of the response before its first message."""
        if not self._has_head:
            self._has_head = True
            self.connection.outgoing.put_headers(self, _HEAD)
            self.connection.flush_soon()

    def send(self, message: bytes) -> None:
        """Send one response; it waits in memory while the client does not read: see `writable`."""
        if not self.connection.is_open:
            return
        self.send_headers()
        self.connection.outgoing.put_data(self, message_prefix(len(message)) + message)
        self.connection.flush_soon()
        if self.unsent is not None:
            self.connection.count_unread()

    def finish(self, status: int = GrpcStatus.OK, text: str = "") -> None:
        """End the call with a status and its text."""
        if not self.is_active:
            return
        outgoing = self.connection.outgoing
        if self._has_head and status == GrpcStatus.OK and not text:
            outgoing.put_headers(self, _OK, ends=True)
        else:
            outgoing.put_headers(self, self._status_frame(status, text), ends=True)
        self._has_head = True
        self._ended()

    def _status_frame(self, status: int, text: str) -> HeaderFrame:
        fields = {"grpc-status": str(int(status))}
        if text:
            cut = text.encode("utf-8", "replace")[:_TEXT_BYTES_MAX]
            fields["grpc-message"] = percent_encode(cut.decode("utf-8", "ignore"))
        if self._has_head:
            return header_frame(encode_response(fields), ends=True)
        return header_frame(encode_response({**_HEAD_FIELDS, **fields}, 200), ends=True)

    def _ended(self) -> None:
        self.on_cancel = None
        self.calls.on_answered(self)

    def _answer_as_http(self) -> None:
        """Answer a request that is not gRPC."""
        outgoing, head = self.connection.outgoing, self.head
        outgoing.put_headers(self, _NOT_GRPC)
        if head.method != b"HEAD":
            given = f"{head.method.decode('ascii', 'replace')} with content-type "
            given += repr(head.content_type.decode("ascii", "replace"))
            outgoing.put_data(self, f"This port serves gRPC: {given} is not a call\n".encode())
        outgoing.put_headers(self, _NOT_GRPC_END, ends=True)
        self._ended()

    # Called by the connection

    def begin(self, head: RequestHead, method: Method | None) -> None:
        """Check the fields of the request, and start a bidi method.

        Raises:
            GrpcError: the call is refused.
        """
        self.head = head
        self._check_memory(head)
        if not head.content_type.startswith(_CONTENT_TYPE) or head.method != b"POST":
            return  # answered as HTTP at its end
        if method is None:
            path = head.path.decode("ascii", "replace")
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, f"Method not found: {path.lstrip('/')}")
        self.method = method
        if head.encoding not in ENCODINGS:
            raise GrpcError(
                GrpcStatus.UNIMPLEMENTED,
                f"grpc-encoding {head.encoding.decode('ascii', 'replace')!r} is not supported: "
                "use identity or gzip",
            )
        if head.timeout:
            timeout_s = parse_timeout(head.timeout)
            if timeout_s is None:
                text = head.timeout.decode("ascii", "replace")
                raise GrpcError(GrpcStatus.INTERNAL, f"grpc-timeout {text!r} is malformed")
            self.timeout_s = timeout_s
            self.deadline_s = self.connection.read_at_s + timeout_s
        if method.kind is Kind.BIDI:
            method.handle(self, b"")

    def _check_memory(self, head: RequestHead) -> None:
        limits = self.connection.limits
        limit = limits.http2.header_list_bytes_max
        if head.list_bytes > limit:
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"metadata of {head.list_bytes} bytes exceeds the limit of {limit} bytes",
            )
        if not self.calls.has_room():
            raise GrpcError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"metadata of all open calls exceeds {limits.open_calls_bytes_max} bytes: "
                "open fewer at once",
            )

    def receive(self, data: bytes) -> None:
        """Handle data of the request.

        Raises:
            GrpcError: the request is refused.
        """
        method = self.method
        if method is None:
            if self.is_remote_ended:
                self._answer_as_http()
            else:
                self._open_window()
            return
        size = len(data) - PREFIX_BYTES
        if (  # mostly, one frame has one message
            self._reader is None
            and self._request is None
            and size >= 0
            and int.from_bytes(data[:PREFIX_BYTES], "big") == size  # and the flag is 0
            and size <= self.connection.limits.message_bytes_max
        ):
            self._on_message(data[PREFIX_BYTES:])
            self._after_data()
            return
        if data:
            self._read(data)
        self._after_data()

    def _read(self, data: bytes) -> None:
        """Handle data that is not one whole message."""
        reader = self._reader
        if reader is None:
            limits = self.connection.limits
            reader = self._reader = MessageReader(
                self.head.encoding, limits.message_bytes_max, limits.inflated_bytes_max
            )
        inflated, unusual = reader.inflated_bytes, reader.unusual_bytes
        try:
            for message in reader.feed(data):
                self._on_message(message)
                if not self.is_active:
                    return
        finally:
            if reader.inflated_bytes > inflated:
                self.connection.spend(
                    (reader.inflated_bytes - inflated) // WORK_BYTES,
                    (reader.unusual_bytes - unusual) // WORK_BYTES,
                )
        self._account(reader)

    def _on_message(self, message: bytes) -> None:
        assert self.method is not None, "the call has begun"
        if self.method.kind is Kind.BIDI:
            if self.on_message is not None:
                self.on_message(message)
        elif self._request is None:
            self._request = message
        else:
            raise GrpcError(GrpcStatus.INTERNAL, "more than one request in a unary call")

    def _after_data(self) -> None:
        """Call the method if the request is whole; else let the client send more."""
        if not self.is_remote_ended:
            if not self._is_waiting and self.is_active:
                self._open_window()
            return
        if self._reader is not None and self._reader.held_bytes:
            raise GrpcError(GrpcStatus.INTERNAL, "the last request is incomplete")
        if not self.is_active:
            return
        assert self.method is not None, "the call has begun"
        if self.method.kind is Kind.BIDI:
            if self.on_end is not None:
                self.on_end()
        elif self._request is None:
            raise GrpcError(GrpcStatus.INTERNAL, "the call ended without a request")
        else:
            request, self._request = self._request, b""  # a held call does not hold its request
            self.method.handle(self, request)

    # Memory of an incomplete request

    def _account(self, reader: MessageReader) -> None:
        """Count the incomplete message, or reserve its memory if it is large."""
        memory = self.connection.memory
        if self._is_reserved and reader.held_bytes and reader.announced_bytes:
            return
        if not reader.held_bytes:
            if self.is_counted:
                self.forget()
            return
        if self._is_reserved:  # a bidi call has begun its next message
            self.forget()
        self.is_counted = True
        window = self.connection.limits.http2.stream_window_bytes
        if reader.announced_bytes > window and not self._is_waiting:
            self._is_reserved = memory.reserve(self, reader.announced_bytes)
            self._is_waiting = not self._is_reserved
        if not self._is_reserved:
            memory.count(self, reader.held_bytes)

    def forget(self) -> None:
        """Release the memory of the incomplete request."""
        self.is_counted = self._is_reserved = self._is_waiting = False
        memory = self.connection.memory
        memory.release(self)
        memory.check()

    def _open_window(self) -> None:
        window = self.connection.limits.http2.stream_window_bytes
        reader = self._reader
        if self._is_reserved and reader is not None:
            missing = reader.announced_bytes - reader.held_bytes
            if missing > self.receive_window:
                self.connection.raise_window(self, min(missing, frames.WINDOW_BYTES_MAX))
        elif self.receive_window * 2 < window:
            self.connection.raise_window(self, window)

    def on_reserved(self) -> None:
        """See `Upload`."""
        self._is_waiting, self._is_reserved = False, True
        self._open_window()
        self.connection.flush_soon()

    def on_memory_lost(self, reason: str) -> None:
        """See `Upload`."""
        self.is_counted = self._is_reserved = self._is_waiting = False
        self.calls.refuse(self, GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, reason))

    def cancelled(self) -> None:
        """Report that the call is over without an answer."""
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()
