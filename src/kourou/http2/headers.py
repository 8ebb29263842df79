"""Header blocks: requests are decoded and checked, responses encoded without a dynamic table.

A client repeats most header blocks byte for byte. A block that does not change the decoder's table
is decoded once, and then found by its bytes until the table changes. Responses use only the static
table and literals, so their blocks are constants.

Source: RFC 9113, sections 8.2 and 8.3; RFC 7541.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hpack import Decoder, HPACKError, InvalidTableSizeError, OversizedHeaderListError
from hpack.table import HeaderTable

from kourou.errors import ProtocolError

_CACHED_MAX: Final = 64
"""Blocks that are found by their bytes, a connection."""
_CACHED_BYTES_MAX: Final = 1024
_REQUEST_FIELDS: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_REQUIRED_FIELDS: Final = (b":method", b":scheme", b":path")
_CONNECTION_FIELDS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_LITERAL: Final = 0x00
"""First byte of a field with a new name that enters no table."""
_STATUS_200: Final = b"\x88"
_INTEGER_7: Final = 127


class HeadersTooLargeError(ProtocolError):
    """The fields of a request exceed the limit, so that the connection's table is unknown now."""


class CompressionError(ProtocolError):
    """A header block is not valid HPACK."""


class MalformedRequestError(ProtocolError):
    """The fields are not those of a request."""


class RequestHead(NamedTuple):
    """The fields of a request.

    Attributes:
        path: the value of `:path`.
        fields: the fields that are not pseudo-fields, in order.
        content_length: None if it is not given.
    """

    path: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    content_length: int | None


class _Table(HeaderTable):
    """A dynamic table that counts its changes."""

    def __init__(self) -> None:
        self.changes = 0
        super().__init__()

    def add(self, name: bytes, value: bytes) -> None:
        self.changes += 1
        super().add(name, value)

    def _shrink(self) -> None:
        self.changes += 1
        super()._shrink()


class HeaderDecoder:
    """Decodes the header blocks of one connection, in order."""

    def __init__(self, list_bytes_max: int) -> None:
        """Decode blocks whose fields have at most `list_bytes_max` bytes, 32 more for each."""
        self._decoder = Decoder(list_bytes_max)
        self._table = self._decoder.header_table = _Table()
        self._cached: dict[bytes, tuple[tuple[bytes, bytes], ...]] = {}

    def decode(self, block: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """Return the fields of a block.

        Raises:
            CompressionError, HeadersTooLargeError: the connection cannot be used further.
        """
        cached = self._cached.get(block)
        if cached is not None:
            return cached
        before = self._table.changes
        try:
            decoded = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise HeadersTooLargeError(str(error)) from None
        except (HPACKError, InvalidTableSizeError, IndexError, ValueError) as error:
            raise CompressionError(f"header block of {len(block)} bytes: {error}") from None
        fields = tuple([(bytes(name), bytes(value)) for name, value in decoded])
        if self._table.changes != before:
            self._cached.clear()
        elif len(block) <= _CACHED_BYTES_MAX:
            if len(self._cached) >= _CACHED_MAX:
                self._cached.clear()
            self._cached[block] = fields
        return fields


def request_head(fields: tuple[tuple[bytes, bytes], ...]) -> RequestHead:
    """Return the fields of a request by their meaning.

    Raises:
        MalformedRequestError: as RFC 9113, 8.2 and 8.3.1, demands.
    """
    pseudo: dict[bytes, bytes] = {}
    plain: list[tuple[bytes, bytes]] = []
    length: int | None = None
    for field in fields:
        name, value = field
        if name[:1] == b":":
            if plain or name in pseudo or name not in _REQUEST_FIELDS:
                raise MalformedRequestError(f"field {name!r} is repeated, misplaced or unknown")
            pseudo[name] = value
            continue
        _check_field(name, value)
        if name == b"content-length":
            if not value.isdigit():
                raise MalformedRequestError(f"content-length {value!r} is not a number")
            length = int(value)
        plain.append(field)
    for name in _REQUIRED_FIELDS:
        if not pseudo.get(name):
            raise MalformedRequestError(f"field {name!r} is missing or empty")
    return RequestHead(pseudo[b":path"], tuple(plain), length)


def check_trailers(fields: tuple[tuple[bytes, bytes], ...]) -> None:
    """Raise if fields may not follow a body.

    Raises:
        MalformedRequestError: one is a pseudo-field, or not allowed in HTTP/2.
    """
    for name, value in fields:
        if name[:1] == b":":
            raise MalformedRequestError(f"field {name!r} follows the body")
        _check_field(name, value)


def _check_field(name: bytes, value: bytes) -> None:
    if not name or name != name.lower():
        raise MalformedRequestError(f"name of field {name!r} is empty or not in lower case")
    if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
        raise MalformedRequestError(f"field {name!r}: {value!r} is not allowed in HTTP/2")


def encode_response(fields: dict[str, str], *, has_status: bool) -> bytes:
    """Return the block of a response's fields, or of its trailers without `has_status`.

    `:status` is 200. Names are in lower case; values must be visible ASCII characters.
    """
    block = bytearray(_STATUS_200 if has_status else b"")
    for name, value in fields.items():
        block.append(_LITERAL)
        _put_text(block, name.encode("ascii"))
        _put_text(block, value.encode("ascii"))
    return bytes(block)


def _put_text(block: bytearray, text: bytes) -> None:
    """Append a text with its length (RFC 7541, 5.1 and 5.2), not in Huffman's code."""
    length = len(text)
    if length < _INTEGER_7:
        block.append(length)
    else:
        block.append(_INTEGER_7)
        length -= _INTEGER_7
        while length >= 128:
            block.append(length & 127 | 128)
            length >>= 7
        block.append(length)
    block += text
