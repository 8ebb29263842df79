"""One HTTP/2 connection of a server, without I/O: bytes in, calls of a handler, bytes out.

    state      entered by                        frames from the peer
    preface    -                                 the preface, then SETTINGS
    open       the first SETTINGS                all
    draining   `drain`                           all; HEADERS of new streams are ignored
    closed     an error of the connection, or    none
               `close`; GOAWAY is in the output

An error of one stream resets that stream. All output is collected until `take_output`.

The window of a stream and of the connection is opened again as soon as data has arrived: the data
of a stream is at most one incomplete message, whose size is limited, and all connections share one
budget for them (`kourou.http2.server`). Data to the peer waits in its stream while a window is
closed; `Stream.unsent_bytes` counts it.

Source: RFC 9113.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from kourou.http2 import frames
from kourou.http2.frames import ErrorCode, Setting
from kourou.http2.headers import (
    CompressionError,
    HeaderDecoder,
    HeadersTooLargeError,
    MalformedRequestError,
    RequestHead,
    check_trailers,
    request_head,
)

_PRIORITY_BYTES: Final = 5
_ID_MASK: Final = 0x7FFFFFFF
_CLOSED_REMEMBERED: Final = 4096
"""Streams ended by us whose late frames are ignored; later frames of older ones are an error."""


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of each connection.

    Attributes:
        streams_max: open streams.
        header_block_bytes_max: bytes of a request's header block, in all its frames.
        header_frames_max: frames of a header block.
        header_list_bytes_max: bytes of a request's fields.
        window_bytes: flow-control window of the connection, and of each stream.
        burst_max: frames that cost the server work and the client little (pings, settings, resets,
            empty data), above those that it may send each second.
        per_second: such frames a second.
    """

    streams_max: int = 20_000
    header_block_bytes_max: int = 64 * 1024
    header_frames_max: int = 64
    header_list_bytes_max: int = 64 * 1024
    window_bytes: int = 1024 * 1024
    burst_max: int = 10_000
    per_second: int = 1_000


class StreamHandler(Protocol):
    """Called with the events of all streams of a connection."""

    def on_request(self, stream: Stream, head: RequestHead) -> None:
        """Handle the fields of a new stream; `stream.is_remote_closed` if no data follows."""

    def on_data(self, stream: Stream, data: bytes) -> None:
        """Handle data, which is empty if only the end of the stream has arrived."""

    def on_reset(self, stream: Stream) -> None:
        """Handle the end of a stream by its client, or by an error in its frames."""

    def on_writable(self, stream: Stream) -> None:
        """Handle that all data of a stream that had to wait has been sent."""


class Stream:
    """One stream, from its HEADERS until both sides have ended it.

    Attributes:
        is_remote_closed: the client sends nothing more.
        is_closed: the stream is over; nothing more can be sent.
        unsent_bytes: data that waits for the client's windows.
        user: for the handler.
    """

    __slots__ = (
        "_length_left", "ended_with", "id", "is_closed", "is_local_ended", "is_remote_closed",
        "receive_window", "received_unacknowledged", "send_window", "unsent", "unsent_bytes",
        "user",
    )  # fmt: skip

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = receive_window
        self.received_unacknowledged = 0
        self.is_remote_closed = False
        self.is_local_ended = False
        self.is_closed = False
        self.unsent: deque[bytes] | None = None
        self.unsent_bytes = 0
        self.ended_with: bytes | None = None
        self._length_left: int | None = None
        self.user: object = None

    def expect_length(self, length: int | None) -> None:
        """Set the length that the request's fields announce."""
        self._length_left = length

    def has_wrong_length(self, size: int, *, is_end: bool) -> bool:
        """Count `size` bytes; return whether they contradict the announced length."""
        if self._length_left is None:
            return False
        self._length_left -= size
        return self._length_left < 0 or (is_end and self._length_left > 0)


class _ConnectionError(Exception):
    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class _StreamError(Exception):
    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        super().__init__()
        self.stream_id = stream_id
        self.code = code


class Http2Connection:
    """The server's side of a connection.

    Attributes:
        streams: the open streams by id.
        is_closed: GOAWAY is in the output, and nothing more is read.
        close_reason: why; empty if the peer did nothing wrong.
        last_stream_id: the newest stream that the client has opened.
    """

    def __init__(
        self, limits: Http2Limits, handler: StreamHandler, now_s: Callable[[], float]
    ) -> None:
        """Start a connection; its first output are the server's settings.

        Args:
            limits: its limits.
            handler: called within `receive`, in the order of the frames.
            now_s: returns elapsed seconds.
        """
        self._limits = limits
        self._handler = handler
        self._now_s = now_s
        self.streams: dict[int, Stream] = {}
        self.is_closed = False
        self.close_reason = ""
        self.last_stream_id = 0
        self._opened = 0
        self._is_draining = False
        self._has_preface = False
        self._has_settings = False
        self._held = b""
        self._headers = HeaderDecoder(limits.header_list_bytes_max)
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags of HEADERS, bytes
        self._block_frames = 0
        self._block_error: _StreamError | None = None
        self._send_window = frames.WINDOW_BYTES
        self._peer_stream_window = frames.WINDOW_BYTES
        self._peer_frame_bytes = frames.FRAME_BYTES_MAX
        self._receive_window = limits.window_bytes
        self._received_unacknowledged = 0
        self._blocked: dict[int, Stream] = {}
        self._ended_by_us: deque[int] = deque(maxlen=_CLOSED_REMEMBERED)
        self._credit = float(limits.burst_max)
        self._credited_s = now_s()
        self._out: list[bytes] = [
            frames.settings_frame(
                {
                    Setting.MAX_CONCURRENT_STREAMS: limits.streams_max,
                    Setting.INITIAL_WINDOW_SIZE: limits.window_bytes,
                    Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
                }
            ),
            frames.window_frame(0, limits.window_bytes - frames.WINDOW_BYTES),
        ]
        self._handlers = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }

    # Bytes

    def receive(self, data: bytes) -> None:
        """Handle bytes from the peer. Never raises for them: errors are answered as frames."""
        if self.is_closed:
            return
        if self._held:
            data = self._held + data
            self._held = b""
        at = 0
        try:
            if not self._has_preface:
                at = self._receive_preface(data)
            if self._has_preface:
                at = self._receive_frames(data, at)
        except _ConnectionError as error:
            self._fail(error.code, str(error))
            return
        if at < len(data) and not self.is_closed:
            self._held = data[at:]

    def take_output(self) -> bytes:
        """Return the bytes to send since the last call."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    @property
    def has_output(self) -> bool:
        """Whether there are bytes to send."""
        return bool(self._out)

    @property
    def held_bytes(self) -> int:
        """Bytes of incomplete frames and header blocks."""
        return len(self._held) + (len(self._block[2]) if self._block else 0)

    def _receive_preface(self, data: bytes) -> int:
        """Return the length of the preface once it is whole, before that 0."""
        start = data[: len(frames.PREFACE)]
        if not frames.PREFACE.startswith(start):
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "no preface of HTTP/2")
        if len(start) < len(frames.PREFACE):
            return 0
        self._has_preface = True
        return len(start)

    def _receive_frames(self, data: bytes, at: int) -> int:
        """Handle all whole frames; return the position after the last one."""
        size_max, handlers = frames.FRAME_BYTES_MAX, self._handlers
        end = len(data)
        while end - at >= frames.HEAD_BYTES:
            size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if size > size_max:
                raise _ConnectionError(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes, at most {size_max}"
                )
            begin = at + frames.HEAD_BYTES
            if begin + size > end:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream_id = int.from_bytes(data[at + 5 : begin], "big") & _ID_MASK
            at = begin + size
            if not self._has_settings and (kind != frames.SETTINGS or flags & frames.ACK):
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if self._block is not None and (
                kind != frames.CONTINUATION or stream_id != self._block[0]
            ):
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            handle = handlers.get(kind)
            if handle is None:  # RFC 9113, 5.5: ignored
                self._charge("unknown frames")
                continue
            try:
                handle(stream_id, flags, data[begin:at])
            except _StreamError as error:
                self._on_stream_error(error)
            if self.is_closed:
                return at
        return at

    # Sending

    def send_headers(self, stream: Stream, block: bytes, *, ends: bool = False) -> None:
        """Send the fields of a response, or its trailers; a block of at most one frame."""
        if stream.is_closed or stream.is_local_ended:
            return
        flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
        frame = frames.frame_head(len(block), frames.HEADERS, flags, stream.id) + block
        if stream.unsent:
            assert ends, "only trailers follow data"
            stream.is_local_ended = True
            stream.ended_with = frame
            return
        self._out.append(frame)
        if ends:
            stream.is_local_ended = True
            self._end(stream)

    def send_data(self, stream: Stream, data: bytes) -> None:
        """Send data, or keep it until the client's windows are open."""
        if stream.is_closed or stream.is_local_ended or not data:
            return
        size = len(data)
        if (
            stream.unsent is None
            and size <= stream.send_window
            and size <= self._send_window
            and size <= self._peer_frame_bytes
        ):
            stream.send_window -= size
            self._send_window -= size
            self._out.append(frames.frame_head(size, frames.DATA, 0, stream.id) + data)
            return
        if stream.unsent is None:
            stream.unsent = deque()
        stream.unsent.append(data)
        stream.unsent_bytes += size
        self._blocked[stream.id] = stream
        self._flush(stream)

    def reply(self, stream: Stream, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send fields, data and trailers at once: the hot path of a unary call."""
        size = len(data)
        if (
            stream.is_closed
            or size > stream.send_window
            or size > self._send_window
            or size > self._peer_frame_bytes
        ):
            self.send_headers(stream, head)
            self.send_data(stream, data)
            self.send_headers(stream, trailers, ends=True)
            return
        self._send_window -= size
        number = stream.id
        self._out.append(
            b"".join(
                (
                    frames.frame_head(len(head), frames.HEADERS, frames.END_HEADERS, number),
                    head,
                    frames.frame_head(size, frames.DATA, 0, number),
                    data,
                    frames.frame_head(
                        len(trailers),
                        frames.HEADERS,
                        frames.END_HEADERS | frames.END_STREAM,
                        number,
                    ),
                    trailers,
                )
            )
        )
        stream.is_local_ended = True
        self._end(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once; data that waits is dropped."""
        if not stream.is_closed:
            self._out.append(frames.reset_frame(stream.id, code))
            self._ended_by_us.append(stream.id)
            self._close(stream)

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self._out.append(frames.frame_head(8, frames.PING, 0, 0) + bytes(8))

    def drain(self) -> None:
        """Refuse new streams; the open ones go on."""
        if not self._is_draining and not self.is_closed:
            self._is_draining = True
            self._out.append(frames.goaway_frame(self.last_stream_id, ErrorCode.NO_ERROR))

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: str = "") -> None:
        """End the connection; streams that are open end without an answer."""
        if not self.is_closed:
            self._fail(code, reason)

    # Frames

    def _on_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        if not stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "DATA of stream 0")
        size = len(payload)
        self._count_received(size)
        data = _unpadded(payload) if flags & frames.PADDED else payload
        is_end = bool(flags & frames.END_STREAM)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_gone(stream_id, ErrorCode.STREAM_CLOSED)
            return
        if stream.is_remote_closed:
            raise _StreamError(stream_id, ErrorCode.STREAM_CLOSED)
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise _StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if stream.has_wrong_length(len(data), is_end=is_end):
            raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        if is_end:
            stream.is_remote_closed = True
        else:
            if not data:
                self._charge("empty DATA frames")
            self._reopen_window(stream, size)
        self._handler.on_data(stream, data)
        if is_end and stream.is_local_ended and not stream.unsent:
            self._close(stream)

    def _count_received(self, size: int) -> None:
        """Count data against the connection's window, and open it again by halves."""
        self._receive_window -= size
        if self._receive_window < 0:
            raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the window")
        self._received_unacknowledged += size
        if self._received_unacknowledged * 2 >= self._limits.window_bytes:
            self._out.append(frames.window_frame(0, self._received_unacknowledged))
            self._receive_window += self._received_unacknowledged
            self._received_unacknowledged = 0

    def _reopen_window(self, stream: Stream, size: int) -> None:
        stream.received_unacknowledged += size
        if stream.received_unacknowledged * 2 >= self._limits.window_bytes:
            self._out.append(frames.window_frame(stream.id, stream.received_unacknowledged))
            stream.receive_window += stream.received_unacknowledged
            stream.received_unacknowledged = 0

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if not stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "HEADERS of stream 0")
        block = _unpadded(payload) if flags & frames.PADDED else payload
        self._block_error = None
        if flags & frames.PRIORITY_FLAG:
            if len(block) < _PRIORITY_BYTES:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
            if int.from_bytes(block[:4], "big") & _ID_MASK == stream_id:
                self._block_error = _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
            block = block[_PRIORITY_BYTES:]
        if flags & frames.END_HEADERS:
            self._on_block(stream_id, flags, block)
        else:
            self._block = (stream_id, flags, bytearray(block))
            self._block_frames = 1

    def _on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, first_flags, block = self._block
        block += payload
        self._block_frames += 1
        limits = self._limits
        if len(block) > limits.header_block_bytes_max or (
            self._block_frames > limits.header_frames_max
        ):
            raise _ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a header block of {len(block)} bytes in {self._block_frames} frames",
            )
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(stream_id, first_flags, bytes(block))

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """Handle a whole header block: a new stream, or the trailers of one."""
        try:
            fields = self._headers.decode(block)
        except HeadersTooLargeError as error:
            raise _ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        except CompressionError as error:
            raise _ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        is_end = bool(flags & frames.END_STREAM)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, fields, is_end=is_end)
            return
        if not stream_id & 1:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"a client's stream {stream_id}")
        if stream_id <= self.last_stream_id:
            # Only if the client has skipped no stream, this one was open once.
            was_open = self._opened * 2 == self.last_stream_id + 1
            code = ErrorCode.STREAM_CLOSED if was_open else ErrorCode.PROTOCOL_ERROR
            self._check_gone(stream_id, code)
            return
        if self._is_draining:
            return
        self.last_stream_id = stream_id
        self._opened += 1
        if self._block_error is not None:
            raise self._block_error
        if len(self.streams) >= self._limits.streams_max:
            self._charge("streams above the limit")
            raise _StreamError(stream_id, ErrorCode.REFUSED_STREAM)
        self._open(stream_id, fields, is_end=is_end)

    def _open(
        self, stream_id: int, fields: tuple[tuple[bytes, bytes], ...], *, is_end: bool
    ) -> None:
        try:
            head = request_head(fields)
        except MalformedRequestError:
            raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR) from None
        stream = Stream(stream_id, self._peer_stream_window, self._limits.window_bytes)
        stream.expect_length(head.content_length)
        stream.is_remote_closed = is_end
        if is_end and head.content_length:
            raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        self.streams[stream_id] = stream
        self._handler.on_request(stream, head)

    def _on_trailers(
        self, stream: Stream, fields: tuple[tuple[bytes, bytes], ...], *, is_end: bool
    ) -> None:
        if stream.is_remote_closed:
            raise _StreamError(stream.id, ErrorCode.STREAM_CLOSED)
        try:
            check_trailers(fields)
        except MalformedRequestError:
            raise _StreamError(stream.id, ErrorCode.PROTOCOL_ERROR) from None
        if not is_end or stream.has_wrong_length(0, is_end=True):
            raise _StreamError(stream.id, ErrorCode.PROTOCOL_ERROR)
        stream.is_remote_closed = True
        self._handler.on_data(stream, b"")
        if stream.is_local_ended and not stream.unsent:
            self._close(stream)

    def _on_priority(self, stream_id: int, _: int, payload: bytes) -> None:
        if not stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY of stream 0")
        if len(payload) != _PRIORITY_BYTES:
            raise _StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        if int.from_bytes(payload[:4], "big") & _ID_MASK == stream_id:
            raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._charge("PRIORITY frames")

    def _on_rst_stream(self, stream_id: int, _: int, payload: bytes) -> None:
        if not stream_id or stream_id > self.last_stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM of an idle stream")
        if len(payload) != 4:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM is not of 4 bytes")
        self._charge("resets")
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._close(stream)
            self._handler.on_reset(stream)

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if payload:
                raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ack with a payload")
            return
        if len(payload) % 6:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS are not of 6 bytes each")
        if self._has_settings:
            self._charge("SETTINGS frames")
        self._has_settings = True
        for at in range(0, len(payload), 6):
            self._apply(
                int.from_bytes(payload[at : at + 2], "big"),
                int.from_bytes(payload[at + 2 : at + 6], "big"),
            )
        self._out.append(frames.SETTINGS_ACK)
        self._flush_blocked()

    def _apply(self, number: int, value: int) -> None:
        """Apply one setting of the peer. Its header table is not used, so the size is ignored."""
        if number == Setting.ENABLE_PUSH and value > 1:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        if number == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.WINDOW_BYTES_MAX:
                raise _ConnectionError(
                    ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}"
                )
            change = value - self._peer_stream_window
            self._peer_stream_window = value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > frames.WINDOW_BYTES_MAX:
                    raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
        if number == Setting.MAX_FRAME_SIZE:
            if not frames.FRAME_BYTES_MAX <= value <= frames.FRAME_BYTES_LIMIT:
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
            self._peer_frame_bytes = value

    def _on_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        del stream_id, flags, payload
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a client")

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "PING is not of 8 bytes")
        if not flags & frames.ACK:
            self._charge("pings")
            self._out.append(frames.ping_ack(payload))

    def _on_goaway(self, stream_id: int, _: int, payload: bytes) -> None:
        if stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")

    def _on_window_update(self, stream_id: int, _: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise _ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not of 4 bytes")
        size = int.from_bytes(payload, "big") & _ID_MASK
        if not stream_id:
            if not size:
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._send_window += size
            if self._send_window > frames.WINDOW_BYTES_MAX:
                raise _ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
            self._flush_blocked()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self.last_stream_id:
                raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream")
            return
        if not size:
            raise _StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream.send_window += size
        if stream.send_window > frames.WINDOW_BYTES_MAX:
            raise _StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if stream.unsent:
            self._flush(stream)

    # Ends and windows

    def _flush_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            if self._send_window <= 0:
                break
            self._flush(stream)

    def _flush(self, stream: Stream) -> None:
        """Send data that waits, as far as the windows allow."""
        unsent = stream.unsent
        while unsent:
            room = min(stream.send_window, self._send_window, self._peer_frame_bytes)
            if room <= 0:
                return
            data = unsent.popleft()
            if len(data) > room:
                unsent.appendleft(data[room:])
                data = data[:room]
            size = len(data)
            stream.send_window -= size
            self._send_window -= size
            stream.unsent_bytes -= size
            self._out.append(frames.frame_head(size, frames.DATA, 0, stream.id) + data)
        stream.unsent = None
        self._blocked.pop(stream.id, None)
        if stream.ended_with is not None:
            self._out.append(stream.ended_with)
            self._end(stream)
        else:
            self._handler.on_writable(stream)

    def _end(self, stream: Stream) -> None:
        """End our side; a client that is still sending is told to stop."""
        if not stream.is_remote_closed:
            self._out.append(frames.reset_frame(stream.id, ErrorCode.NO_ERROR))
            self._ended_by_us.append(stream.id)
        self._close(stream)

    def _close(self, stream: Stream) -> None:
        stream.is_closed = True
        stream.unsent = None
        stream.unsent_bytes = 0
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)

    def _check_gone(self, stream_id: int, code: ErrorCode) -> None:
        """Raise for a frame of a stream that is not open, unless the frame was under way.

        Raises:
            _ConnectionError: the stream was never opened, or the client had ended it.
        """
        if stream_id > self.last_stream_id:
            raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, f"a frame of idle stream {stream_id}")
        if stream_id not in self._ended_by_us:
            raise _ConnectionError(code, f"a frame of closed stream {stream_id}")

    def _on_stream_error(self, error: _StreamError) -> None:
        stream = self.streams.get(error.stream_id)
        self._charge("errors")
        self._out.append(frames.reset_frame(error.stream_id, error.code))
        self._ended_by_us.append(error.stream_id)
        if stream is not None:
            self._close(stream)
            self._handler.on_reset(stream)

    def _charge(self, what: str) -> None:
        """Count a frame that costs the client little.

        Raises:
            _ConnectionError: there are too many of them.
        """
        self._credit -= 1
        if self._credit > 0:
            return
        now_s = self._now_s()
        limits = self._limits
        self._credit += (now_s - self._credited_s) * limits.per_second
        self._credit = min(self._credit, float(limits.burst_max))
        self._credited_s = now_s
        if self._credit <= 0:
            raise _ConnectionError(
                ErrorCode.ENHANCE_YOUR_CALM, f"too many frames, the last of them {what}"
            )

    def _fail(self, code: ErrorCode, reason: str) -> None:
        self.is_closed = True
        self.close_reason = reason
        self._held = b""
        self._block = None
        self._out.append(frames.goaway_frame(self.last_stream_id, code, reason[:200]))
        for stream in list(self.streams.values()):
            self._close(stream)
            self._handler.on_reset(stream)


def _unpadded(payload: bytes) -> bytes:
    """Return the payload of a padded frame.

    Raises:
        _ConnectionError: the padding is longer than the frame.
    """
    if not payload or payload[0] >= len(payload):
        raise _ConnectionError(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]
