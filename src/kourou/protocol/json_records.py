"""Codec of JSON objects that are declared as dataclasses (records).

The type of a field is one of

    str, bool, int, float       an integer may be written as text; an int has 64 bits
    a StrEnum                   its value; an ordinal is also accepted, as by fastjson
    bytes                       base64
    MessageQueue                an object
    a dataclass                 an object
    tuple[X, ...], Sequence[X]  an array
    frozenset[X]                an array, sorted when written
    Mapping[K, X]               an object; K is str, int (written bare) or MessageQueue (an object)

or one of these with `| None`. A member that is missing or null gets the field's default; a field
without a default is required. None is omitted. Unknown members are ignored. The metadata of a
field may contain

    wire        the member's name; by default the field's name in camelCase
    alias       an alternative name that is accepted when decoding
    absent      the JSON value that a missing member stands for
    blank       a JSON value, such as an empty text, that counts as missing
    omit_empty  an empty array is omitted
    codec       a `FieldCodec`, for other types and for other forms of these types

`_MODEL_METADATA` has the metadata of classes of `kourou.model`, which know no wire format.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from kourou.errors import MalformedBodyError
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import TopicConfig
from kourou.protocol.fastjson import BARE_KEYS_BYTES_MAX, dumps, loads
from kourou.protocol.fields import camel_case
from kourou.protocol.json_values import (
    Json,
    as_boolean,
    as_integer,
    as_list,
    as_number,
    as_object,
    as_stored_object,
    as_text,
    as_text_map,
    get_enum,
    items_by_queue,
    queue_from_json,
    queue_to_json,
)

RecordT = TypeVar("RecordT")
EncodedT_contra = TypeVar("EncodedT_contra", contravariant=True)
Decoder = Callable[[object, str], Any]
"""Returns the value of a JSON value; the text names it in errors."""
Encoder = Callable[[Any], Any]
"""Returns the JSON value of a value."""


class FieldCodec(NamedTuple):
    """Codec of a field; see the module's description."""

    encode: Encoder
    decode: Decoder


REQUIRED: Final = {"blank": ""}
"""Metadata of a text that is also missing if it is empty."""
OPTIONAL: Final = {"absent": ""}
"""Metadata of a text that is empty if it is missing."""
TEXTS: Final = FieldCodec(dict, as_text_map)
"""Codec of an object of texts, of which null values are omitted."""


class BodyEncoder(Protocol[EncodedT_contra]):
    """Returns the body of a value; with `pretty`, in the form of Java's config files."""

    def __call__(self, value: EncodedT_contra, /, *, pretty: bool = False) -> bytes: ...


def record_functions(
    record_class: type[RecordT],
    label: str | None = None,
    *,
    bare_keys_bytes_max: int = BARE_KEYS_BYTES_MAX,
) -> tuple[Callable[[bytes], RecordT], BodyEncoder[RecordT]]:
    """Return the functions that decode and encode a body with one record.

    Args:
        record_class: class of the record.
        label: names the body in errors; by default the name of the class.
        bare_keys_bytes_max: that of `fastjson.loads`.
    """
    label = label or record_class.__name__

    def decode(body: bytes) -> RecordT:
        return from_json(record_class, loads(body, bare_keys_bytes_max=bare_keys_bytes_max), label)

    def encode(record: RecordT, /, *, pretty: bool = False) -> bytes:
        return dumps(to_json(record), pretty=pretty)

    return decode, encode


def list_functions(
    wire: str, element: type[RecordT], label: str
) -> tuple[Callable[[bytes], list[RecordT]], BodyEncoder[Sequence[RecordT]]]:
    """Return the functions that decode and encode a body whose only member is an array.

    Args:
        wire: name of the member.
        element: type of the array's elements; one of those that a field may have.
        label: names the body in errors.
    """

    def decode(body: bytes) -> list[RecordT]:
        decode_element = _decoder_of(element)
        elements = as_list(as_object(loads(body), label).get(wire), wire)
        return [decode_element(value, wire) for value in elements]

    def encode(elements: Sequence[RecordT], /, *, pretty: bool = False) -> bytes:
        encode_element = _encoder_of(element)
        values = elements if encode_element is None else map(encode_element, elements)
        return dumps({wire: list(values)}, pretty=pretty)

    return decode, encode


def encode_record(record: object) -> bytes:
    """Return the body of a record.

    Raises:
        ValueError: a number is not finite, or a text is not valid Unicode.
    """
    return dumps(to_json(record))


def encode_records(records: Sequence[object]) -> bytes:
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


def to_json(record: object) -> dict[str, Any]:
    """Return the JSON object of a record, with sorted members."""
    return _plan(type(record)).encode(record)


def from_json(record_class: type[RecordT], value: object, label: str) -> RecordT:
    """Return the record of a JSON object; `label` names it in errors.

    Raises the same errors as `decode_record`.
    """
    record: RecordT = _plan(record_class).decode(value, label)
    return record


class _Plan(NamedTuple):
    encode: Callable[[object], dict[str, Any]]
    decode: Decoder


class _Field(NamedTuple):
    name: str
    wire: str
    hint: Any
    metadata: Mapping[str, Any]
    missing: Callable[[], Any]


def _plan(record_class: type) -> _Plan:
    """Return the functions of a class; they are derived at their first use."""
    plan = _PLANS.get(record_class)
    if plan is None:
        fields = _fields(record_class)
        plan = _Plan(_record_encoder(fields), _record_decoder(record_class, fields))
        _PLANS[record_class] = plan
    return plan


def _fields(record_class: type) -> list[_Field]:
    hints = get_type_hints(record_class)
    fields = []
    for field in dataclasses.fields(record_class):
        metadata = {**field.metadata, **_MODEL_METADATA.get(record_class, {}).get(field.name, {})}
        wire = metadata.get("wire") or camel_case(field.name)
        hint = hints[field.name]
        fields.append(_Field(field.name, wire, hint, metadata, _default_of(field, wire)))
    return fields


def _default_of(field: dataclasses.Field[Any], wire: str) -> Callable[[], Any]:
    """Return the function that returns the value of a missing member, or raises an error."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    if field.default is not dataclasses.MISSING:
        default = field.default
        return lambda: default

    def refuse() -> Any:  # noqa: ANN401 - never returns
        raise MalformedBodyError(f"{wire} is missing")

    return refuse


def _record_encoder(fields: list[_Field]) -> Callable[[object], dict[str, Any]]:
    fields = sorted(fields, key=lambda field: field.wire)
    wires = tuple(field.wire for field in fields)
    # `attrgetter` and `zip` read the fields without Python code; most need no conversion.
    read = attrgetter(*(field.name for field in fields))
    encoders = [(field.wire, _field_encoder(field)) for field in fields]
    converted = tuple((wire, encode) for wire, encode in encoders if encode is not None)
    is_single = len(wires) == 1

    def encode_members(record: object) -> dict[str, Any]:
        values = (read(record),) if is_single else read(record)
        members = dict(zip(wires, values))  # noqa: B905 - of one length, and `strict` takes time
        for wire, encode in converted:
            value = members[wire]
            if value is not None:
                members[wire] = encode(value)
        return members

    return encode_members


def _field_encoder(field: _Field) -> Encoder | None:
    codec: FieldCodec | None = field.metadata.get("codec")
    encode = _encoder_of(field.hint) if codec is None else codec.encode
    if "omit_empty" in field.metadata:
        assert encode is not None
        return lambda value: encode(value) or None
    return encode


def _record_decoder(record_class: type, fields: list[_Field]) -> Decoder:
    steps = tuple(
        (
            field.wire,
            _member_reader(field.wire, field.metadata),
            _decoder_of(field.hint)
            if "codec" not in field.metadata
            else field.metadata["codec"].decode,
            field.missing,
        )
        for field in fields
    )

    def decode_members(value: object, label: str) -> object:
        data = as_object(value, label)
        values = []
        for wire, read, decode, missing in steps:
            member = data.get(wire) if read is None else read(data)
            values.append(missing() if member is None else decode(member, wire))
        return record_class(*values)

    return decode_members


def _member_reader(wire: str, metadata: Mapping[str, Any]) -> Callable[[Json], Any] | None:
    """Return the function that reads a member; None if its metadata demands nothing."""
    alias, absent, blank = (metadata.get(name) for name in ("alias", "absent", "blank"))
    if alias is None and absent is None:
        if blank is None:
            return None
        return lambda data: None if (member := data.get(wire)) == blank else member

    def read(data: Json) -> Any:  # noqa: ANN401 - any JSON value
        member = data.get(wire)
        if member is None and alias is not None:
            member = data.get(alias)
        if blank is not None and member == blank:
            return None
        return absent if member is None else member

    return read


def _encoder_of(hint: Any) -> Encoder | None:  # noqa: ANN401 - a type, of which there are many kinds
    """Return the function that encodes values of a type other than None; None if it is JSON."""
    if hint in _ENCODERS:
        return _ENCODERS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _encoder_of(_without_none(arguments))
    if origin in (tuple, list, Sequence):
        return _array_encoder(_encoder_of(arguments[0]))
    if origin is frozenset:
        return sorted
    if origin is Mapping:
        return _map_encoder(_encoder_of(arguments[1]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _plan(hint).encode
    return lambda value: value.value


def _array_encoder(encode: Encoder | None) -> Encoder:
    if encode is None:
        return list
    return lambda value: [encode(element) for element in value]


def _map_encoder(encode: Encoder | None) -> Encoder:
    if encode is None:
        return dict
    return lambda value: {key: encode(element) for key, element in value.items()}


def _without_none(arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - a type
    return next(argument for argument in arguments if argument is not NoneType)


def _decoder_of(hint: Any) -> Decoder:  # noqa: ANN401 - a type, of which there are many kinds
    """Return the function that decodes values of a type."""
    if hint in _DECODERS:
        return _DECODERS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _decoder_of(_without_none(arguments))
    if origin in (tuple, list, Sequence, frozenset):
        kind = tuple if origin is Sequence else origin
        return _array_decoder(_decoder_of(arguments[0]), kind)
    if origin is Mapping:
        return _map_decoder(arguments[0], _decoder_of(arguments[1]))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _plan(hint).decode
    assert issubclass(hint, StrEnum), f"a field of a record cannot have type {hint}"
    return _enum_decoder(hint)


def _enum_decoder(kinds: type[StrEnum]) -> Decoder:
    by_value = {member.value: member for member in kinds}
    first = next(iter(kinds))

    def decode_enum(value: object, label: str) -> StrEnum:
        member = by_value.get(value) if isinstance(value, str) else None
        return get_enum({label: value}, label, first) if member is None else member

    return decode_enum


def _array_decoder(decode: Decoder, kind: Callable[[list[Any]], Any]) -> Decoder:
    def decode_array(value: object, label: str) -> Any:  # noqa: ANN401 - as `kind` returns
        return kind([decode(element, label) for element in as_list(value, label)])

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
    bool: as_boolean,
    int: as_integer,
    float: as_number,
    bytes: _decode_bytes,
    MessageQueue: lambda value, _: queue_from_json(value),
}
_ENCODERS: Final[dict[Any, Encoder | None]] = {
    str: None,
    bool: None,
    int: None,
    float: float,
    bytes: lambda value: base64.b64encode(value).decode(),
    MessageQueue: queue_to_json,
}
_PLANS: Final[dict[type, _Plan]] = {}


def _decode_filter_type(value: object, label: str) -> str:
    if type(value) is int and 0 <= value < len(_FILTER_TYPES):
        return _FILTER_TYPES[value]
    return as_text(value, label)


def _decode_stored_objects(value: object, label: str) -> tuple[Json, ...]:
    return tuple(as_stored_object(element, label) for element in as_list(value, label))


_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
"""Values of an enum of Java, of which fastjson also accepts the ordinal."""

_MODEL_METADATA: Final[dict[type, Mapping[str, Mapping[str, Any]]]] = {
    # Old clients omit the type of the expression; an empty one means the same.
    SubscriptionData: {"topic": REQUIRED, "expression_type": REQUIRED},
    TopicConfig: {
        "name": {"wire": "topicName"} | REQUIRED,
        "topic_filter_type": {"codec": FieldCodec(str, _decode_filter_type)},
        "attributes": {"codec": TEXTS},
    },
    SubscriptionGroup: {
        "group_name": REQUIRED,
        "group_retry_policy": {"blank": {}, "codec": FieldCodec(dict, as_stored_object)},
        "subscription_datas": {
            "wire": "subscriptionDataSet",
            "codec": FieldCodec(lambda objects: list(map(dict, objects)), _decode_stored_objects),
        },
        "attributes": {"codec": TEXTS},
    },
}
