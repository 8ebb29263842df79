"""Checks of the values of a message to send; each raises InvalidMessageError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kourou.errors import InvalidMessageError
from kourou.model import properties as names

_TIME_MS_MAX: Final = 10**14
"""Year 5138: a greater number is probably in microseconds."""
_TIME_MS_MIN: Final = 10**11
"""March 1973: a smaller number is probably in seconds."""
_INT32_MIN: Final = -(1 << 31)
_INT32_MAX: Final = (1 << 31) - 1


def checked_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """Return a copy of index keys; refuse keys with blanks, because blanks separate keys."""
    # A str is a sequence of str: without this check, keys="o-17" would mean four keys.
    if isinstance(keys, str):
        raise InvalidMessageError("keys must be a list of str, not one str")
    for key in keys:
        check_text("a key", key)
        if " " in key:
            raise InvalidMessageError(f"key {key!r} contains a blank, which separates keys")
    return tuple(keys)


def check_int32(name: str, value: object) -> None:
    """Refuse a value that is not a signed 32-bit integer."""
    if not isinstance(value, int) or not _INT32_MIN <= value <= _INT32_MAX:
        raise InvalidMessageError(f"{name} {value!r} is not a 32-bit integer")


def check_delay_level(value: object) -> None:
    """Refuse a value that is not a 32-bit integer or is negative."""
    check_int32("delay_level", value)
    if isinstance(value, int) and value < 0:
        raise InvalidMessageError(f"delay_level {value} is negative")


def check_priority(value: object) -> None:
    """Refuse a value other than None that is not a 32-bit integer or is negative."""
    if value is None:
        return
    check_int32("priority", value)
    if isinstance(value, bool) or (isinstance(value, int) and value < 0):
        raise InvalidMessageError(f"priority {value} is invalid: 0 is the lowest")


def check_timer(delay_level: int, deliver_at_ms: object, delay_ms: object) -> None:
    """Refuse invalid delays and delivery times, and more than one of the three."""
    for name, value in (("deliver_at_ms", deliver_at_ms), ("delay_ms", delay_ms)):
        if type(value) is not int or not 0 <= value <= _TIME_MS_MAX:
            raise InvalidMessageError(
                f"{name} is {value!r}; it must be whole milliseconds, 0 to {_TIME_MS_MAX}"
            )
    if isinstance(deliver_at_ms, int) and 0 < deliver_at_ms < _TIME_MS_MIN:
        raise InvalidMessageError(
            f"deliver_at_ms is {deliver_at_ms}, a time before 1974: pass epoch milliseconds, not "
            "seconds"
        )
    if bool(delay_level) + bool(deliver_at_ms) + bool(delay_ms) > 1:
        raise InvalidMessageError(
            f"delay_level {delay_level}, deliver_at_ms {deliver_at_ms} and delay_ms {delay_ms}: "
            "set only one of them"
        )


def check_text(label: str, text: object) -> None:
    """Refuse a value that the property text cannot represent."""
    if not isinstance(text, str):
        raise InvalidMessageError(f"{label} must be a str, not {type(text).__name__}")
    if not text:
        raise InvalidMessageError(f"{label} is empty: RocketMQ drops empty properties")
    if "\x02" in text:
        raise InvalidMessageError(f"{label} {text!r} contains \\x02, which ends a property")


def check_property(name: str, value: object) -> None:
    """Refuse a user property that has a reserved name or cannot be represented."""
    check_text("a property name", name)
    if "\x01" in name:
        raise InvalidMessageError(f"property name {name!r} contains \\x01, which ends a name")
    if name in names.RESERVED:
        raise InvalidMessageError(f"property {name} is set by the system; choose another name")
    check_text(f"the value of property {name}", value)
