"""RemotingCommand, which represents one request or response, and constructors for both.

Source: RemotingCommand.java.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeVar

from kourou.errors import MalformedHeaderError, RemoteError
from kourou.protocol.codes import VERSION, LanguageCode, ResponseCode, request_name
from kourou.protocol.fields import decode_fields, encode_fields

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

BINARY_CODE_MAX: Final = 0x7FFF
"""Largest code that fits a binary header, where it is a signed 16-bit number."""

REMARK_CHARS_MAX: Final = 4096
"""Longest remark of a response in characters. Many remarks quote the request, which may be as long
as a frame."""

HeaderT = TypeVar("HeaderT")


class SerializeType(IntEnum):
    """Serialization of a header; its number is in the frame."""

    JSON = 0
    ROCKETMQ = 1
    """The binary form, see `header_binary`."""


_JSON: Final = SerializeType.JSON  # spares the attribute lookup on the enum


@dataclass(slots=True)
class RemotingCommand:
    """One request or response.

    Attributes:
        code: a RequestCode or a ResponseCode; unknown codes are preserved.
        ext_fields: the header fields; all values are texts.
        body: the bytes behind the header.
        opaque: number by which the requester matches the response; copied into the response.
        flag: bits FLAG_RESPONSE and FLAG_ONEWAY; other bits are preserved.
        version: that of the sender, see `codes.VERSION`.
        remark: a text for people, mostly in responses.
        serialize_type: serialization in which the header was received or is to be written.
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
        """Whether the command is a response."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the command is a request that must not be answered."""
        return self.flag & FLAG_ONEWAY != 0

    def header(self, header_class: type[HeaderT]) -> HeaderT:
        """Return the header fields as a value of `header_class`.

        Raises:
            MalformedHeaderError: a required field is missing or a field has an invalid value; the
                text names the field and the request.
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
    """Return the response to the request `to`, in the serialization of that request.

    A remark longer than `REMARK_CHARS_MAX` characters is truncated; its end then states its length.
    """
    if remark is not None and len(remark) > REMARK_CHARS_MAX:
        suffix = f"... ({len(remark)} characters)"
        remark = remark[: REMARK_CHARS_MAX - len(suffix)] + suffix
    return RemotingCommand(
        code,
        {} if header is None else encode_fields(header),
        body,
        opaque=to.opaque,
        flag=FLAG_RESPONSE,
        remark=remark,
        serialize_type=to.serialize_type,
    )


def raise_for_response(answer: RemotingCommand) -> None:
    """Raise an error unless the response's code is SUCCESS.

    Raises:
        RemoteError: any other code; the subclass registered for that code, if there is one.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError.from_response(answer.code, answer.remark)
