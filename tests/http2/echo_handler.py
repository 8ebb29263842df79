"""A handler of streams for tests: records events and echoes data."""

from __future__ import annotations

from kourou.http2.connection import Http2Connection
from kourou.http2.frames import header_frame
from kourou.http2.headers import RequestHead, encode_response
from kourou.http2.limits import Http2Limits
from kourou.http2.streams import Stream
from tests.http2.peer import Frame, Peer

HEAD = header_frame(encode_response({"content-type": "application/grpc"}, 200), ends=False)
END = header_frame(encode_response({"grpc-status": "0"}), ends=True)


class EchoHandler:
    """Echoes the data of each stream and ends it after the client; records all events."""

    def __init__(self, *, echoes: bool = True) -> None:
        self.events: list[tuple[object, ...]] = []
        self.echoes = echoes
        self.opens_windows = True
        self.connection: Http2Connection

    def create_stream(self, stream_id: int, send_window: int, receive_window: int) -> Stream:
        return Stream(stream_id, send_window, receive_window)

    def on_request(self, stream: Stream, head: RequestHead) -> None:
        self.events.append(("request", stream.id, head.path, len(head.fields)))
        if self.echoes:
            self.connection.outgoing.put_headers(stream, HEAD)

    def on_data(self, stream: Stream, data: bytes) -> None:
        self.events.append(("data", stream.id, data, stream.is_remote_ended))
        if self.opens_windows:
            self.connection.raise_window(stream, 256 * 1024)
        if self.echoes:
            self.connection.outgoing.put_data(stream, data)
            if stream.is_remote_ended:
                self.connection.outgoing.put_headers(stream, END, ends=True)

    def on_reset(self, stream: Stream) -> None:
        self.events.append(("reset", stream.id))

    def on_writable(self, stream: Stream) -> None:
        self.events.append(("writable", stream.id))


class Rig:
    """A connection, its handler, its client and a clock."""

    def __init__(self, limits: Http2Limits | None = None, *, echoes: bool = True) -> None:
        self.now_s = 0.0
        self.handler = EchoHandler(echoes=echoes)
        self.connection = Http2Connection(limits or Http2Limits(), self.handler, lambda: self.now_s)
        self.handler.connection = self.connection
        self.peer = Peer()

    @property
    def events(self) -> list[tuple[object, ...]]:
        """The events of the handler."""
        return self.handler.events

    def open(self, *settings: tuple[int, int]) -> Rig:
        """Exchange the first frames; return the rig."""
        self.exchange(self.peer.preface(*settings))
        return self

    def exchange(self, data: bytes) -> list[Frame]:
        """Receive bytes; return the frames that are sent."""
        self.connection.receive(data)
        return self.output()

    def output(self) -> list[Frame]:
        """Return the queued frames, and queue data that waited for room in the queue."""
        data = b""
        while self.connection.outgoing.pending_bytes:
            data += self.connection.outgoing.take()
            self.connection.outgoing.resume()
        return self.peer.parse(data)
