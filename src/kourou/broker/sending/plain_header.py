"""Request headers of sends and batches, as the fast paths decode them.

A header of any other form fails to decode, and the general path serves the frame.

Source: see `kourou.protocol.sending` and `kourou.protocol.frame`.
"""

from __future__ import annotations

from typing import Annotated, Final, Generic, Literal, TypeVar

import msgspec

_Int32 = Annotated[int, msgspec.Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
CodeT = TypeVar("CodeT")
BatchT = TypeVar("BatchT")

BORN_DIGITS_MAX: Final = 18


class PlainFields(msgspec.Struct, Generic[BatchT], gc=False, forbid_unknown_fields=True):
    """Fields of `SendMessageRequestHeaderV2` that the fast paths accept, by their short names."""

    a: str
    b: str
    c: str
    d: str
    e: str
    f: str
    g: str
    h: Literal["0"]
    i: str
    j: Literal["0"] = "0"
    k: Literal["false"] = "false"
    m: BatchT = "false"  # type: ignore[assignment]  # both types of BatchT include "false"
    n: str | None = None


class PlainHeader(msgspec.Struct, Generic[CodeT, BatchT], gc=False, forbid_unknown_fields=True):
    """Members of the JSON header, in the order in which clients write them."""

    code: CodeT
    extFields: PlainFields[BatchT]  # noqa: N815 - wire name
    flag: Literal[0]
    language: str
    opaque: _Int32
    version: _Int32
    serializeTypeCurrentRPC: Literal["JSON"] = "JSON"  # noqa: N815 - wire name


_BatchMark = Literal["true", "false"]
BatchFields = PlainFields[_BatchMark]

decode_send: Final = msgspec.json.Decoder(PlainHeader[Literal[310], Literal["false"]]).decode
decode_batch: Final = msgspec.json.Decoder(PlainHeader[Literal[320], _BatchMark]).decode
