"""A gRPC client for tests: one HTTP/2 connection on any `Network`, in any event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Self, cast
from urllib.parse import unquote

from hpack import Decoder, Encoder

from kourou.http2 import frames
from kourou.http2.grpc_messages import GrpcStatus, MessageReader, message_prefix
from kourou.proxy.pb.pool import Method, methods, parse
from kourou.remoting.network import Address, Network

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
METHODS: Final[dict[str, Method]] = {
    method.path.rpartition("/")[2]: method
    for method in (*methods(SERVICE), *methods("grpc.health.v1.Health"))
}
_ANSWER_S: Final = 60.0
"""Limit of a wait for an answer."""
_BUFFER_BYTES: Final = 256 * 1024
_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_WINDOW_GROWTH: Final = frames.WINDOW_BYTES_MAX - frames.WINDOW_BYTES


class ClientCall:
    """One call.

    Attributes:
        messages: the answers that were not read yet.
        status: gRPC's; None until the call is over.
        text: of the status.
        is_reset: the server reset the stream.
    """

    def __init__(self, client: GrpcClient, stream_id: int, method: Method, window: int) -> None:
        self._client = client
        self._id = stream_id
        self._method = method
        self._reader = MessageReader(b"", _MESSAGE_BYTES_MAX)
        self.window = window
        self.unsent = bytearray()
        self.ends = False
        self.messages: deque[Any] = deque()
        self.status: GrpcStatus | None = None
        self.text = ""
        self.is_reset = False
        self.changed = asyncio.Event()

    def send(self, message: Any, *, ends: bool = False) -> None:
        """Send a message, or the bytes of one."""
        data = message if isinstance(message, bytes) else message.SerializeToString()
        self.unsent += message_prefix(len(data)) + data
        self.ends = ends
        self._client.pump(self._id)

    def end(self) -> None:
        """Send no more."""
        self._client.write_frame(frames.DATA, frames.END_STREAM, self._id, b"")

    def read_on(self, size: int) -> None:
        """Let the server send `size` bytes more than the window of the call."""
        self._client.write(frames.window_frame(self._id, size))

    def cancel(self) -> None:
        """Cancel the call."""
        self._client.write(frames.reset_frame(self._id, frames.ErrorCode.CANCEL))
        self.over(GrpcStatus.CANCELLED, "")

    @property
    def is_over(self) -> bool:
        """Whether no answer follows those in `messages`."""
        return self.status is not None

    async def next(self) -> Any:
        """Return the next answer; None at the end of the call."""
        while not self.messages and not self.is_over:
            self.changed.clear()
            async with asyncio.timeout(_ANSWER_S):
                await self.changed.wait()
        return self.messages.popleft() if self.messages else None

    async def rest(self) -> list[Any]:
        """Return all answers that follow."""
        found = []
        while (message := await self.next()) is not None:
            found.append(message)
        return found

    # Called by the connection

    def feed(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            self.messages.append(parse(self._method.response, message))
        self.changed.set()

    def over(self, status: GrpcStatus, text: str) -> None:
        if self.status is None:
            self.status, self.text = status, text
            self.changed.set()


class GrpcClient(asyncio.BufferedProtocol):
    """One connection. Closing it loses all its calls.

    Attributes:
        metadata: sent with every call.
        is_closed: whether the connection has ended.
        is_draining: the server accepts no more calls.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.is_closed = False
        self.is_draining = False
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._received = bytearray()
        self._encoder, self._decoder = Encoder(), Decoder()
        self._calls: dict[int, ClientCall] = {}
        self._next_id = 1
        self._window = self._stream_window = frames.WINDOW_BYTES

    @classmethod
    async def connect(
        cls,
        network: Network,
        address: Address,
        metadata: Mapping[str, str] | None = None,
        window: int = frames.WINDOW_BYTES_MAX,
    ) -> Self:
        """Return a client that is connected to `address`, and reads `window` bytes of each call."""
        client = cast(Self, await network.connect(address, cls, 3.0))
        client.metadata = dict(metadata or {})
        settings = {frames.Setting.INITIAL_WINDOW_SIZE: window}
        client.write(frames.PREFACE + frames.settings_frame(settings))
        client.write(frames.window_frame(0, _WINDOW_GROWTH))
        return client

    def open(
        self,
        rpc: str | Method,
        timeout_s: float | None = 10.0,
        metadata: Mapping[str, str] | None = None,
    ) -> ClientCall:
        """Begin a call; `metadata` replaces the client's."""
        method = METHODS[rpc] if isinstance(rpc, str) else rpc
        stream_id, self._next_id = self._next_id, self._next_id + 2
        call = self._calls[stream_id] = ClientCall(self, stream_id, method, self._stream_window)
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method.path,
            ":authority": "proxy",
            "te": "trailers",
            "content-type": "application/grpc",
            **(self.metadata if metadata is None else metadata),
        }
        if timeout_s is not None:
            fields["grpc-timeout"] = f"{int(timeout_s * 1000)}m"
        block = self._encoder.encode(list(fields.items()))
        self.write_frame(frames.HEADERS, frames.END_HEADERS, stream_id, block)
        return call

    async def call(
        self,
        rpc: str,
        message: Any,
        timeout_s: float | None = 10.0,
    ) -> Any:
        """Return the answer of a unary call."""
        call = self.open(rpc, timeout_s)
        call.send(message, ends=True)
        answers = await call.rest()
        assert call.status is GrpcStatus.OK, f"{rpc}: {call.status!r} {call.text}"
        [answer] = answers
        return answer

    def close(self) -> None:
        """Close the connection."""
        assert self._transport is not None
        self._transport.close()

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def write_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.write(frames.frame_head(len(payload), kind, flags, stream_id) + payload)

    def pump(self, stream_id: int) -> None:
        """Send as much of a call's messages as the windows allow."""
        call = self._calls[stream_id]
        while call.unsent:
            size = min(len(call.unsent), self._window, call.window, frames.FRAME_BYTES_MAX)
            if size <= 0:
                return
            piece = bytes(call.unsent[:size])
            del call.unsent[:size]
            self._window -= size
            call.window -= size
            is_last = call.ends and not call.unsent
            self.write_frame(frames.DATA, frames.END_STREAM if is_last else 0, stream_id, piece)

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received += self._buffer[:nbytes]
        while len(self._received) >= frames.HEAD_BYTES:
            size = int.from_bytes(self._received[:3], "big")
            end = frames.HEAD_BYTES + size
            if len(self._received) < end:
                return
            kind, flags = self._received[3], self._received[4]
            stream_id = int.from_bytes(self._received[5 : frames.HEAD_BYTES], "big")
            payload = bytes(self._received[frames.HEAD_BYTES : end])
            del self._received[:end]
            self._on_frame(kind, flags, stream_id, payload)

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        """Write on: the data of tests is small."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        for call in self._calls.values():
            call.over(GrpcStatus.UNAVAILABLE, "the connection was lost")
        self._calls.clear()

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        call = self._calls.get(stream_id)
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self._on_settings(payload)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window(stream_id, int.from_bytes(payload, "big"))
        elif kind == frames.HEADERS:
            fields = {
                bytes(name): bytes(value).decode()
                for name, value in self._decoder.decode(payload, raw=True)
            }
            if call is not None and b"grpc-status" in fields:
                status = GrpcStatus(int(fields[b"grpc-status"]))
                call.over(status, unquote(fields.get(b"grpc-message", "")))
        elif kind == frames.DATA and call is not None:
            call.feed(payload)
        elif kind == frames.GOAWAY:
            self.is_draining = True
        elif kind == frames.RST_STREAM and call is not None:
            call.is_reset = True
            call.over(GrpcStatus.CANCELLED, f"reset with {int.from_bytes(payload, 'big')}")

    def _on_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            number = int.from_bytes(payload[at : at + 2], "big")
            if number == frames.Setting.INITIAL_WINDOW_SIZE:
                window = int.from_bytes(payload[at + 2 : at + 6], "big")
                for call in self._calls.values():
                    call.window += window - self._stream_window
                self._stream_window = window
        self.write(frames.SETTINGS_ACK)
        self._pump_all()

    def _on_window(self, stream_id: int, size: int) -> None:
        if stream_id == 0:
            self._window += size
        elif stream_id in self._calls:
            self._calls[stream_id].window += size
        self._pump_all()

    def _pump_all(self) -> None:
        for stream_id, call in self._calls.items():
            if call.unsent:
                self.pump(stream_id)
