"""Codec of binary headers (ROCKETMQ), the compact form of a command's header.

Integers are big-endian, texts are UTF-8:

    size     field
    2        code           signed; larger codes cannot be written, see BINARY_CODE_MAX
    1        language       `LanguageCode`
    2        version
    4        opaque
    4        flag
    4 + n    remark         size and text; size 0 means None
    4 + n    header fields  total size, then the fields one after another:
                 2 + k      name
                 4 + v      value

An empty text cannot be represented: an empty remark is decoded as None, and a field with an empty
value as missing. If a name occurs twice, the last value counts: Java's fast encoding of some
requests writes their fields first and then repeats them among all fields.

Java truncates a code that does not fit to 16 bits: POP_MESSAGE, 200050, arrives as 3442, which no
server handles. Here such a code is refused before it is sent.

Source: RocketMQSerializable.java.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from kourou.errors import MalformedHeaderError
from kourou.protocol.codes import language_of
from kourou.protocol.command import BINARY_CODE_MAX, RemotingCommand, SerializeType

_HEAD: Final = struct.Struct(">hBhiii")
"""The fields up to and including the size of the remark."""
_SIZE16: Final = struct.Struct(">H")
_SIZE32: Final = struct.Struct(">i")
_unpack_size16: Final = _SIZE16.unpack_from
_unpack_size32: Final = struct.Struct(">I").unpack_from
_NAME_SIZE_MAX: Final = 0x7FFF
_BINARY: Final = SerializeType.ROCKETMQ


def encode_header(command: RemotingCommand) -> bytes:
    """Return the command's binary header.

    Raises:
        MalformedHeaderError: the code, the version or the name of a field does not fit, or a text
            is not valid Unicode.
    """
    if not -BINARY_CODE_MAX - 1 <= command.code <= BINARY_CODE_MAX:
        raise MalformedHeaderError(
            f"code {command.code} does not fit the 16 bits of a binary header: send it as JSON"
        )
    try:
        remark = (command.remark or "").encode()
        fields = _encode_fields(command.ext_fields)
        head = _HEAD.pack(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            len(remark),
        )
    except UnicodeEncodeError as error:
        raise MalformedHeaderError(f"a header text is not valid Unicode: {error}") from None
    except struct.error as error:
        raise MalformedHeaderError(f"a number does not fit a binary header: {error}") from None
    return b"".join((head, remark, _SIZE32.pack(len(fields)), fields))


def _encode_fields(fields: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, text in fields.items():
        key, value = name.encode(), text.encode()
        if len(key) > _NAME_SIZE_MAX:
            raise MalformedHeaderError(f"the field name {name[:40]}... has {len(key)} bytes")
        parts += (_SIZE16.pack(len(key)), key, _SIZE32.pack(len(value)), value)
    return b"".join(parts)


def decode_header(header: bytes, body: bytes) -> RemotingCommand:
    """Return the command with this binary header and body.

    Raises:
        MalformedHeaderError: the header is truncated, has surplus bytes, contains a size that is
            negative or exceeds the header, or a text is not UTF-8.
    """
    try:
        code, language, version, opaque, flag, remark_size = _HEAD.unpack_from(header)
        remark_end = _HEAD.size + remark_size
        if remark_size < 0:
            raise MalformedHeaderError(f"remark of {remark_size} bytes")
        fields_size = _SIZE32.unpack_from(header, remark_end)[0]
        fields_start = remark_end + _SIZE32.size
        # Java reads a negative size as 0.
        fields_end = fields_start + max(fields_size, 0)
        if fields_end != len(header):
            raise MalformedHeaderError(
                f"header fields of {fields_size} bytes, but {len(header) - fields_start} are left"
            )
        fields = _decode_fields(header, fields_start)
        remark = header[_HEAD.size : remark_end].decode()
    except struct.error:
        raise MalformedHeaderError(f"binary header of {len(header)} bytes is truncated") from None
    except UnicodeDecodeError as error:
        raise MalformedHeaderError(f"a header text is not UTF-8: {error}") from None
    return RemotingCommand(
        code,
        fields,
        body,
        opaque,
        flag,
        language_of(language),
        version,
        remark or None,
        _BINARY,
    )


def _decode_fields(header: bytes, at: int) -> dict[str, str]:
    """Return the fields from byte `at` to the end of the header."""
    end = len(header)
    fields: dict[str, str] = {}
    while at < end:
        # Sizes are read as unsigned, so a negative one is refused as larger than the header.
        name_start = at + 2
        name_end = name_start + _unpack_size16(header, at)[0]
        value_start = name_end + 4
        at = value_start + _unpack_size32(header, name_end)[0]
        name = header[name_start:name_end].decode()
        if name and at > value_start:
            fields[name] = header[value_start:at].decode()
        else:
            fields.pop(name, None)
    if at > end:
        raise MalformedHeaderError(f"the last header field ends {at - end} bytes after the header")
    return fields
