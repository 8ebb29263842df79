"""Typed access to the members of parsed JSON, with defaults.

The functions are as tolerant as Java: a member that is missing or null gets the default, an integer
or a boolean may be written as text, unknown members are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from kourou.errors import MalformedBodyError
from kourou.model.queue import MessageQueue
from kourou.protocol.fastjson import loads
from kourou.protocol.fields import parse_long

EnumT = TypeVar("EnumT", bound=StrEnum)

Json = Mapping[str, Any]
"""A parsed JSON object."""

STORED_DEPTH_MAX: Final = 16
"""Deepest nesting of arrays and objects in a value that is stored unchanged; real ones have three
levels."""

_INT64_MIN: Final = -0x8000_0000_0000_0000
_INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF


def as_object(value: object, label: str) -> Json:
    """Return `value` if it is a JSON object; null counts as an empty one.

    Raises:
        MalformedBodyError: the value has another type; the text names it by `label`.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _type_error(label, value, "an object")
    return value


def as_list(value: object, label: str) -> list[Any]:
    """Return `value` if it is a JSON array; null counts as empty. Raises like `as_object`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _type_error(label, value, "an array")
    return value


def as_text(value: object, label: str) -> str:
    """Return `value` if it is a JSON text. Raises like `as_object`."""
    if not isinstance(value, str):
        raise _type_error(label, value, "a text")
    return value


def as_integer(value: object, label: str) -> int:
    """Return `value` if it is a 64-bit integer, or the text of one. Raises like `as_object`."""
    if isinstance(value, str):
        try:
            return parse_long(value)
        except ValueError:
            raise _type_error(label, value, "a 64-bit integer") from None
    if type(value) is not int or not _INT64_MIN <= value <= _INT64_MAX:
        raise _type_error(label, value, "a 64-bit integer")
    return value


def as_number(value: object, label: str) -> float:
    """Return `value` if it is a number. Raises like `as_object`."""
    if type(value) not in (int, float):
        raise _type_error(label, value, "a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise _type_error(label, value, "a number") from None


def as_boolean(value: object, label: str) -> bool:
    """Return `value` if it is a boolean, or the text of one. Raises like `as_object`."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise _type_error(label, value, "a boolean")


def as_text_map(value: object, label: str) -> dict[str, str]:
    """Return `value` if it is an object of texts; null values are omitted."""
    members = as_object(value, label).items()
    return {key: as_text(text, f"{label}.{key}") for key, text in members if text is not None}


def as_stored_object(value: object, label: str) -> Json:
    """Return `value` if it is a JSON object that can be stored and written again unchanged.

    Raises:
        MalformedBodyError: as for `as_object`, or it is nested deeper than `STORED_DEPTH_MAX`:
            such a value could be decoded but later fail to be written to a file.
    """
    members = as_object(value, label)
    _check_depth(members, label, STORED_DEPTH_MAX)
    return members


def _check_depth(value: object, label: str, depth: int) -> None:
    if depth == 0:
        raise MalformedBodyError(f"{label} is nested deeper than {STORED_DEPTH_MAX} levels")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            _check_depth(inner, label, depth - 1)


def get_object(parent: Json, name: str) -> Json:
    """Return the object member; empty if missing. Raises like `as_object`."""
    return as_object(parent.get(name), name)


def get_list(parent: Json, name: str) -> list[Any]:
    """Return the array member; empty if missing. Raises like `as_object`."""
    return as_list(parent.get(name), name)


def get_texts(parent: Json, name: str) -> list[str]:
    """Return the texts of the array member; empty if missing. Raises like `as_object`."""
    return [as_text(value, name) for value in get_list(parent, name)]


def get_text_map(parent: Json, name: str) -> dict[str, str]:
    """Return the object member, whose values are texts; null values are omitted."""
    return as_text_map(parent.get(name), name)


def get_text(parent: Json, name: str, default: str = "") -> str:
    """Return the text member. Raises like `as_object`."""
    value = parent.get(name)
    return default if value is None else as_text(value, name)


def get_optional_text(parent: Json, name: str) -> str | None:
    """Return the text member; None if missing. Raises like `as_object`."""
    value = parent.get(name)
    return None if value is None else as_text(value, name)


def get_integer(parent: Json, name: str, default: int = 0) -> int:
    """Return the integer member. Raises like `as_object`."""
    value = parent.get(name)
    return default if value is None else as_integer(value, name)


def get_boolean(parent: Json, name: str, *, default: bool = False) -> bool:
    """Return the boolean member. Raises like `as_object`."""
    value = parent.get(name)
    return default if value is None else as_boolean(value, name)


def get_enum(parent: Json, name: str, default: EnumT) -> EnumT:
    """Return a member of the enum of `default`, given by value or by ordinal, as for fastjson.

    Raises:
        MalformedBodyError: the enum has no such member.
    """
    value = parent.get(name)
    if value is None:
        return default
    kinds = type(default)
    members = list(kinds)
    if type(value) is int and 0 <= value < len(members):
        return members[value]
    try:
        return kinds(value)
    except ValueError:
        raise MalformedBodyError(f"{name} {str(value)[:60]!r} is unknown") from None


def _type_error(label: str, value: object, wanted: str) -> MalformedBodyError:
    # Only texts are quoted: numbers and lists from a peer may be arbitrarily long.
    quoted = repr(value[:40]) if isinstance(value, str) else type(value).__name__
    return MalformedBodyError(f"{label} must be {wanted}, not {quoted}")


def queue_to_json(queue: MessageQueue) -> dict[str, object]:
    """Return the JSON object of a queue."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_json(value: object) -> MessageQueue:
    """Return the queue of a JSON object.

    Raises:
        MalformedBodyError: the value is not a JSON object, or a member has the wrong type.
    """
    data = as_object(value, "a queue")
    return MessageQueue(
        get_text(data, "topic"), get_text(data, "brokerName"), get_integer(data, "queueId")
    )


def items_by_queue(table: Json) -> Iterator[tuple[MessageQueue, object]]:
    """Yield the queues and values of a map keyed by queue.

    Raises:
        MalformedBodyError: a key is not the JSON text of a queue.
    """
    for key, value in table.items():
        yield queue_from_json(loads(key)), value


def offsets_by_queue(value: object, label: str) -> dict[MessageQueue, int]:
    """Return the offsets of a map keyed by queue; `label` names the map in errors.

    Raises:
        MalformedBodyError: the value is not such a map, or an offset is not an integer.
    """
    items = items_by_queue(as_object(value, label))
    return {queue: as_integer(offset, label) for queue, offset in items}
