"""Specification of a request, and codecs of bodies.

A module of one subject (`topics`, `groups`, `offsets`, ...) declares the headers and bodies of its
requests and, at its end, one `RequestSpec` for each. `registry` joins them. A body codec is a pair
of functions; `record_codec` and `record_list_codec` build one from a dataclass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from kourou.errors import MalformedBodyError
from kourou.protocol.codes import RequestCode
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import (
    decode_record,
    decode_records,
    encode_record,
    encode_records,
)
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.record.decode import decode_message, decode_messages

BODY_BYTES_MAX: Final = 64 * 1024
"""Default limit for a request's body in bytes. Most requests have none, and all other clients wait
while a body is decoded."""


class BodyCodec(NamedTuple):
    """Codec of one kind of body.

    Attributes:
        decode: returns the value of a body; raises ProtocolError.
        encode: returns the body of a value; None if bodies consist of stored records.
    """

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes] | None = None


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """Headers and bodies of a request and of its response.

    Attributes:
        header: class of the request's header fields; None if it has none.
        response_header: class of the header fields of a response with code 0; None if it has none.
        request_body: codec of the request's body; None if it has none or it is user-defined.
        response_body: codec of the body of a response with code 0.
        body_bytes_max: largest decoded body of the request in bytes; a larger one is refused.
    """

    code: RequestCode
    header: type | None = None
    response_header: type | None = None
    request_body: BodyCodec | None = None
    response_body: BodyCodec | None = None
    body_bytes_max: int = BODY_BYTES_MAX


def record_codec(record_class: type) -> BodyCodec:
    """Return the codec of a body with one record of `kourou.protocol.json_records`."""
    decode = partial(decode_record, record_class, bare_keys_bytes_max=FRAME_SIZE_MAX)
    return BodyCodec(decode, encode_record)


def record_list_codec(record_class: type) -> BodyCodec:
    """Return the codec of a body with an array of records."""
    return BodyCodec(partial(decode_records, record_class), encode_records)


def _decode_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise MalformedBodyError(f"not UTF-8: {error}") from None


TEXT_CODEC: Final = BodyCodec(_decode_text, str.encode)
"""Codec of a body that is a UTF-8 text."""

PROPERTIES_CODEC: Final = BodyCodec(decode_properties_text, encode_properties_text)
"""Codec of a body with options, one `name=value` a line."""

MESSAGE_CODEC: Final = BodyCodec(decode_message)
"""Codec of a body with one stored record."""

MESSAGES_CODEC: Final = BodyCodec(decode_messages)
"""Codec of a body with stored records."""

MESSAGE_BYTES_MAX: Final = FRAME_SIZE_MAX
"""Limit of user-defined bodies, which are not decoded here: brokers and clients have options for
their size."""
