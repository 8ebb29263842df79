"""Frames to the peer, and the data that waits for its windows.

A frame is queued until `take`, which is called once in each iteration of the event loop. Data is
framed only as far as the windows of its stream and of the connection allow, and while less than
`PENDING_BYTES_MAX` are queued; the rest waits in its stream, which bounds what a slow reader costs:

    a stream's data   is in
    framed            the queue, then the transport
    waiting           `Stream.unsent`; its trailers wait behind it

Streams take turns: each sends at most `TURN_BYTES` before the next one does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from kourou.errors import Http2Error, Http2StreamError
from kourou.http2 import frames
from kourou.http2.frames import ErrorCode, HeaderFrame, Setting
from kourou.http2.streams import Stream

PENDING_BYTES_MAX: Final = 1024 * 1024
"""Bytes in the queue above which no data is added."""
TURN_BYTES: Final = 64 * 1024
"""Bytes of one stream's data that are framed before another stream's."""

_DATA_AND_FLAGS: Final = frames.DATA << 8
_ID_BYTES: Final = 4


class Outgoing:
    """The sending half of a connection.

    Attributes:
        window: bytes of data that the peer accepts on the connection.
        stream_window: the initial `send_window` of new streams.
        frame_bytes_max: largest payload that the peer accepts.
        is_paused: the transport takes no data now.
        ready: streams by id whose data waits, though not for the window of the stream itself.
        unsent_bytes: bytes that wait in all streams.
        pending_bytes: bytes in the queue.
    """

    def __init__(
        self, on_ended: Callable[[Stream], None], on_writable: Callable[[Any], None]
    ) -> None:
        """Start with an empty queue.

        Args:
            on_ended: called when the last frame of a stream is queued.
            on_writable: called when a stream's data no longer waits and the stream has not ended.
        """
        self._on_ended = on_ended
        self._on_writable = on_writable
        self._queue: list[bytes] = []
        self.ready: dict[int, Stream] = {}
        self.window = frames.WINDOW_BYTES
        self.stream_window = frames.WINDOW_BYTES
        self.frame_bytes_max = frames.FRAME_BYTES_MAX
        self.is_paused = False
        self.unsent_bytes = 0
        self.pending_bytes = 0

    def take(self) -> bytes:
        """Remove and return the queued frames, for one write."""
        queue = self._queue
        data = queue[0] if len(queue) == 1 else b"".join(queue)
        queue.clear()
        self.pending_bytes = 0
        return data

    def release(self) -> None:
        """Forget the callbacks: all streams are closed, and none is called again."""
        self._on_ended = self._on_writable = _no_stream

    def put(self, frame: bytes) -> None:
        """Queue a frame that needs no window."""
        self._queue.append(frame)
        self.pending_bytes += len(frame)

    # Streams

    def put_headers(self, stream: Stream, frame: HeaderFrame, *, ends: bool = False) -> None:
        """Queue the fields of a response, or its trailers, which wait behind its data.

        Ignored if the stream has ended.
        """
        if stream.is_closed or stream.is_local_ended:
            return
        data = b"".join((frame.start, stream.id.to_bytes(_ID_BYTES, "big"), frame.block))
        stream.is_local_ended = ends
        if stream.unsent is not None:
            stream.last_frame = data
            return
        self.put(data)
        if ends:
            self._on_ended(stream)

    def put_data(self, stream: Stream, data: bytes) -> None:
        """Queue data, or let it wait. Ignored if the stream has ended."""
        if stream.is_closed or stream.is_local_ended or not data:
            return
        size = len(data)
        if stream.unsent is None and self._has_room(stream, size):
            self._put_frame(stream, data, size)
            return
        if stream.unsent is None:
            stream.unsent = deque()
        stream.unsent.append(memoryview(data))  # sliced without copies
        stream.unsent_bytes += size
        self.unsent_bytes += size
        if not self.ready:
            while stream.has_sendable and self._can_send:
                self._send_turn(stream)
        if stream.has_sendable:
            self.ready[stream.id] = stream

    def takes_at_once(self, stream: Stream, size: int) -> bool:
        """Return whether `size` bytes of data, in any number of frames, would not wait."""
        return (
            stream.unsent is None
            and size <= stream.send_window
            and size <= self.window
            and self.pending_bytes + size <= PENDING_BYTES_MAX
            and not self.is_paused
        )

    def put_reply(
        self, stream: Stream, head: HeaderFrame, prefix: bytes, data: bytes, trailers: HeaderFrame
    ) -> None:
        """Queue fields, data after its prefix, and trailers at once: most calls end so."""
        size = len(prefix) + len(data)
        if stream.is_local_ended or stream.is_closed or not self._has_room(stream, size):
            self.put_headers(stream, head)
            self.put_data(stream, prefix + data)
            self.put_headers(stream, trailers, ends=True)
            return
        self.window -= size
        number = stream.id.to_bytes(_ID_BYTES, "big")
        data_start = (size << 16 | _DATA_AND_FLAGS).to_bytes(5, "big")
        frame = b"".join((
            head.start, number, head.block, data_start, number, prefix, data, trailers.start,
            number, trailers.block,
        ))  # fmt: skip
        self._queue.append(frame)
        self.pending_bytes += len(frame)
        stream.is_local_ended = True
        self._on_ended(stream)

    def forget(self, stream: Stream) -> None:
        """Drop the data of a closed stream that waits."""
        self.unsent_bytes -= stream.unsent_bytes
        stream.unsent = stream.last_frame = None
        stream.unsent_bytes = 0
        self.ready.pop(stream.id, None)

    # Windows and settings of the peer

    def open_window(self, size: int) -> None:
        """Let the connection send more.

        Raises:
            Http2Error: the window exceeds the limit of HTTP/2.
        """
        self.window += size
        if self.window > frames.WINDOW_BYTES_MAX:
            raise _too_large("connection")
        self.resume()

    def open_stream_window(self, stream: Stream, size: int) -> None:
        """Let a stream send more.

        Raises:
            Http2StreamError: the window exceeds the limit of HTTP/2.
        """
        stream.send_window += size
        if stream.send_window > frames.WINDOW_BYTES_MAX:
            raise Http2StreamError(stream.id, ErrorCode.FLOW_CONTROL_ERROR)
        if stream.has_sendable:
            self.ready[stream.id] = stream
            self.resume()

    def apply_setting(self, number: int, value: int, streams: Iterable[Stream]) -> None:
        """Apply a setting of the peer; `streams` are the open ones.

        The size of the peer's dynamic table is ignored: responses do not use it.

        Raises:
            Http2Error: the value is out of its range.
        """
        if number == Setting.ENABLE_PUSH and value > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        if number == Setting.MAX_FRAME_SIZE:
            if not frames.FRAME_BYTES_MAX <= value <= frames.FRAME_BYTES_LIMIT:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
            self.frame_bytes_max = value
        if number == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.WINDOW_BYTES_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
            grown = value - self.stream_window  # may be negative, and so may windows become
            self.stream_window = value
            for stream in streams:
                stream.send_window += grown
                if stream.send_window > frames.WINDOW_BYTES_MAX:
                    raise _too_large(f"stream {stream.id}")
                if stream.has_sendable:
                    self.ready[stream.id] = stream

    @property
    def can_resume(self) -> bool:
        """Whether `resume` would send data."""
        return bool(self.ready) and self._can_send

    @property
    def _can_send(self) -> bool:
        is_full = self.pending_bytes >= PENDING_BYTES_MAX
        return self.window > 0 and not self.is_paused and not is_full

    def resume(self) -> None:
        """Frame data that waits, as far as windows and queue allow."""
        while self.ready and self._can_send:
            number = next(iter(self.ready))
            stream = self.ready.pop(number)
            self._send_turn(stream)
            if stream.unsent is None:
                self._finish(stream)
            elif stream.send_window > 0:
                self.ready[number] = stream

    def _send_turn(self, stream: Stream) -> None:
        """Frame the next data of a stream."""
        unsent = stream.unsent
        left = TURN_BYTES
        while unsent and left > 0:
            room = min(stream.send_window, self.window, self.frame_bytes_max, left)
            if room <= 0:
                return
            data = unsent.popleft()
            if len(data) > room:
                unsent.appendleft(data[room:])
                data = data[:room]
            size = len(data)
            left -= size
            stream.unsent_bytes -= size
            self.unsent_bytes -= size
            self._put_frame(stream, data, size)
        if not unsent:
            stream.unsent = None

    def _finish(self, stream: Stream) -> None:
        """Queue the trailers of a stream whose data is framed, or report that it is writable."""
        if stream.last_frame is not None:
            self.put(stream.last_frame)
            stream.last_frame = None
            self._on_ended(stream)
        else:
            self._on_writable(stream)

    def _has_room(self, stream: Stream, size: int) -> bool:
        """Return whether one frame with `size` bytes of data may be queued."""
        return (
            size <= stream.send_window
            and size <= self.window
            and size <= self.frame_bytes_max
            and self.pending_bytes < PENDING_BYTES_MAX
            and not self.is_paused
        )

    def _put_frame(self, stream: Stream, data: bytes | memoryview, size: int) -> None:
        stream.send_window -= size
        self.window -= size
        head = (size << 16 | _DATA_AND_FLAGS).to_bytes(5, "big")
        self.put(b"".join((head, stream.id.to_bytes(_ID_BYTES, "big"), data)))


def _no_stream(_: Stream) -> None:
    raise AssertionError("all streams are closed")


def _too_large(what: str) -> Http2Error:
    limit = frames.WINDOW_BYTES_MAX
    return Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"window of {what} exceeds {limit}")
