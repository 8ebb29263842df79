"""Parsers of option texts. Pure.

Each takes the name of the option, its text without surrounding blanks, and the current time in
epoch ms. Each raises an error of `kourou.errors` that begins with the name of the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias, TypeVar

from kourou.client.namesrv_addr import as_url, parse_namesrv_addr
from kourou.decimals import is_decimal
from kourou.errors import ConfigError, UsageError
from kourou.model.instants import parse_duration
from kourou.model.namespace import check_namespace
from kourou.model.topic import check_client_group, check_topic
from kourou.protocol.compression import CompressionType
from kourou.spark.positions import (
    Positions,
    parse_assignment,
    parse_offsets,
    parse_time,
    parse_times_by_queue,
)

Parse: TypeAlias = Callable[[str, str, int], object]
"""Returns the value of (option name, text, current time in epoch ms)."""

INT64_MAX: Final = 2**63 - 1

WRITE_ID_CHARS_MAX: Final = 100
"""Longest id of a write in characters; each message has it."""

_WRITE_ID: Final = re.compile(rf"[\w.@/-]{{1,{WRITE_ID_CHARS_MAX}}}", re.ASCII)
_EnumT = TypeVar("_EnumT", bound=Enum)
RATE_MIN: Final = 0.01
RATE_MAX: Final = 10_000_000
_RATE: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,19}) ?(|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4}
_MILLISECONDS: Final = re.compile(r"([0-9]{1,15}) ?(?:ms)?")


def missing(name: str, alternatives: str = "") -> ConfigError:
    """Return the error of a job that lacks an option."""
    return ConfigError(f"the option {name} is missing: add .option({name!r}, ...){alternatives}")


def parse_any(_name: str, text: str, _now_ms: int) -> str:
    """Return the text, which may be empty."""
    return text


def parse_text(name: str, text: str, _now_ms: int) -> str:
    """Return a text that must not be empty."""
    if not text:
        raise ConfigError(f"{name} is empty: give a value, or omit the option")
    return text


def parse_boolean(name: str, text: str, _now_ms: int) -> bool:
    """Return the value of `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r:.200}: expected true or false")
    return text.lower() == "true"


def integer(low: int, high: int) -> Parse:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(name: str, text: str, _now_ms: int) -> int:
        if not (is_decimal(text, len(str(INT64_MAX))) and low <= int(text) <= high):
            raise ConfigError(
                f"{name} is {text!r:.200}: expected a whole number from {low} to {high}"
            )
        return int(text)

    return parse


def parse_rate(name: str, text: str, _now_ms: int) -> float:
    """Return a number of messages a second."""
    rate = float(text) if _RATE.fullmatch(text) else 0.0
    if not RATE_MIN <= rate <= RATE_MAX:
        raise ConfigError(
            f"{name} is {text!r}: expected messages a second, {RATE_MIN} to {RATE_MAX:,}"
        )
    return rate


def parse_size(name: str, text: str, _now_ms: int) -> int:
    """Return a number of bytes, from `65536` or `64 MiB`."""
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _SIZE_UNITS[found[2].lower()] if found else 0
    if not 1 <= size <= INT64_MAX:
        raise ConfigError(f"{name} is {text!r:.200}: expected bytes, such as 65536 or 64 MiB")
    return size


def parse_body_size(name: str, text: str, now_ms: int) -> int:
    """Return a limit of body sizes, in bytes."""
    from kourou.client.config import BODY_SIZE_LIMIT_BYTES  # noqa: PLC0415

    size = parse_size(name, text, now_ms)
    if size > BODY_SIZE_LIMIT_BYTES:
        raise ConfigError(
            f"{name} is {text!r:.200}: at most {BODY_SIZE_LIMIT_BYTES} bytes are allowed"
        )
    return size


def parse_compression(name: str, text: str, _now_ms: int) -> CompressionType | None:
    """Return a compression type; None for `none`."""
    kinds = {"none": None} | {kind.name.lower(): kind for kind in CompressionType}
    if text.lower() not in kinds:
        raise ConfigError(f"{name} is {text!r:.200}: expected one of {', '.join(kinds)}")
    return kinds[text.lower()]


def parse_write_id(name: str, text: str, _now_ms: int) -> str:
    """Return an id of a write."""
    if not _WRITE_ID.fullmatch(text):
        raise ConfigError(
            f"{name} is {text!r:.200}: expected 1 to {WRITE_ID_CHARS_MAX} letters, digits and "
            ". _ - @ /"
        )
    return text


def parse_span(name: str, text: str, _now_ms: int) -> int:
    """Return a duration in ms, from `90s`, `15m`, `1h`, `2d`, `500ms` or milliseconds."""
    if (found := _MILLISECONDS.fullmatch(text)) and int(found[1]):
        return int(found[1])
    return parse_duration(text, name)


def choice(kind: type[_EnumT]) -> Parse:
    """Return a parser of the values of an Enum, in any case."""

    def parse(name: str, text: str, _now_ms: int) -> _EnumT:
        for member in kind:
            if text.lower() == str(member.value).lower():
                return member
        values = ", ".join(str(member.value) for member in kind)
        raise ConfigError(f"{name} is {text!r:.200}: expected one of {values}")

    return parse


def parse_topic(name: str, text: str, _now_ms: int) -> str:
    """Return a valid topic name."""
    if not text:
        raise missing(name)
    _named(name, check_topic, text)
    return text


def parse_topics(name: str, text: str, _now_ms: int) -> tuple[str, ...]:
    """Return the topic names of a list with commas, sorted."""
    topics = [part.strip() for part in text.split(",")]
    for topic in topics:
        _named(name, check_topic, topic, within=text)
    if len(set(topics)) != len(topics):
        raise ConfigError(f"{name} is {text!r:.200}: it repeats a topic")
    return tuple(sorted(topics))


def parse_pattern(name: str, text: str, _now_ms: int) -> str:
    """Return a regular expression that compiles."""
    if not text:
        raise ConfigError(f"{name} is empty: give a regular expression, such as orders_.*")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{name} is {text!r:.200}: not a regular expression ({error})") from None
    return text


def parse_queues(name: str, text: str, _now_ms: int) -> object:
    """Return topic -> broker name -> queue ids."""
    assigned = parse_assignment(name, text)
    for topic in assigned:
        _named(name, check_topic, topic, within=text)
    return assigned


def parse_group(name: str, text: str, _now_ms: int) -> str:
    """Return a valid group name."""
    _named(name, check_client_group, text)
    return text


def parse_namespace(name: str, text: str, _now_ms: int) -> str:
    """Return a valid namespace."""
    _named(name, check_namespace, text)
    return text


def parse_name_server(name: str, text: str, _now_ms: int) -> str:
    """Return the addresses of name servers, or the URL that returns them."""
    if not text:
        raise missing(name)
    if _named(name, as_url, text) is None:
        _named(name, parse_namesrv_addr, text)
    return text


def parse_offsets_option(name: str, text: str, _now_ms: int) -> Positions:
    """Return positions named by offsets."""
    return parse_offsets(name, text)


def parse_times_option(name: str, text: str, now_ms: int) -> Positions:
    """Return positions named by a time for each queue."""
    return parse_times_by_queue(name, text, now_ms)


def parse_time_option(name: str, text: str, now_ms: int) -> Positions:
    """Return positions named by one time."""
    return parse_time(name, text, now_ms)


def _named(
    name: str, function: Callable[[str], object], text: str, within: str | None = None
) -> object:
    """Call a function of another layer; its error then names the option and its whole text."""
    try:
        return function(text)
    except UsageError as error:
        raise type(error)(f"{name} is {within or text!r:.200}: {error}") from None
