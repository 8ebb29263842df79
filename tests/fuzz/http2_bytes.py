"""Fuzz seeds and checks of HTTP/2 and gRPC framing: bytes of clients."""

from __future__ import annotations

import asyncio
import functools
import gzip
import logging
from typing import Final

import hpack

from kourou.errors import Http2Error, MalformedHeaderError
from kourou.http2 import frames
from kourou.http2.calls import Call, Kind, Method
from kourou.http2.frames import Setting
from kourou.http2.grpc_messages import MessageReader, parse_timeout, percent_encode
from kourou.http2.headers import HeaderDecoder, are_trailers, request_head
from kourou.http2.limits import GrpcLimits, Http2Limits
from kourou.http2.server import GrpcServer
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from tests.http2.echo_handler import Rig
from tests.http2.peer import REQUEST, Peer, frame, message, settings

MESSAGE_MAX: Final = 100_000
_LIMITS: Final = Http2Limits(
    streams_max=20, cheap_frames_burst=200, stream_window_bytes=65_535,
    connection_window_bytes=65_535,
)  # fmt: skip
_HELD_MAX: Final = frames.HEAD_BYTES + frames.FRAME_BYTES_MAX + _LIMITS.header_block_bytes_max
_UNKNOWN_KIND: Final = 10
_PATHS: Final = ("/t.Echo/Unary", "/t.Echo/Bidi", "/t.Echo/Stream")


@functools.cache
def conversations() -> tuple[bytes, ...]:
    """Return what clients send after the preface."""
    peer = Peer()
    block = Peer().encoder.encode(REQUEST)
    window = frame(frames.WINDOW_UPDATE, 0, 0, b"\0\1\0\0")
    packed = message(gzip.compress(bytes(5000), mtime=0), flag=1)
    return (
        settings() + b"".join(Peer().call(1, b"abc", path) for path in _PATHS[:1]) + window,
        settings((Setting.INITIAL_WINDOW_SIZE, 9), (Setting.MAX_FRAME_SIZE, 20_000))
        + peer.headers(1, [(n, v if n != ":path" else _PATHS[1]) for n, v in REQUEST])
        + peer.data(1, message(b"one") + message(b"two")[:4])
        + frame(frames.PING, 0, 0, bytes(8))
        + peer.data(1, message(b"two")[4:], ends=True)
        + frame(frames.WINDOW_UPDATE, 0, 1, b"\0\0\1\0"),
        settings()
        + frame(frames.HEADERS, 0x20, 1, b"\0\0\0\0\x10" + block[:9])
        + frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[9:])
        + frame(frames.DATA, frames.PADDED, 1, b"\x02" + message(b"x" * 60) + bytes(2))
        + frame(frames.RST_STREAM, 0, 1, bytes(4))
        + frame(frames.PRIORITY, 0, 3, b"\0\0\0\1\x10"),
        settings()
        + Peer().headers(1, [*REQUEST, ("grpc-encoding", "gzip"), ("grpc-timeout", "1S")])
        + Peer().data(1, packed, ends=True)
        + frame(frames.SETTINGS, frames.ACK, 0)
        + frame(frames.GOAWAY, 0, 0, bytes(8)),
    )


@functools.cache
def programs() -> tuple[bytes, ...]:
    """Return inputs of `sequence`: kind, flags, stream, size of the payload, payload."""
    block = Peer().encoder.encode(REQUEST)
    data = message(b"hello")
    call = bytes((frames.HEADERS, frames.END_HEADERS, 1, len(block))) + block
    call += bytes((frames.DATA, frames.END_STREAM, 1, len(data))) + data
    others = bytes((frames.PING, 0, 0, 8)) + bytes(8)
    others += bytes((frames.WINDOW_UPDATE, 0, 1, 4, 0, 0, 1, 0))
    others += bytes((frames.SETTINGS, 0, 0, 6, 0, 4, 0, 0, 0, 9))
    return (call, call + others, others + call * 3)


@functools.cache
def header_blocks() -> tuple[bytes, ...]:
    """Return inputs of `header_block`: blocks of one connection, each after its size."""
    encoder = hpack.Encoder()
    blocks = [encoder.encode([*REQUEST, ("x-mq-request-id", str(number))]) for number in range(3)]
    blocks.append(hpack.Encoder().encode(REQUEST, huffman=False))
    return (b"".join(bytes((len(one),)) + one for one in blocks),)


def connection(data: bytes) -> None:
    """Receive bytes at once and in pieces.

    Raises:
        Http2Error: the connection was closed.
    """
    whole, split = (Rig(_LIMITS) for _ in range(2))
    whole.connection.receive(frames.PREFACE + data)
    at = 0
    for piece in (1, len(frames.PREFACE), 3, len(data)):
        split.connection.receive((frames.PREFACE + data)[at : at + piece])
        at += piece
    assert split.events == whole.events
    assert split.connection.close_reason == whole.connection.close_reason
    assert whole.connection.held_bytes <= _HELD_MAX
    assert len(whole.connection.streams) <= _LIMITS.streams_max
    outgoing = whole.connection.outgoing
    assert outgoing.unsent_bytes == sum(
        stream.unsent_bytes for stream in whole.connection.streams.values()
    )
    assert outgoing.take() == split.connection.outgoing.take()
    if whole.connection.is_closed:
        raise Http2Error(0, whole.connection.close_reason)


def sequence(data: bytes) -> None:
    """Receive well-formed frames in any order; see `programs`.

    Raises:
        Http2Error: the connection was closed.
    """
    sent = [settings()]
    at = 0
    while len(data) - at >= 4:
        kind, flags, stream_id, size = data[at : at + 4]
        payload = data[at + 4 : at + 4 + size]
        at += 4 + size
        sent.append(frame(kind % (_UNKNOWN_KIND + 1), flags, stream_id & 0x0F, payload))
    connection(b"".join(sent))


def calls(data: bytes) -> None:
    """Serve bytes as gRPC calls.

    Raises:
        Http2Error: the connection was closed.
    """
    _, reason = served(data)
    if reason:
        raise Http2Error(0, reason)


def served(data: bytes) -> tuple[bytes, str]:
    """Serve bytes as gRPC calls; return what is written, and why the connection was closed."""
    log = logging.getLogger("kourou.http2.grpc_connection")
    log.disabled = True  # it names each violation
    try:
        return run_virtual(_serve(frames.PREFACE + data))
    finally:
        log.disabled = False


def echoed(data: bytes) -> tuple[list[tuple[object, ...]], str, bytes]:
    """Receive bytes; return the events, why the connection was closed, and what is sent."""
    rig = Rig(_LIMITS)
    rig.connection.receive(frames.PREFACE + data)
    return rig.events, rig.connection.close_reason, rig.connection.outgoing.take()


class _Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


async def _serve(data: bytes) -> tuple[bytes, str]:
    def reply(call: Call, request: bytes) -> None:
        call.reply(request)

    def stream(call: Call, request: bytes) -> None:
        call.send(request)
        call.on_writable = call.finish

    def converse(call: Call, _: bytes) -> None:
        call.on_message = call.send
        call.on_end = call.finish

    kinds = ((Kind.UNARY, reply), (Kind.BIDI, converse), (Kind.SERVER_STREAM, stream))
    methods = {path: Method(*method) for path, method in zip(_PATHS, kinds, strict=True)}
    limits = GrpcLimits(http2=_LIMITS, message_bytes_max=MESSAGE_MAX)
    server = GrpcServer(MemoryNetwork(), methods, limits)
    connected = server.create()
    transport = _Transport()
    connected.connection_made(transport)
    for at in range(0, len(data), len(connected.get_buffer(-1))):
        buffer = connected.get_buffer(-1)
        piece = data[at : at + len(buffer)]
        buffer[: len(piece)] = piece
        connected.buffer_updated(len(piece))
        while connected.http2.has_more:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    shared = server.shared
    assert shared.memory.total_bytes <= len(data) + 20 * MESSAGE_MAX
    reason = connected.http2.close_reason
    connected.connection_lost(None)
    await asyncio.sleep(20)  # the deadlines of calls
    assert shared.memory.total_bytes == shared.partials.total_bytes == shared.unread.total == 0
    assert server.calls == shared.calls.open_bytes == 0
    server.abort()
    return bytes(transport.written), reason


def header_block(data: bytes) -> None:
    """Decode header blocks as the package hpack does."""
    decoder, reference = HeaderDecoder(), hpack.Decoder()
    at = 0
    while at < len(data):
        block = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        fields = decoder.decode(block)
        request_head(fields)
        are_trailers(fields)
        try:
            expected = reference.decode(block, raw=True)
        except (hpack.HPACKError, IndexError) as error:
            raise AssertionError(f"hpack refuses {block.hex()}: {error}") from error
        assert [(name, value) for name, value, _, _ in fields] == [
            (bytes(name), bytes(value)) for name, value in expected
        ]


def messages(data: bytes) -> None:
    """Read messages, compressed or not, from any pieces."""
    whole = list(MessageReader(b"gzip", MESSAGE_MAX).feed(data))
    assert all(len(one) <= MESSAGE_MAX for one in whole)
    reader = MessageReader(b"gzip", MESSAGE_MAX)
    pieces = [one for at in range(0, len(data), 997) for one in reader.feed(data[at : at + 997])]
    assert pieces == whole


def timeout(data: bytes) -> None:
    """Parse a time limit, and encode the bytes as a status text."""
    if parse_timeout(data) is None:
        raise MalformedHeaderError("no time limit")
    assert percent_encode(data.decode("utf-8", "replace")).isascii()
