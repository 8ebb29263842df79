r"""The PROXY preamble, in which a load balancer sends a server the address of the real client.

    version   form
    1         `PROXY TCP4 192.0.2.7 10.0.0.1 51234 10911\r\n`, at most 107 bytes
    2         12 bytes of signature, version and command, family, length (2 bytes), addresses, TLVs

It precedes everything else, TLS included. Any client could send it, so it is read only from trusted
addresses; Java reads it from any. The TLVs that version 2 may add are ignored.

Source: the PROXY protocol's specification of HAProxy; ProtocolDetectionHandler in Netty's codec.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

from kourou.decimals import decimal_or
from kourou.errors import MalformedFrameError

_V1: Final = b"PROXY "
_V1_BYTES_MAX: Final = 107
_V2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED: Final = struct.Struct(">12sBBH")
_TCP4: Final = 0x11
_TCP6: Final = 0x21
_LOCAL: Final = 0x20
_PROXIED: Final = 0x21
_V1_WORDS: Final = 6

FIRST_BYTES: Final = (_V1[0], _V2[0])
"""The possible first bytes of a preamble. No frame starts so, because its length would be above
200 MB; nor does a TLS hello."""


def preamble_bytes(head: bytes) -> int | None:
    """Return the size of the preamble that `head` begins with; None if more bytes are needed.

    Raises:
        MalformedFrameError: `head` does not begin with a preamble.
    """
    if head[:1] == _V1[:1]:
        if head[: len(_V1)] != _V1[: len(head)]:
            raise MalformedFrameError("malformed PROXY preamble of version 1: wrong signature")
        end = head.find(b"\r\n", 0, _V1_BYTES_MAX)
        if end < 0 and len(head) >= _V1_BYTES_MAX:
            raise MalformedFrameError(f"PROXY preamble without an end in {_V1_BYTES_MAX} bytes")
        return None if end < 0 else end + 2
    if head[: len(_V2)] != _V2[: len(head)]:
        raise MalformedFrameError("malformed PROXY preamble of version 2: wrong signature")
    if len(head) < _V2_FIXED.size:
        return None
    length: int = _V2_FIXED.unpack_from(head)[3]
    return _V2_FIXED.size + length


def claimed_source(preamble: bytes) -> tuple[str, int] | None:
    """Return the client address in a complete preamble; None: the proxy's own connection or no TCP.

    Raises:
        MalformedFrameError: the preamble violates its version's format.
    """
    return _source_v1(preamble) if preamble.startswith(_V1) else _source_v2(preamble)


def _source_v1(preamble: bytes) -> tuple[str, int] | None:
    words = preamble[:-2].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return None
    family = {"TCP4": socket.AF_INET, "TCP6": socket.AF_INET6}.get(words[1])
    if family is None or len(words) != _V1_WORDS:
        raise MalformedFrameError("PROXY preamble of version 1 without its six fields")
    host, port = words[2], words[4]
    try:
        socket.inet_pton(family, host)
    except (OSError, ValueError):
        raise MalformedFrameError(f"PROXY preamble: {host!r} is not a {words[1]} host") from None
    if not 0 <= decimal_or(port, -1) <= 65_535:
        raise MalformedFrameError(f"PROXY preamble: {port!r} is not a port from 0 to 65535")
    return host, int(port)


def _source_v2(preamble: bytes) -> tuple[str, int] | None:
    _, command, family, length = _V2_FIXED.unpack_from(preamble)
    if command == _LOCAL:
        return None  # a health check of the proxy itself
    if command != _PROXIED:
        raise MalformedFrameError(f"PROXY preamble: unknown version or command 0x{command:02x}")
    if family not in (_TCP4, _TCP6):
        return None
    kind, host_bytes = (socket.AF_INET, 4) if family == _TCP4 else (socket.AF_INET6, 16)
    if length < 2 * host_bytes + 4:
        raise MalformedFrameError(
            f"PROXY preamble with {length} bytes of addresses: expected {2 * host_bytes + 4}"
        )
    at = _V2_FIXED.size
    host = socket.inet_ntop(kind, preamble[at : at + host_bytes])
    (port,) = struct.unpack_from(">H", preamble, at + 2 * host_bytes)
    return host, port
