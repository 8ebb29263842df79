"""The client's side of HTTP/2 for tests: builds frames, and parses those of the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import hpack

from kourou.http2 import frames

Headers = list[tuple[str, str]]

REQUEST: Headers = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.Echo/Unary"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


@dataclass(frozen=True)
class Frame:
    """One frame; `fields` are those of a HEADERS frame."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes
    fields: dict[str, str]

    @property
    def ends(self) -> bool:
        """Whether it is the last frame of its stream."""
        return bool(self.flags & frames.END_STREAM) and self.kind in (frames.DATA, frames.HEADERS)

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        assert self.kind in (frames.RST_STREAM, frames.GOAWAY), self
        return int.from_bytes(self.payload[-4:] if len(self.payload) == 4 else self.payload[4:8])


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return frames.frame_head(len(payload), kind, flags, stream_id) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(frames.SETTING.pack(number, value) for number, value in pairs)
    return frame(frames.SETTINGS, 0, 0, payload)


def message(data: bytes, *, flag: int = 0) -> bytes:
    """Return a gRPC message with its prefix."""
    return bytes([flag]) + len(data).to_bytes(4) + data


class Peer:
    """Encodes what a client sends and decodes what it receives, on one connection."""

    def __init__(self) -> None:
        self.encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._held = b""

    def preface(self, *pairs: tuple[int, int]) -> bytes:
        """Return the first bytes of a connection."""
        return frames.PREFACE + settings(*pairs)

    def headers(
        self, stream_id: int, fields: Headers | None = None, *, ends: bool = False
    ) -> bytes:
        """Return a HEADERS frame with a whole block."""
        block = self.encoder.encode(REQUEST if fields is None else fields)
        flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
        return frame(frames.HEADERS, flags, stream_id, block)

    def data(self, stream_id: int, data: bytes, *, ends: bool = False) -> bytes:
        """Return DATA frames."""
        pieces = [data[at : at + 16_384] for at in range(0, len(data), 16_384)] or [b""]
        flags = [0] * (len(pieces) - 1) + [frames.END_STREAM if ends else 0]
        return b"".join(
            frame(frames.DATA, flag, stream_id, piece)
            for flag, piece in zip(flags, pieces, strict=True)
        )

    def call(
        self, stream_id: int, request: bytes = b"", path: str = "/t.Echo/Unary", **more: str
    ) -> bytes:
        """Return a whole unary call."""
        fields = [(name, path if name == ":path" else value) for name, value in REQUEST]
        fields += [(name.replace("_", "-"), value) for name, value in more.items()]
        return self.headers(stream_id, fields) + self.data(stream_id, message(request), ends=True)

    def parse(self, data: bytes) -> list[Frame]:
        """Return the whole frames of the server's bytes, in order."""
        return list(self._parse(data))

    def _parse(self, data: bytes) -> Iterator[Frame]:
        data = self._held + data
        at = 0
        while len(data) - at >= frames.HEAD_BYTES:
            high, low, kind, flags, stream_id = frames.FRAME_HEAD.unpack_from(data, at)
            end = at + frames.HEAD_BYTES + (high << 16 | low)
            if end > len(data):
                break
            payload = data[at + frames.HEAD_BYTES : end]
            fields: dict[str, str] = {}
            if kind == frames.HEADERS:
                assert flags & frames.END_HEADERS
                fields = {str(n): str(v) for n, v in self._decoder.decode(payload)}
            yield Frame(kind, flags, stream_id, payload, fields)
            at = end
        self._held = data[at:]


def of_stream(received: Iterable[Frame], stream_id: int) -> list[Frame]:
    """Return the frames of a stream."""
    return [one for one in received if one.stream_id == stream_id]


def of_kind(received: Iterable[Frame], kind: int) -> list[Frame]:
    """Return the frames of a type."""
    return [one for one in received if one.kind == kind]


def body(received: Iterable[Frame], stream_id: int) -> bytes:
    """Return the data of a stream."""
    return b"".join(one.payload for one in of_kind(of_stream(received, stream_id), frames.DATA))


def trailers(received: Iterable[Frame], stream_id: int) -> dict[str, str]:
    """Return the fields of the last HEADERS frame of a stream, which ends it."""
    last = of_kind(of_stream(received, stream_id), frames.HEADERS)[-1]
    assert last.ends
    return last.fields


def goaway(received: Iterable[Frame]) -> tuple[int, str]:
    """Return code and text of the only GOAWAY frame."""
    (found,) = of_kind(received, frames.GOAWAY)
    return found.code, found.payload[8:].decode()
