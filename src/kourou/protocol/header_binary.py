"""Binary headers (ROCKETMQ): the compact form of a command's header.

All integers big-endian, texts UTF-8:

    size     field
    2        code           signed: larger ones have no binary form, see BINARY_CODE_MAX
    1        language       `LanguageCode`
    2        version
    4        opaque
    4        flag
    4 + n    remark         its size, 0 for none
    4 + n    header fields  their size in all, 0 for none; then one after another:
                 2 + k      name
                 4 + v      value

A text of size 0 is no text at all: an empty remark is none, a field with an empty value is
missing. Where a name comes twice, the last one counts: Java's clients write the fields of some
requests in a hurry before all others, and repeat them.

Java cuts a code that does not fit to 16 bits (POP_MESSAGE, 200050, arrives as 3442, which nobody
serves). Here it is refused before it leaves.

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
"""Up to and with the remark's size."""
_SIZE16: Final = struct.Struct(">H")
_SIZE32: Final = struct.Struct(">i")
_unpack_size16: Final = _SIZE16.unpack_from
_unpack_size32: Final = struct.Struct(">I").unpack_from
_NAME_SIZE_MAX: Final = 0x7FFF
_BINARY: Final = SerializeType.ROCKETMQ


def encode_header(command: RemotingCommand) -> bytes:
    """Return the command's binary header.

    Raises:
        MalformedHeaderError: the code, the version or the name of a field is larger than its
            place, or a text is not valid Unicode.
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
    """Return the command of a binary header and a body.

    Raises:
        MalformedHeaderError: the header is cut short, has bytes left over, a size in it is
            negative or exceeds it, or a text is not UTF-8.
    """
    try:
        code, language, version, opaque, flag, remark_size = _HEAD.unpack_from(header)
        remark_end = _HEAD.size + remark_size
        if remark_size < 0:
            raise MalformedHeaderError(f"remark of {remark_size} bytes")
        fields_size = _SIZE32.unpack_from(header, remark_end)[0]
        fields_start = remark_end + _SIZE32.size
        # Java takes a negative size for none.
        fields_end = fields_start + max(fields_size, 0)
        if fields_end != len(header):
            raise MalformedHeaderError(
                f"header fields of {fields_size} bytes, {len(header) - fields_start} are there"
            )
        fields = _decode_fields(header, fields_start)
        remark = header[_HEAD.size : remark_end].decode()
    except struct.error:
        raise MalformedHeaderError(f"binary header of {len(header)} bytes is cut short") from None
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
        # Sizes are read unsigned: one that is negative to Java is here too large for the header.
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
