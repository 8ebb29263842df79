"""Bytes that no well-behaved peer sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Final

from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import FRAME_SIZE_MAX, encode_frame
from kourou.protocol.unserved import ALL_REQUESTS

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


def raw_frame(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    """Return a frame with the given header; `kind` 1 declares it as binary."""
    sizes = (4 + len(header) + len(body)).to_bytes(4, "big") + bytes([kind])
    return sizes + len(header).to_bytes(3, "big") + header + body


REFUSED: Final = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "a frame of 2 GB": INT32_MAX.to_bytes(4, "big") + b"x" * 1000,
    "a frame of -1 bytes": (2**32 - 1).to_bytes(4, "big"),
    "a frame of one byte too many": (FRAME_SIZE_MAX + 1).to_bytes(4, "big"),
    "a frame without a header": (3).to_bytes(4, "big") + b"abc",
    "a header longer than its frame": (8).to_bytes(4, "big") + b"\0\0\xff\xff{}{}",
    "an unknown serialization": raw_frame(b"{}", kind=7),
    "a binary header that is cut short": raw_frame(bytes(20), kind=1),
    "no json": raw_frame(b"{not json"),
    "a list": raw_frame(b"[1, 2]"),
    "no utf-8": raw_frame(b'{"code":\xff\xfe}'),
    "a code that is no number": raw_frame(b'{"code":"many"}'),
    "a code of 40 digits": raw_frame(b'{"code":' + b"9" * 40 + b"}"),
    "fields in fields": raw_frame(b'{"code":105,"extFields":{"topic":{"a":[1]}}}'),
    "deep nesting": raw_frame(b'{"code":105,"extFields":' + b"[" * 100_000),
}
"""Protocol violations, after which the server must close the connection."""

TEXTS: Final = (
    "", " ", "x", "null", "-1", "0", "1", str(INT32_MAX), str(INT64_MAX), "-9" + "9" * 40, "1e9",
    "true", "\0\1\2", "../../etc/passwd", "%RETRY%", "a" * 300, "\u4e2d\ufffd", "{}", "[" * 50,
)  # fmt: skip
BODIES: Final = (
    b"", b"{}", b"[]", b"null", b"\0" * 64, b"[" * 5000, b'{"a":' * 5000, b"\xff" * 100,
    b'{"clientID":{},"consumerDataSet":7,"producerDataSet":[[]]}',
    b'{"groupName":null,"retryQueueNums":99999999999}',
    b"\x7f\xff\xff\xff" + bytes(30),
)  # fmt: skip


def nonsense_requests(seed: int, count: int) -> Iterator[RemotingCommand]:
    """Yield complete requests of all known and some unknown codes, with nonsense values."""
    dice = Random(seed)
    codes = [*ALL_REQUESTS, 0, -1, 37, 39, 310, 320, 999, INT32_MAX]
    for opaque in range(count):
        code = codes[opaque % len(codes)]
        spec = ALL_REQUESTS.get(code)
        names = [] if spec is None or spec.header is None else _wire_names(spec.header)
        fields = {name: dice.choice(TEXTS) for name in names if dice.random() < 0.9}
        body = dice.choice(BODIES) if dice.random() < 0.7 else dice.randbytes(dice.randrange(200))
        yield RemotingCommand(code, fields, body, opaque=opaque, version=dice.choice((0, 513)))


def almost_right_requests(seed: int, count: int, topic: str) -> Iterator[RemotingCommand]:
    """Yield requests for `topic` with plausible fields, except one or two of them."""
    dice = Random(seed)
    plausible = {"topic": topic, "b": topic, "consumerGroup": "g", "group": "g", "a": "p"}
    codes = [code for code, spec in ALL_REQUESTS.items() if spec.header is not None]
    for opaque in range(count):
        code = codes[opaque % len(codes)]
        header = ALL_REQUESTS[code].header
        assert header is not None
        fields = {name: plausible.get(name, "0") for name in _wire_names(header)}
        for name in dice.sample(sorted(fields), min(len(fields), dice.randrange(3))):
            fields[name] = dice.choice(TEXTS)
        yield RemotingCommand(code, fields, dice.choice(BODIES), opaque=opaque, version=513)


def encoded(commands: Iterator[RemotingCommand]) -> list[bytes]:
    """Return the frames of `commands`."""
    return [encode_frame(command) for command in commands]


def _wire_names(header: type) -> list[str]:
    """Return the names of a header's fields on the wire."""
    return [
        field.metadata.get("wire") or _camel_case(field.name)
        for field in dataclasses.fields(header)
    ]


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
