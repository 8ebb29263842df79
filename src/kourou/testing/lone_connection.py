"""A real `Connection` on a recording transport: the test supplies reads and inspects writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.remoting.connection import Connection, FastPath, Request
from kourou.remoting.connections import Connections
from kourou.remoting.dispatch import Dispatcher, Handler
from kourou.remoting.limits import ConnectionLimits


class RecordingTransport(asyncio.Transport):
    """A transport that records writes and delivers nothing.

    Attributes:
        writes: each write, in order.
        on_write: called after each write; may call `pause_writing`, as a full transport does.
        ending: "close" or "abort", by the last of these calls; empty before.
    """

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.2", 5), "sockname": ("10.0.0.1", 6)})
        self.writes: list[bytes] = []
        self.on_write: Callable[[], None] | None = None
        self._is_reading = True
        self.ending = ""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writes.append(bytes(data))
        if self.on_write is not None:
            self.on_write()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: `on_write` simulates a full buffer."""

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True

    def is_reading(self) -> bool:
        return self._is_reading

    def close(self) -> None:
        self.ending = "close"

    def abort(self) -> None:
        self.ending = "abort"


class LoneConnection:
    """One connection without a peer; create it inside a running loop.

    Args:
        handlers: request code to handler, or a function that receives all requests.
        fast_path: tried before the handlers.
        is_accepted: whether it is a server's side.
        timer: see `Connections`.
        limits: replaces default limits.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler] | Callable[[Request], None],
        fast_path: FastPath | None = None,
        timer: Callable[[], float] = lambda: 0.0,
        /,
        *,
        is_accepted: bool = True,
        **limits: int,
    ) -> None:
        self._connections = Connections(
            handlers if callable(handlers) else Dispatcher(handlers),
            ConnectionLimits(**limits),
            is_accepting=is_accepted,
            fast_path=fast_path,
            timer=timer,
        )
        self.connection: Connection = self._connections.create()
        self.transport = RecordingTransport()
        self.connection.connection_made(self.transport)

    def receive(self, *commands: RemotingCommand) -> None:
        """Receive the frames of `commands` in one read."""
        self.receive_bytes(b"".join(map(encode_frame, commands)))

    def receive_bytes(self, data: bytes) -> None:
        """Receive `data` in as few reads as possible."""
        rest = memoryview(data)
        while rest:
            space = self.connection.get_buffer(-1)
            size = min(len(rest), len(space))
            space[:size] = rest[:size]
            self.connection.buffer_updated(size)
            rest = rest[size:]

    def sent(self) -> list[RemotingCommand]:
        """Return the frames of all writes so far."""
        stream = b"".join(self.transport.writes)
        found = []
        while stream:
            end = 4 + int.from_bytes(stream[:4], "big")
            found.append(decode_frame(stream[4:end]))
            stream = stream[end:]
        return found

    def end(self) -> None:
        """End the connection like a failed network, if it has not ended."""
        if len(self._connections):
            self.connection.connection_lost(None)
