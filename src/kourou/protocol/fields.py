"""Codec of header fields: dataclasses in Python, a map of texts (`extFields`) on the wire.

A header class is a dataclass. A field's name on the wire is its name in camelCase, unless
`field(metadata={"wire": "a"})` gives another. Its type is one of

    str     text
    Int     32-bit integer (Java's int)
    Long    64-bit integer (Java's long)
    bool    "true" in upper or lower case; any other text is read as false, as in Java

or one of these with `| None`. A field without a default is required. None is omitted from the
map; unknown names in a map are ignored.

Source: RemotingCommand.makeCustomHeaderToNet and decodeCommandCustomHeader.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

from kourou.errors import MalformedHeaderError

HeaderT = TypeVar("HeaderT")

Int = Annotated[int, 32]
"""A 32-bit integer; a larger number on the wire is malformed, because Java's int cannot hold it."""
Long = Annotated[int, 64]
"""A 64-bit integer."""

# Every 64-bit integer has at most 19 digits; int() is cheap for texts of this length.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


class _Field(NamedTuple):
    name: str
    wire: str
    parse: Callable[[str], object]
    is_required: bool


def encode_fields(header: object) -> dict[str, str]:
    """Return the header's fields as texts, in the order of the class; None is omitted."""
    fields: dict[str, str] = {}
    for name, wire, _, _ in _plan(type(header)):
        value = getattr(header, name)
        if value is None:
            continue
        if value is True:
            fields[wire] = "true"
        elif value is False:
            fields[wire] = "false"
        else:
            fields[wire] = str(value)
    return fields


def decode_fields(header_class: type[HeaderT], fields: Mapping[str, str]) -> HeaderT:
    """Return a `header_class` decoded from the texts.

    Raises:
        MalformedHeaderError: a required field is missing, or a number does not parse or fit.
    """
    values: dict[str, Any] = {}
    for name, wire, parse, is_required in _plan(header_class):
        text = fields.get(wire)
        if text is not None:
            try:
                values[name] = parse(text)
            except ValueError as error:
                raise MalformedHeaderError(f"field {wire} ({name}): {error}") from None
        elif is_required:
            raise MalformedHeaderError(f"field {wire} ({name}) is missing")
    return header_class(**values)


def _plan(header_class: type) -> tuple[_Field, ...]:
    """Return the codec of each field; it is computed once per class."""
    plan = _PLANS.get(header_class)
    if plan is None:
        plan = _PLANS[header_class] = _build_plan(header_class)
    return plan


def _build_plan(header_class: type) -> tuple[_Field, ...]:
    hints = get_type_hints(header_class, include_extras=True)
    return tuple(
        _Field(
            field.name,
            field.metadata.get("wire") or camel_case(field.name),
            _parser(hints[field.name]),
            field.default is dataclasses.MISSING,
        )
        for field in dataclasses.fields(header_class)
    )


def camel_case(name: str) -> str:
    """Return Java's spelling of a name: `queueId` for `queue_id`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _parser(hint: object) -> Callable[[str], object]:
    # The first argument of `X | None` is X. Annotated has arguments too, so it is looked up first.
    kind = hint if hint in _PARSERS else get_args(hint)[0]
    return _PARSERS[kind]


def _parse_bool(text: str) -> bool:
    return text.lower() == "true"


def parse_int(text: str) -> int:
    """Return the 32-bit integer of a text, as strictly as Java's Integer.parseInt.

    Raises:
        ValueError: the text is not an integer, or does not fit; at most 40 of its characters are
            quoted.
    """
    value = parse_long(text)
    if not -0x8000_0000 <= value <= 0x7FFF_FFFF:
        raise ValueError(f"{text} does not fit 32 bits")
    return value


def parse_long(text: str) -> int:
    """Return the 64-bit integer of a text. Raises ValueError like `parse_int`."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not an integer")
    value = int(text)
    if not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        raise ValueError(f"{text} does not fit 64 bits")
    return value


_PARSERS: Final[dict[object, Callable[[str], object]]] = {
    str: str,
    bool: _parse_bool,
    Int: parse_int,
    Long: parse_long,
}

_PLANS: Final[dict[type, tuple[_Field, ...]]] = {}


@dataclass(slots=True, kw_only=True)
class RpcHeader:
    """Fields of any request, for a proxy that relays it."""

    namespace: str | None = field(default=None, metadata={"wire": "ns"})
    namespaced: bool | None = field(default=None, metadata={"wire": "nsd"})
    broker_name: str | None = field(default=None, metadata={"wire": "bname"})
    is_oneway: bool | None = field(default=None, metadata={"wire": "oway"})


@dataclass(slots=True, kw_only=True)
class TopicHeader(RpcHeader):
    """Fields of a request that concerns a topic, for a proxy that relays it."""

    is_logical_queue: bool | None = field(default=None, metadata={"wire": "lo"})
