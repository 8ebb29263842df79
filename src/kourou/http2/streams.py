"""Streams of a connection, and the events that their handler gets."""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeVar

from kourou.http2.headers import RequestHead


class Stream:
    """One stream, from its HEADERS until both sides have ended it.

    Attributes:
        id: its number.
        send_window: bytes of data that the peer accepts.
        receive_window: bytes of data that the peer may send.
        is_remote_ended: the peer sends nothing more.
        is_local_ended: nothing more can be sent, though data may still wait.
        is_closed: the stream is over.
        unsent: data that waits; None: none.
        unsent_bytes: its size.
        last_frame: the trailers that wait behind it.
        length_left: bytes of the announced length that have not arrived; None: not announced.
    """

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = receive_window
        self.is_remote_ended = False
        self.is_local_ended = False
        self.is_closed = False
        self.unsent: deque[memoryview] | None = None
        self.unsent_bytes = 0
        self.last_frame: bytes | None = None
        self.length_left: int | None = None

    @property
    def has_sendable(self) -> bool:
        """Whether data waits, and not for the window of the stream itself."""
        return self.unsent is not None and self.send_window > 0


S = TypeVar("S", bound=Stream)


class StreamHandler(Protocol[S]):
    """Creates streams and handles their events, within `Http2Connection.receive`."""

    def create_stream(self, stream_id: int, send_window: int, receive_window: int) -> S:
        """Return the object for a new stream; see `Stream`."""

    def on_request(self, stream: S, head: RequestHead) -> None:
        """Handle the fields of a new stream. If it ends with them, `on_data` is called next."""

    def on_data(self, stream: S, data: bytes) -> None:
        """Handle data; it is the last if `stream.is_remote_ended`, and may then be empty."""

    def on_reset(self, stream: S) -> None:
        """Handle that a stream is over because of its client or of an error in its frames."""

    def on_writable(self, stream: S) -> None:
        """Handle that none of the stream's data waits any more."""
