"""Header blocks: requests are decompressed and checked, responses encoded without a dynamic table.

Each call of a real client has a field of its own, such as a request id, which most clients add to
the dynamic table. Whole blocks therefore never repeat. So the decoder is one loop, which checks a
field when it is read as a literal and keeps the verdict with the table's entry. Responses use only
the static table and literals, so that their blocks are constants.

Source: RFC 7541; RFC 9113, sections 8.2 and 8.3.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)
from hpack.table import HeaderTable

from kourou.decimals import is_decimal
from kourou.errors import MalformedHeaderError

TABLE_BYTES: Final = 4096
"""Size of the dynamic table without other settings."""

# Roles of fields: 0 is a field that only the program reads.
_INVALID: Final = 1
_METHOD: Final = 2
_SCHEME: Final = 3
_PATH: Final = 4
_AUTHORITY: Final = 5
_PSEUDO_LAST: Final = 5
_LENGTH: Final = 6
_TIMEOUT: Final = 7
_ENCODING: Final = 8
_CONTENT_TYPE: Final = 9
_TE: Final = 10

Field = tuple[bytes, bytes, int, int]
"""Name, value, role, and size as RFC 7541, 4.1 counts it."""

_ROLES: Final[dict[bytes, int]] = {
    b":method": _METHOD,
    b":scheme": _SCHEME,
    b":path": _PATH,
    b":authority": _AUTHORITY,
    b"content-length": _LENGTH,
    b"grpc-timeout": _TIMEOUT,
    b"grpc-encoding": _ENCODING,
    b"content-type": _CONTENT_TYPE,
    b"te": _TE,
    b"connection": _INVALID,
    b"keep-alive": _INVALID,
    b"proxy-connection": _INVALID,
    b"transfer-encoding": _INVALID,
    b"upgrade": _INVALID,
}
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_NUL: Final = 0
_LF: Final = 10
_CR: Final = 13
_FIELD_BYTES: Final = 32
_INTEGER_BYTES_MAX: Final = 5
_INTEGER_7: Final = 127
_NAMES_MAX: Final = 4096
_TEXTS_MAX: Final = 4096
_TEXT_BYTES_MAX: Final = 128
_STATIC_COUNT: Final = 61
_STATUSES: Final = {200: b"\x88", 415: b"\x08\x03415"}
_CONTENT_TYPE_INDEX: Final = b"\x0f\x10"
"""A literal that enters no table, with the name of entry 31 of the static table."""
_LITERAL: Final = b"\x00"
"""A literal with a new name that enters no table."""


class RequestHead(msgspec.Struct, frozen=True, gc=False):
    """The fields of a request.

    Attributes:
        path: the value of `:path`.
        method: the value of `:method`.
        authority: the value of `:authority`; empty if it is missing.
        timeout, encoding, content_type: values of `grpc-timeout`, `grpc-encoding` and
            `content-type`; empty if missing.
        content_length: None if it is missing.
        fields: all of them, in order.
        list_bytes: their size as RFC 9113, 6.5.2 counts it.
    """

    path: bytes
    method: bytes
    authority: bytes
    timeout: bytes
    encoding: bytes
    content_type: bytes
    content_length: int | None
    fields: list[Field]
    list_bytes: int


_roles = dict(_ROLES)
"""Roles by name: those above, and of other names that clients have used."""


def _field(name: bytes, value: bytes) -> Field:
    """Return a field with its role."""
    role = _roles.get(name, -1)
    if role:
        if role < 0:
            role = _learn_role(name)
        elif role == _LENGTH:
            if not is_decimal(value):
                role = _INVALID
        elif role == _TE:
            role = 0 if value == b"trailers" else _INVALID
    if _NUL in value or _LF in value or _CR in value:
        role = _INVALID
    return name, value, role, _FIELD_BYTES + len(name) + len(value)


def _learn_role(name: bytes) -> int:
    """Return the role of a name that is not known, and remember it if it is short."""
    role = _INVALID if _NAME.fullmatch(name) is None else 0
    if len(name) <= _TEXT_BYTES_MAX:
        if len(_roles) >= _NAMES_MAX:
            _roles.clear()
            _roles.update(_ROLES)
        _roles[name] = role
    return role


_STATIC: Final[tuple[Field, ...]] = (
    (b"", b"", _INVALID, 0),  # indexes begin at 1
    *(_field(name, value) for name, value in HeaderTable.STATIC_TABLE),
)


class HeaderDecoder:
    """Decompresses the header blocks of one connection, in order."""

    __slots__ = ("_entries", "_size", "_size_max")

    def __init__(self) -> None:
        self._entries: list[Field] = []  # newest last
        self._size = 0
        self._size_max = TABLE_BYTES

    def decode(self, block: bytes) -> list[Field]:
        """Return the fields of a block; `request_head` and `are_trailers` check them.

        Raises:
            MalformedHeaderError: the block is no valid HPACK; the connection cannot be used on.
        """
        try:
            return self._decode(block)
        except IndexError:
            raise MalformedHeaderError(
                f"header block of {len(block)} bytes is cut off or has an unknown index"
            ) from None

    def _decode(self, block: bytes) -> list[Field]:  # noqa: C901, PLR0912 - one loop, for speed
        fields: list[Field] = []
        entries = self._entries
        at, end = 0, len(block)
        while at < end:
            first = block[at]
            at += 1
            if first & 0x80:
                index = first & 0x7F
                if index == 0x7F:
                    index, at = _integer(block, at, 0x7F)
                if index <= _STATIC_COUNT:
                    if not index:
                        raise _refused("index 0")
                    fields.append(_STATIC[index])
                else:
                    fields.append(entries[_STATIC_COUNT - index])
                continue
            if first & 0x40:
                index, mask = first & 0x3F, 0x3F
            elif first & 0x20:
                if fields:
                    raise _refused("a change of the table's size after a field")
                size = first & 0x1F
                if size == 0x1F:
                    size, at = _integer(block, at, 0x1F)
                self._resize(size)
                continue
            else:
                index, mask = first & 0x0F, 0x0F
            if index == mask:
                index, at = _integer(block, at, mask)
            if not index:
                name, at = _text(block, at)
            elif index <= _STATIC_COUNT:
                name = _STATIC[index][0]
            else:
                name = entries[_STATIC_COUNT - index][0]
            value, at = _text(block, at)
            field = _field(name, value)
            fields.append(field)
            if mask == 0x3F:
                self._add(field)
        return fields

    def _add(self, field: Field) -> None:
        """Add a field to the dynamic table, and remove the oldest ones above its size."""
        entries = self._entries
        entries.append(field)
        self._size += field[3]
        if self._size > self._size_max:
            self._evict()

    def _evict(self) -> None:
        entries, removed = self._entries, 0
        while self._size > self._size_max:
            self._size -= entries[removed][3]
            removed += 1
        del entries[:removed]

    def _resize(self, size: int) -> None:
        if size > TABLE_BYTES:
            raise _refused(f"a table of {size} bytes, at most {TABLE_BYTES}")
        self._size_max = size
        self._evict()


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """Return an integer whose prefix is full, and the position after it (RFC 7541, 5.1)."""
    for shift in range(0, 7 * _INTEGER_BYTES_MAX, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _refused(f"an integer of more than {_INTEGER_BYTES_MAX} bytes")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a text and the position after it (RFC 7541, 5.2)."""
    first = block[at]
    at += 1
    size = first & 0x7F
    if size == _INTEGER_7:
        size, at = _integer(block, at, _INTEGER_7)
    end = at + size
    if end > len(block):
        raise IndexError
    text = block[at:end]
    if first & 0x80:
        known = _texts.get(text)
        return (_decode_text(text) if known is None else known), end
    return text, end


# Huffman codes are read a byte at a time. hpack's table reads four bits; the steps of whole bytes
# are computed when they are first needed: at most 65,536 of them. A row has the steps of one state
# by byte, and at its end the number of the state.
_Row = list[Any]
_rows: dict[int, _Row] = {}
_texts: dict[bytes, bytes] = {}


def _row(state: int) -> _Row:
    row = _rows.get(state)
    if row is None:
        row = _rows[state] = [*[None] * 256, state]
    return row


_FIRST_ROW: Final = _row(0)


def _decode_text(code: bytes) -> bytes:
    """Return the text of a Huffman code."""
    parts: list[bytes] = []
    row, is_complete = _FIRST_ROW, True
    for at in range(len(code)):
        byte = code[at]
        step = row[byte]
        if step is None:
            step = row[byte] = _step(row[-1], byte)
        row, part, is_complete = step
        parts.append(part)
    if not is_complete:
        raise _refused("a Huffman code that ends within a letter")
    text = b"".join(parts)
    if len(code) <= _TEXT_BYTES_MAX:
        if len(_texts) >= _TEXTS_MAX:
            _texts.clear()
        _texts[code] = text
    return text


def _step(state: int, byte: int) -> tuple[_Row, bytes, bool]:
    """Return the row after a byte of code, its letters, and whether the code may end here."""
    letters = bytearray()
    flags = 0
    for nibble in (byte >> 4, byte & 0x0F):
        state, flags, letter = HUFFMAN_TABLE[state << 4 | nibble]
        if flags & HUFFMAN_FAIL:
            raise _refused("an invalid Huffman code")
        if flags & HUFFMAN_EMIT_SYMBOL:
            letters.append(letter)
    return _row(state), bytes(letters), bool(flags & HUFFMAN_COMPLETE)


def _refused(what: str) -> MalformedHeaderError:
    return MalformedHeaderError(f"header block has {what}")


def request_head(fields: list[Field]) -> RequestHead | None:  # noqa: C901, PLR0912 - as `_decode`
    """Return the fields of a request by their meaning; None if HTTP/2 forbids them.

    Source: RFC 9113, 8.2 and 8.3.1.
    """
    list_bytes = 0
    has_plain = False
    path = method = scheme = authority = timeout = encoding = content_type = b""
    length: int | None = None
    for _, value, role, size in fields:
        list_bytes += size
        if not role:
            has_plain = True
        elif role <= _PSEUDO_LAST:
            if has_plain or role == _INVALID:
                return None
            if role == _METHOD and not method:
                method = value
            elif role == _SCHEME and not scheme:
                scheme = value
            elif role == _PATH and not path:
                path = value
            elif role == _AUTHORITY and not authority:
                authority = value
            else:
                return None
        else:
            has_plain = True
            if role == _CONTENT_TYPE:
                content_type = value
            elif role == _TIMEOUT:
                timeout = value
            elif role == _ENCODING:
                encoding = value
            else:
                length = int(value)
    if not (path and method and scheme):
        return None
    return RequestHead(
        path, method, authority, timeout, encoding, content_type, length, fields, list_bytes
    )


def are_trailers(fields: list[Field]) -> bool:
    """Return whether fields may follow a body: no pseudo-field, and none that HTTP/2 forbids."""
    return all(role == 0 or role > _PSEUDO_LAST for _, _, role, _ in fields)


def encode_response(fields: dict[str, str], status: int | None = None) -> bytes:
    """Return the block of a response's fields, or of its trailers if `status` is None.

    Names are in lower case; values must be visible ASCII characters.
    """
    block = bytearray(b"" if status is None else _STATUSES[status])
    for name, value in fields.items():
        if name == "content-type":
            block += _CONTENT_TYPE_INDEX
        else:
            block += _LITERAL
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
