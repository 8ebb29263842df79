"""What the tables of requests are made of.

A body's codec is a pair of functions; `record` and `records` make one of a dataclass.
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

BODY_BYTES_MAX: Final = 64 * 1024
"""Largest body of a request that says nothing else: most have none at all, and what is decoded at
once holds up all other clients."""


class BodyCodec(NamedTuple):
    """How one kind of body is read and written.

    Attributes:
        decode: returns the value of a body; raises ProtocolError.
        encode: returns the body of a value; None where bodies are pieces of the store.
    """

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes] | None = None


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a request and the answer to it carry.

    Attributes:
        header: class of the request's header fields; None if it has none.
        response_header: class of those of an answer with code 0; None if it has none.
        request_body: of the request; None if it has none or it is the user's own.
        response_body: of an answer with code 0.
        body_bytes_max: largest body of the request that is decoded; a longer one is refused.
    """

    code: RequestCode
    header: type | None = None
    response_header: type | None = None
    request_body: BodyCodec | None = None
    response_body: BodyCodec | None = None
    body_bytes_max: int = BODY_BYTES_MAX


def record(record_class: type) -> BodyCodec:
    """Return the codec of a body that is one record of `kourou.protocol.json_records`."""
    decode = partial(decode_record, record_class, bare_keys_bytes_max=FRAME_SIZE_MAX)
    return BodyCodec(decode, encode_record)


def records(record_class: type) -> BodyCodec:
    """Return the codec of a body that is an array of records."""
    return BodyCodec(partial(decode_records, record_class), encode_records)


def _decode_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise MalformedBodyError(f"not UTF-8: {error}") from None


TEXT: Final = BodyCodec(_decode_text, str.encode)
"""A body that is a text, and no more."""
