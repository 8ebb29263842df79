"""Codec of JSON objects that are declared as dataclasses (records).

A member's name is the field's name in camelCase, unless `field(metadata={"wire": "q"})` gives
another; `{"alias": "queueId"}` gives an alternative name that is accepted when decoding. The type
of a field is one of

    str, bool, int, float       an integer may be written as text; an int has 64 bits
    a StrEnum                   its value; an ordinal is also accepted, as by fastjson
    bytes                       base64
    MessageQueue                an object
    a dataclass                 an object
    tuple[X, ...]               an array
    Mapping[K, X]               an object; K is str, int (written bare) or MessageQueue (an object)

or one of these with `| None`. A member that is missing or null gets the field's default; a field
without a default is required. None is omitted. Unknown members are ignored.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.protocol.fastjson import BARE_KEYS_BYTES_MAX, dumps, loads
from kourou.protocol.fields import camel_case
from kourou.protocol.json_values import (
    as_integer,
    as_list,
    as_object,
    as_text,
    get_boolean,
    get_enum,
    get_number,
    items_by_queue,
    queue_from_json,
    queue_to_json,
)

RecordT = TypeVar("RecordT")
Decoder = Callable[[object, str], Any]


class _Field(NamedTuple):
    name: str
    wire: str
    alias: str | None
    decode: Decoder
    is_required: bool


def encode_record(record: object) -> bytes:
    """Return the body of a record.

    Raises:
        ValueError: a number is not finite, or a text is not valid Unicode.
    """
    return dumps(to_json(record))


def encode_records(records: tuple[object, ...] | list[Any]) -> bytes:
    """Return the body with an array of records. Raises the same errors as `encode_record`."""
    return dumps([to_json(record) for record in records])


def decode_record(
    record_class: type[RecordT], body: bytes, *, bare_keys_bytes_max: int = BARE_KEYS_BYTES_MAX
) -> RecordT:
    """Return the record decoded from a body; `bare_keys_bytes_max` is that of `fastjson.loads`.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member is missing or has the wrong
            type.
    """
    data = loads(body, bare_keys_bytes_max=bare_keys_bytes_max)
    return from_json(record_class, data, record_class.__name__)


def decode_records(record_class: type[RecordT], body: bytes) -> list[RecordT]:
    """Return the records of an array in a body. Raises the same errors as `decode_record`."""
    name = record_class.__name__
    return [from_json(record_class, element, name) for element in as_list(loads(body), name)]


def to_json(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value of a record or of the value of one of its fields."""
    if isinstance(value, MessageQueue):
        return queue_to_json(value)
    if dataclasses.is_dataclass(value):
        plan = _plan(type(value))
        return {wire: to_json(getattr(value, name)) for name, wire, *_ in plan}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_json(element) for key, element in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(element) for element in value]
    return value


def from_json(record_class: type[RecordT], value: object, label: str) -> RecordT:
    """Return the record of a JSON object; `label` names it in errors.

    Raises the same errors as `decode_record`.
    """
    data = as_object(value, label)
    values: dict[str, Any] = {}
    for name, wire, alias, decode, is_required in _plan(record_class):
        member = data.get(wire)
        if member is None and alias is not None:
            member = data.get(alias)
        if member is not None:
            values[name] = decode(member, wire)
        elif is_required:
            raise MalformedBodyError(f"{wire} is missing")
    return record_class(**values)


def _plan(record_class: type) -> tuple[_Field, ...]:
    """Return the codec of each field; it is computed once per class."""
    plan = _PLANS.get(record_class)
    if plan is None:
        plan = _PLANS[record_class] = _build_plan(record_class)
    return plan


def _build_plan(record_class: type) -> tuple[_Field, ...]:
    hints = get_type_hints(record_class)
    missing = dataclasses.MISSING
    return tuple(
        _Field(
            field.name,
            field.metadata.get("wire") or camel_case(field.name),
            field.metadata.get("alias"),
            _decoder_of(hints[field.name]),
            field.default is missing and field.default_factory is missing,
        )
        for field in dataclasses.fields(record_class)
    )


def _decoder_of(hint: Any) -> Decoder:  # noqa: ANN401 - a type, of which there are many kinds
    """Return the function that decodes values of a type."""
    if hint in _DECODERS:
        return _DECODERS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _decoder_of(next(argument for argument in arguments if argument is not NoneType))
    if origin is tuple:
        return _array_decoder(_decoder_of(arguments[0]))
    if origin is Mapping:
        return _map_decoder(arguments[0], _decoder_of(arguments[1]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return lambda value, label: from_json(hint, value, label)
    assert issubclass(hint, StrEnum), f"a field of a record cannot have type {hint}"
    return lambda value, label: get_enum({label: value}, label, next(iter(hint)))


def _array_decoder(decode: Decoder) -> Decoder:
    def decode_array(value: object, label: str) -> tuple[Any, ...]:
        return tuple(decode(element, label) for element in as_list(value, label))

    return decode_array


def _map_decoder(key: type, decode: Decoder) -> Decoder:
    def decode_map(value: object, label: str) -> dict[Any, Any]:
        members = as_object(value, label)
        if key is MessageQueue:
            return {queue: decode(element, label) for queue, element in items_by_queue(members)}
        if key is int:
            return {
                as_integer(name, label): decode(element, label) for name, element in members.items()
            }
        return {name: decode(element, label) for name, element in members.items()}

    return decode_map


def _decode_bytes(value: object, label: str) -> bytes:
    try:
        return base64.b64decode(as_text(value, label), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedBodyError(f"{label} is not valid base64: {error}") from None


_DECODERS: Final[dict[Any, Decoder]] = {
    str: as_text,
    bool: lambda value, label: get_boolean({label: value}, label),
    int: as_integer,
    float: lambda value, label: get_number({label: value}, label),
    bytes: _decode_bytes,
    MessageQueue: lambda value, _: queue_from_json(value),
}

_PLANS: Final[dict[type, tuple[_Field, ...]]] = {}
