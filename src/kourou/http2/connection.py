"""The server's side of one HTTP/2 connection, without I/O: bytes in, calls of a handler, bytes out.

    state      entered by                     frames from the peer
    preface    -                              the preface, then SETTINGS
    open       the first SETTINGS             all
    draining   `drain`; GOAWAY is queued      all; new streams are ignored
    closed     an error of the connection,    none
               or `close`; GOAWAY is queued

An error of one stream resets that stream. Output is queued in `outgoing`. Never raises for bytes of
the peer.

The window of the connection opens again as data arrives. The window of a stream opens when the
handler calls `raise_window`, so that the handler bounds what is in memory.

Source: RFC 9113.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, cast

from kourou.errors import Http2Error, Http2StreamError, MalformedHeaderError
from kourou.http2 import frames
from kourou.http2.flood_credit import FloodCredit
from kourou.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    HEADERS,
    ID_MASK,
    PADDED,
    PRIORITY_FLAG,
    ErrorCode,
    Setting,
)
from kourou.http2.headers import Field, HeaderDecoder, are_trailers, request_head
from kourou.http2.limits import Http2Limits
from kourou.http2.outgoing import Outgoing
from kourou.http2.streams import Stream, StreamHandler

_PRIORITY_BYTES: Final = 5
_RESET_REMEMBERED_MAX: Final = 4096
"""Streams reset by us whose late frames are ignored; those of older ones are answered."""
_REASON_BYTES_MAX: Final = 200
_STREAMS_PER_CHARGE: Final = 64
"""Streams that a change of the window's size may touch at the cost of one cheap frame."""


class Http2Connection:
    """The receiving half of a connection, and its streams.

    Attributes:
        outgoing: its sending half.
        streams: the open streams by id.
        is_closed: nothing more is read.
        is_draining: new streams are ignored.
        close_reason: the violation for which it was closed; empty if there was none.
        has_more: the last `receive` has left frames to the next one.
        is_held_new: what is incomplete has begun in the last `receive`.
    """

    def __init__(
        self, limits: Http2Limits, handler: StreamHandler[Any], now_s: Callable[[], float]
    ) -> None:
        """Start a connection and queue the server's settings.

        Args:
            limits: its limits.
            handler: of its streams.
            now_s: returns elapsed seconds.
        """
        self._limits = limits
        self._streams_max = limits.streams_max
        self._stream_window = limits.stream_window_bytes
        self._handler: StreamHandler[Any] = handler
        self.outgoing = Outgoing(self._on_local_end, handler.on_writable)
        self.streams: dict[int, Stream] = {}
        self.is_closed = False
        self.close_reason = ""
        self._newest_id = 0
        self._newest_served_id = 0
        self._opened = 0
        self.is_draining = self.has_more = self.is_held_new = False
        self._work_left = self._uncharged = 0
        self._held = b""
        self._is_preface_due = self._is_settings_due = True
        self._decoder = HeaderDecoder()
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags of HEADERS, bytes
        self._block_frames = 0
        self._window = limits.connection_window_bytes
        self._window_low = self._window // 2
        self._reset_by_us: dict[int, None] = {}
        self._credit = FloodCredit(limits.cheap_frames_burst, limits.cheap_frames_per_s, now_s)
        self._charge = self._credit.charge
        self._handlers: Final = {
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }
        self.outgoing.put(_first_frames(limits))

    @property
    def held_bytes(self) -> int:
        """Bytes of an incomplete frame and of an incomplete header block."""
        return len(self._held) + (len(self._block[2]) if self._block is not None else 0)

    # Receiving

    def receive(self, data: bytes, work_max: int = sys.maxsize) -> None:
        """Handle bytes from the peer; ignored if the connection is closed.

        Args:
            data: the bytes, after those of the last call.
            work_max: frames to handle, with those that `spend` adds; if there are more, `has_more`
                is set, and the next call handles them, possibly one without bytes.
        """
        if self.is_closed:
            return
        if self._held:
            data = self._held + data
            self._held = b""
        at, block = 0, self._block
        self._work_left = work_max
        try:
            if self._is_preface_due:
                at = self._receive_preface(data)
            if not self._is_preface_due:
                at = self._receive_frames(data, at)
            if self._uncharged:
                charged, self._uncharged = self._uncharged, 0
                self._charge("costly messages", charged)
        except Http2Error as error:
            self.close(ErrorCode(error.code), str(error))
            return
        is_left = at < len(data) and not self.is_closed
        self.has_more = is_left and self._work_left <= 0
        self.is_held_new = at > 0 and (self._block is None or self._block is not block)
        if is_left:
            self._held = data[at:]

    def spend(self, work: int, charged: int) -> None:
        """Count the frame that is being handled as that of `work` more.

        Args:
            work: frames by which it counts for the present `receive`.
            charged: frames by which it counts as a flood.
        """
        self._work_left -= work
        self._uncharged += charged

    def _receive_preface(self, data: bytes) -> int:
        """Return the length of the preface if it is whole, else 0."""
        start = data[: len(frames.PREFACE)]
        if not frames.PREFACE.startswith(start):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 only")
        self._is_preface_due = len(start) < len(frames.PREFACE)
        return 0 if self._is_preface_due else len(start)

    def _receive_frames(self, data: bytes, at: int) -> int:
        """Handle whole frames; return the position after the last one."""
        end = len(data)
        unpack = frames.FRAME_HEAD.unpack_from
        while end - at >= HEAD_BYTES and not self.is_closed and self._work_left > 0:
            high, low, kind, flags, stream_id = unpack(data, at)
            size = high << 16 | low
            if size > FRAME_BYTES_MAX:
                raise Http2Error(
                    ErrorCode.FRAME_SIZE_ERROR,
                    f"a frame of {size} bytes, at most {FRAME_BYTES_MAX}",
                )
            begin = at + HEAD_BYTES
            stop = begin + size
            if stop > end:
                break
            at = stop
            self._work_left -= 1
            stream_id &= ID_MASK
            if self._block is not None or self._is_settings_due:
                self._check_order(kind, flags, stream_id)
            try:
                if kind == DATA:
                    self._on_data(stream_id, flags, data[begin:stop])
                elif kind == HEADERS:
                    self._on_headers(stream_id, flags, data[begin:stop])
                else:
                    handle = self._handlers.get(kind, self._on_unknown)
                    handle(stream_id, flags, data[begin:stop])
            except Http2StreamError as error:
                self._on_stream_error(error)
        return at

    def _check_order(self, kind: int, flags: int, stream_id: int) -> None:
        """Raise for a frame before the first SETTINGS, or within a header block."""
        if self._is_settings_due and (kind != frames.SETTINGS or flags & frames.ACK):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")

    # Sending and ending

    def raise_window(self, stream: Stream, size: int) -> None:
        """Let the peer send `size` bytes on a stream from now on, if it may send fewer now."""
        grown = size - stream.receive_window
        if grown > 0 and not stream.is_remote_ended and not stream.is_closed:
            stream.receive_window = size
            self.outgoing.put(frames.window_frame(stream.id, grown))

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once; data that waits is dropped."""
        if not stream.is_closed:
            self._put_reset(stream.id, code)
            self._close_stream(stream)

    def ping(self) -> None:
        """Send a ping."""
        self.outgoing.put(frames.frame_head(8, frames.PING, 0, 0) + bytes(8))

    def drain(self) -> None:
        """Refuse new streams; the open ones go on."""
        if not self.is_draining and not self.is_closed:
            self.is_draining = True
            self.outgoing.put(frames.goaway_frame(self._newest_served_id, ErrorCode.NO_ERROR))

    def close(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: str = "") -> None:
        """End the connection; open streams end without an answer. May be called twice."""
        if self.is_closed:
            return
        self.is_closed = True
        self.close_reason = reason
        self.has_more = False
        self._held = b""
        self._block = None
        text = reason[:_REASON_BYTES_MAX]
        self.outgoing.put(frames.goaway_frame(self._newest_served_id, code, text))
        for stream in list(self.streams.values()):
            self._close_stream(stream)
            self._handler.on_reset(stream)

    def release(self) -> None:
        """Forget the handler of a closed connection, which refers to it.

        Reference cycles would keep all its objects until a full garbage collection, which stops the
        process for a tenth of a second.
        """
        self._handlers.clear()
        self.outgoing.release()
        self._handler = cast(Any, None)

    def _on_local_end(self, stream: Stream) -> None:
        """Close a stream whose last frame is queued; a client that still sends is stopped."""
        self._credit.answered += 1
        if not stream.is_remote_ended:
            self._put_reset(stream.id, ErrorCode.NO_ERROR)
        self._close_stream(stream)

    def _put_reset(self, stream_id: int, code: ErrorCode) -> None:
        self.outgoing.put(frames.reset_frame(stream_id, code))
        remembered = self._reset_by_us
        remembered[stream_id] = None
        if len(remembered) > _RESET_REMEMBERED_MAX:
            del remembered[next(iter(remembered))]

    def _close_stream(self, stream: Stream) -> None:
        stream.is_closed = True
        self.streams.pop(stream.id, None)
        if stream.unsent is not None:
            self.outgoing.forget(stream)

    def _on_stream_error(self, error: Http2StreamError) -> None:
        self._charge("errors of streams")
        self._put_reset(error.stream_id, ErrorCode(error.code))
        stream = self.streams.get(error.stream_id)
        if stream is not None:
            self._close_stream(stream)
            self._handler.on_reset(stream)

    # Frames of streams

    def _on_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._window -= size
        if self._window < self._window_low:
            self._open_window()
        stream = self.streams.get(stream_id)
        if stream is None:
            self._on_late_frame(stream_id)
            return
        if stream.is_remote_ended:
            raise Http2StreamError(stream_id, ErrorCode.STREAM_CLOSED)
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise Http2StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if flags & PADDED:
            payload = frames.unpadded(payload)
        is_end = flags & END_STREAM
        if stream.length_left is not None:
            self._check_length(stream, len(payload), is_end=bool(is_end))
        if is_end:
            stream.is_remote_ended = True
        elif not payload:
            self._charge("empty DATA frames")
            return
        self._handler.on_data(stream, payload)

    def _check_length(self, stream: Stream, size: int, *, is_end: bool) -> None:
        """Raise if the data contradicts the length that the request's fields announce."""
        assert stream.length_left is not None, "the caller has checked it"
        stream.length_left -= size
        if stream.length_left < 0 or (is_end and stream.length_left):
            raise Http2StreamError(stream.id, ErrorCode.PROTOCOL_ERROR)

    def _open_window(self) -> None:
        """Open the connection's window again; half of it is used."""
        limit = self._limits.connection_window_bytes
        if self._window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"more DATA than {limit} bytes")
        self.outgoing.put(frames.window_frame(0, limit - self._window))
        self._window = limit

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = frames.unpadded(payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < _PRIORITY_BYTES:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
            if int.from_bytes(payload[:4], "big") & ID_MASK == stream_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
            payload = payload[_PRIORITY_BYTES:]
        if flags & END_HEADERS:
            self._on_block(stream_id, flags, payload)
        elif not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "HEADERS of stream 0")
        else:
            self._block = (stream_id, flags, bytearray(payload))
            self._block_frames = 1

    def _on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        _, first_flags, block = self._block
        block += payload
        self._block_frames += 1
        limits = self._limits
        if (
            len(block) > limits.header_block_bytes_max
            or self._block_frames > limits.header_frames_max
        ):
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a header block of {len(block)} bytes in {self._block_frames} frames",
            )
        if flags & END_HEADERS:
            self._block = None
            self._on_block(stream_id, first_flags, bytes(block))

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """Handle a whole header block: a new stream, or the trailers of one."""
        try:
            fields = self._decoder.decode(block)
        except MalformedHeaderError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        is_end = bool(flags & END_STREAM)
        if stream_id <= self._newest_id:
            self._on_later_block(stream_id, fields, is_end=is_end)
            return
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a client's stream {stream_id}")
        self._newest_id = stream_id
        self._opened += 1
        if self.is_draining:
            return
        self._newest_served_id = stream_id
        if len(self.streams) >= self._streams_max:
            raise Http2StreamError(stream_id, ErrorCode.REFUSED_STREAM)
        head = request_head(fields)
        if head is None or (is_end and head.content_length):
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        handler = self._handler
        stream: Stream = handler.create_stream(
            stream_id, self.outgoing.stream_window, self._stream_window
        )
        if head.content_length is not None:
            stream.length_left = head.content_length
        if is_end:
            stream.is_remote_ended = True
        self.streams[stream_id] = stream
        handler.on_request(stream, head)
        if is_end and not stream.is_closed:
            handler.on_data(stream, b"")

    def _on_later_block(self, stream_id: int, fields: list[Field], *, is_end: bool) -> None:
        """Handle the header block of a stream that is not new: trailers, or an error."""
        stream = self.streams.get(stream_id)
        if stream is None:
            # Only if the client has skipped no stream, this one was open once.
            if not stream_id & 1 or self._opened * 2 != self._newest_id + 1:
                raise Http2Error(
                    ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} after {self._newest_id}"
                )
            if stream_id not in self._reset_by_us and not self.is_draining:
                raise Http2Error(ErrorCode.STREAM_CLOSED, f"HEADERS of stream {stream_id}")
            return
        if stream.is_remote_ended:
            raise Http2StreamError(stream_id, ErrorCode.STREAM_CLOSED)
        if not is_end or stream.length_left or not are_trailers(fields):
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream.is_remote_ended = True
        self._handler.on_data(stream, b"")

    def _on_rst_stream(self, stream_id: int, _: int, payload: bytes) -> None:
        if not stream_id or stream_id > self._newest_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "RST_STREAM of an idle stream")
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM is not of 4 bytes")
        self._charge("resets")
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._close_stream(stream)
            self._handler.on_reset(stream)

    def _on_priority(self, stream_id: int, _: int, payload: bytes) -> None:
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY of stream 0")
        if len(payload) != _PRIORITY_BYTES:
            raise Http2StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        if int.from_bytes(payload[:4], "big") & ID_MASK == stream_id:
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._charge("PRIORITY frames")

    def _on_late_frame(self, stream_id: int) -> None:
        """Handle data of a stream that is not open; ignore it if we have reset the stream."""
        if not stream_id or stream_id > self._newest_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"DATA of idle stream {stream_id}")
        is_ignored = stream_id > self._newest_served_id  # opened while draining
        if not is_ignored and stream_id not in self._reset_by_us:
            raise Http2StreamError(stream_id, ErrorCode.STREAM_CLOSED)

    # Frames of the connection

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if payload:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ack with a payload")
            self._charge("SETTINGS acks")
            return
        if len(payload) % frames.SETTING.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS are not of 6 bytes each")
        self._is_settings_due = False
        self._charge("SETTINGS frames", 1 + len(payload) // frames.SETTING.size)
        for number, value in frames.SETTING.iter_unpack(payload):
            if number == Setting.INITIAL_WINDOW_SIZE:
                self._charge("changes of windows", len(self.streams) // _STREAMS_PER_CHARGE)
            self.outgoing.apply_setting(number, value, self.streams.values())
        self.outgoing.put(frames.SETTINGS_ACK)
        self.outgoing.resume()

    def _on_window_update(self, stream_id: int, _: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not of 4 bytes")
        size = int.from_bytes(payload, "big") & ID_MASK
        if not stream_id:
            if not size:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self.outgoing.open_window(size)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self._newest_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of an idle stream")
            return
        if not size:
            raise Http2StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        self.outgoing.open_stream_window(stream, size)

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PING is not of 8 bytes")
        self._charge("pings")
        if not flags & frames.ACK:
            self.outgoing.put(frames.ping_ack(payload))

    def _on_goaway(self, stream_id: int, _: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is shorter than 8 bytes")
        self._charge("GOAWAY frames")

    def _on_push_promise(self, stream_id: int, _: int, payload: bytes) -> None:  # noqa: ARG002
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"PUSH_PROMISE in stream {stream_id}")

    def _on_unknown(self, stream_id: int, _: int, payload: bytes) -> None:  # noqa: ARG002
        """Ignore a frame of an unknown type (RFC 9113, 5.5)."""
        self._charge("unknown frames")


def _first_frames(limits: Http2Limits) -> bytes:
    """Return the server's settings, and the opening of the connection's window."""
    settings = {
        Setting.MAX_CONCURRENT_STREAMS: limits.streams_max,
        Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
    }
    data = frames.settings_frame(settings)
    more = limits.connection_window_bytes - frames.WINDOW_BYTES
    return data + frames.window_frame(0, more) if more else data
