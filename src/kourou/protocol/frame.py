"""Codec of frames; a frame is one command on the wire.

Layout of a frame; all integers are big-endian:

    offset  size  field
    0       4     frame_size      bytes that follow this field
    4       1     serialize type  0 JSON, 1 ROCKETMQ (binary)
    5       3     header size
    8       h     header
    8 + h   b     body            b = frame_size - 4 - h

The connection splits the stream into frames; `frame_size` returns the length of the next one. Each
frame from a peer may have either serialize type. A response has the type of its request, because
the peer can certainly read that one; Java responds in its configured type.

Source: RemotingCommand.encode and decode, NettyDecoder.java.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from kourou.errors import FrameTooLargeError, MalformedFrameError, MalformedHeaderError
from kourou.protocol.codes import LanguageCode, language_of
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand, SerializeType
from kourou.protocol.fields import parse_int
from kourou.protocol.header_binary import decode_header, encode_header

FRAME_SIZE_MAX: Final = 16 * 1024 * 1024 - 4
"""Largest `frame_size` in bytes: Java's frameMaxLength, which counts the 4 bytes of the field."""

FRAME_SIZE_MIN: Final = 4
"""A frame holds at least its type and header size."""

HEADER_AT: Final = 8
"""Where the header begins in a frame, after both sizes."""

_JSON: Final = SerializeType.JSON
_BINARY: Final = SerializeType.ROCKETMQ.value
_HEADER_SIZE_MASK: Final = 0x00FF_FFFF
_INT32_MIN: Final = -0x8000_0000
_INT32_MAX: Final = 0x7FFF_FFFF
_SIZE: Final = struct.Struct(">I")
_SIZES: Final = struct.Struct(">II")

_Int32 = Annotated[int, msgspec.Meta(ge=_INT32_MIN, le=_INT32_MAX)]


class _JsonHeader(msgspec.Struct):
    """The JSON header; its fields are in alphabetical order, as Java writes them.

    The defaults are those that Java uses for missing members.
    """

    code: _Int32 = 0
    extFields: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET  # noqa: N815 - wire name
    flag: _Int32 = 0
    language: str = "JAVA"
    opaque: _Int32 = 0
    remark: str | msgspec.UnsetType | None = msgspec.UNSET
    serializeTypeCurrentRPC: str | None = "JSON"  # noqa: N815 - wire name
    version: _Int32 = 0


_encode_json: Final = msgspec.json.Encoder().encode
_decode_typed: Final = msgspec.json.Decoder(_JsonHeader).decode
_decode_json: Final = msgspec.json.Decoder().decode


def frame_size(
    buffer: bytes | bytearray | memoryview, at: int = 0, *, limit: int = FRAME_SIZE_MAX
) -> int:
    """Return the length field at byte `at` of `buffer`, which must have at least 4 bytes there.

    It is called before the frame is buffered, so that an excessive size costs no memory.

    Raises:
        FrameTooLargeError: the size exceeds `limit` bytes, or is negative as Java's int.
        MalformedFrameError: the size leaves no room for type and header size.
    """
    size: int = _SIZE.unpack_from(buffer, at)[0]
    if size > limit:
        raise FrameTooLargeError(size, limit)
    if size < FRAME_SIZE_MIN:
        raise MalformedFrameError(f"frame_size {size} leaves no room for the header size")
    return size


def encode_frame(command: RemotingCommand) -> bytes:
    """Return the whole frame, length field included, in the command's serialization.

    Raises:
        FrameTooLargeError: header and body exceed `FRAME_SIZE_MAX`.
        MalformedHeaderError: a text is not valid Unicode (a lone surrogate), or the command cannot
            be written in binary form (see `header_binary`).
    """
    if command.serialize_type is not _JSON:
        return _join(_BINARY << 24, encode_header(command), command.body)
    # Java's clients read the fields of some responses, and its brokers those of some requests,
    # without checking for null. A request therefore always has the member, even if it is empty.
    has_fields = command.ext_fields or not command.flag & FLAG_RESPONSE
    header = _JsonHeader(
        command.code,
        command.ext_fields if has_fields else msgspec.UNSET,
        command.flag,
        command.language.name,
        command.opaque,
        msgspec.UNSET if command.remark is None else command.remark,
        "JSON",
        command.version,
    )
    try:
        header_bytes = _encode_json(header)
    except UnicodeEncodeError as error:
        raise MalformedHeaderError(f"a header text is not valid Unicode: {error}") from None
    return _join(0, header_bytes, command.body)


def _join(tag: int, header: bytes, body: bytes) -> bytes:
    """Return the frame; `tag` has the serialize type in its top byte."""
    header_size = len(header)
    size = FRAME_SIZE_MIN + header_size + len(body)
    # Also keeps the header within its 3 bytes: the limits differ by 4 and the frame has 4 more.
    if size > FRAME_SIZE_MAX:
        raise FrameTooLargeError(size, FRAME_SIZE_MAX)
    return b"".join((_SIZES.pack(size, tag | header_size), header, body))


def decode_frame(
    data: bytes | bytearray | memoryview, *, header_bytes_max: int = FRAME_SIZE_MAX
) -> RemotingCommand:
    """Return the command in `data`, a frame without its length field.

    The body is copied, so `data` may be a view of a buffer that is reused.

    Raises:
        MalformedFrameError: the header exceeds the data or `header_bytes_max`, or the serialize
            type is unknown.
        MalformedHeaderError: the JSON header is not an object or a member has the wrong type, or
            the binary header is malformed.
    """
    if len(data) < FRAME_SIZE_MIN:
        raise MalformedFrameError(f"a frame of {len(data)} bytes has no header size")
    tagged_size: int = _SIZE.unpack_from(data)[0]
    header_end = FRAME_SIZE_MIN + (tagged_size & _HEADER_SIZE_MASK)
    if header_end > len(data):
        raise MalformedFrameError(
            f"header of {header_end - FRAME_SIZE_MIN} bytes in a frame of {len(data)}"
        )
    if header_end > FRAME_SIZE_MIN + header_bytes_max:
        raise MalformedFrameError(
            f"header of {header_end - FRAME_SIZE_MIN} bytes exceeds the limit of "
            f"{header_bytes_max} bytes"
        )
    serialize_type = tagged_size >> 24
    header = memoryview(data)[FRAME_SIZE_MIN:header_end]
    body = bytes(data[header_end:])
    if serialize_type:
        if serialize_type != _BINARY:
            raise MalformedFrameError(f"serialize type {serialize_type} is unknown")
        return decode_header(bytes(header), body)
    try:
        fields = _decode_typed(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The typed decoder is stricter than Java's.
        return _decode_tolerant(header, body)
    return RemotingCommand(
        fields.code,
        fields.extFields or {},
        body,
        fields.opaque,
        fields.flag,
        language_of(fields.language),
        fields.version,
        None if fields.remark is msgspec.UNSET else fields.remark,
    )


def _decode_tolerant(header: memoryview, body: bytes) -> RemotingCommand:
    """Decode a JSON header whose members have other types than usual, as Java does."""
    try:
        members = _decode_json(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedHeaderError(f"the header is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise MalformedHeaderError(f"the header is a JSON {type(members).__name__}, not an object")
    remark = members.get("remark")
    return RemotingCommand(
        _integer(members, "code"),
        _texts(members.get("extFields")),
        body,
        _integer(members, "opaque"),
        _integer(members, "flag"),
        _language(members.get("language", "JAVA")),
        _integer(members, "version"),
        None if remark is None else _text(remark),
    )


def _integer(members: dict[str, Any], name: str) -> int:
    value = members.get(name)
    if value is None:
        return 0
    if isinstance(value, str):
        try:
            return parse_int(value)
        except ValueError as error:
            raise MalformedHeaderError(f"member {name}: {error}") from None
    if type(value) is not int or not _INT32_MIN <= value <= _INT32_MAX:
        raise MalformedHeaderError(f"member {name} is not a 32-bit integer")
    return value


def _texts(fields: object) -> dict[str, str]:
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise MalformedHeaderError(f"extFields is a JSON {type(fields).__name__}, not an object")
    return {name: _text(value) for name, value in fields.items() if value is not None}


def _text(value: object) -> str:
    """Return a text unchanged, a number or boolean as its JSON text (`true`, `1.5`)."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        raise MalformedHeaderError(f"a header text is a JSON {type(value).__name__}")
    return _encode_json(value).decode()


def _language(value: object) -> LanguageCode:
    if isinstance(value, str) or type(value) is int:
        return language_of(value)
    return LanguageCode.OTHER


def frame_of(header: bytes, *body: bytes | memoryview) -> bytes:
    """Return the frame of an encoded JSON header; this is the only copy of the body."""
    header_size = len(header)
    size = FRAME_SIZE_MIN + header_size + sum(map(len, body))
    return b"".join((_SIZES.pack(size, header_size), header, *body))


def bare_frame_end(buffer: bytearray, at: int, end: int, size_max: int) -> int:
    """Return the end of the frame at byte `at`; 0 unless it is whole, in JSON, and has no body.

    For fast paths of answers, which decode the header between `HEADER_AT` and the end themselves.

    Args:
        buffer: holds the frame.
        at: where it begins.
        end: of the bytes in the buffer.
        size_max: limit of `frame_size`.
    """
    if end - at <= HEADER_AT:
        return 0
    size, header_size = _SIZES.unpack_from(buffer, at)
    frame_end: int = at + FRAME_SIZE_MIN + size
    # The top byte of the header size has the header encoding, which is 0 for JSON.
    if frame_end > end or header_size + FRAME_SIZE_MIN != size or size > size_max:
        return 0
    return frame_end


def header_template(command: RemotingCommand, markers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the JSON header of a command as a format, for frames that differ in a few fields.

    Args:
        command: has a marker in each of these fields.
        markers: the markers as they are encoded, and the format specifiers that replace them.

    Returns:
        The format; None if a marker is not in it exactly once.
    """
    text = encode_frame(command)[HEADER_AT:].replace(b"%", b"%%")
    if any(text.count(marker) != 1 for marker in markers):
        return None
    for marker, specifier in markers.items():
        text = text.replace(marker, specifier)
    return text
