"""RemotingCommand: one request or response, and how each is made.

Source: RemotingCommand.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeVar

from kourou.errors import MalformedHeaderError
from kourou.protocol.codes import VERSION, LanguageCode, request_name
from kourou.protocol.fields import decode_fields, encode_fields

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

BINARY_CODE_MAX: Final = 0x7FFF
"""Largest code that a binary header holds, whose code is a signed 16-bit number."""

REMARK_CHARS_MAX: Final = 4096
"""Longest remark of a response. Many quote what was asked for, which may be as long as a frame."""

HeaderT = TypeVar("HeaderT")


class SerializeType(IntEnum):
    """How a header is written; its number is in the frame."""

    JSON = 0
    ROCKETMQ = 1
    """The binary form, see `header_binary`."""


_JSON: Final = SerializeType.JSON  # an enum's member costs a look-up in its class


@dataclass(slots=True)
class RemotingCommand:
    """One request or response.

    Attributes:
        code: a RequestCode or a ResponseCode; unknown ones are kept.
        ext_fields: the header fields, all values as text.
        body: what follows the header.
        opaque: the requester's number of the exchange, copied into the response.
        flag: FLAG_RESPONSE and FLAG_ONEWAY together; other bits are kept.
        version: the sender's, see `codes.VERSION`.
        remark: human text, mostly in responses.
        serialize_type: how the header was, or is to be, written.
    """

    code: int
    ext_fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    language: LanguageCode = LanguageCode.PYTHON
    version: int = VERSION
    remark: str | None = None
    serialize_type: SerializeType = _JSON

    @property
    def is_response(self) -> bool:
        """It answers a request."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """It must not be answered, whatever happens."""
        return self.flag & FLAG_ONEWAY != 0

    def header(self, header_class: type[HeaderT]) -> HeaderT:
        """Return the header fields as a value of `header_class`.

        Raises:
            MalformedHeaderError: a required field is missing or a field has a bad value; the text
                names the field and the request.
        """
        try:
            return decode_fields(header_class, self.ext_fields)
        except MalformedHeaderError as error:
            kind = f"response {self.code}" if self.is_response else request_name(self.code)
            raise MalformedHeaderError(f"{kind}: {error}") from None


def request(
    code: int, header: object | None = None, body: bytes = b"", *, oneway: bool = False
) -> RemotingCommand:
    """Return a request; the connection that sends it sets `opaque`."""
    return RemotingCommand(
        code,
        {} if header is None else encode_fields(header),
        body,
        flag=FLAG_ONEWAY if oneway else 0,
    )


def response(
    to: RemotingCommand,
    code: int = 0,
    remark: str | None = None,
    header: object | None = None,
    body: bytes = b"",
) -> RemotingCommand:
    """Return the answer to the request `to`, in the serialization that `to` came in.

    A remark of more than `REMARK_CHARS_MAX` characters is cut, and says so.
    """
    if remark is not None and len(remark) > REMARK_CHARS_MAX:
        cut = f"... ({len(remark)} characters)"
        remark = remark[: REMARK_CHARS_MAX - len(cut)] + cut
    return RemotingCommand(
        code,
        {} if header is None else encode_fields(header),
        body,
        opaque=to.opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        serialize_type=to.serialize_type,
    )
