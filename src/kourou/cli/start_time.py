"""Parsers of times on the command line: instants, spans, and the ends of a queue."""

from __future__ import annotations

import re
from datetime import datetime
from enum import Enum
from typing import Final

from kourou.errors import UsageError


class Start(Enum):
    """An end of a queue."""

    LATEST = "latest"
    """After the newest message: only messages that arrive later."""
    EARLIEST = "earliest"
    """At the oldest stored message."""


_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"([0-9]{1,9})([smhd])")
_EPOCH_MS: Final = re.compile(r"[0-9]{1,15}")


def parse_start(text: str, now_ms: int, option: str = "--from") -> Start | int:
    """Return the start that `text` names: an end of the queue, or an instant as `parse_instant`.

    Raises:
        UsageError: `text` is neither; the error names `option`.
    """
    word = text.strip().lower()
    for start in Start:
        if word == start.value:
            return start
    return _parse(text, now_ms, option, ", ".join(start.value for start in Start))


def parse_span(start: str, end: str, now_ms: int) -> tuple[Start | int, int | None]:
    """Return the values of `--from` (EARLIEST or epoch ms) and `--to` (epoch ms, None for now).

    None stands for now so that messages of a broker whose clock is ahead are included.

    Raises:
        UsageError: a text is not a time, or the end is before the start.
    """
    begin = parse_start(start, now_ms)
    if begin is Start.LATEST:
        raise UsageError("--from latest selects no stored message; use `kourou receive` instead")
    end_ms = None if end.strip().lower() == "now" else parse_instant(end, now_ms, "--to")
    if isinstance(begin, int) and end_ms is not None and end_ms < begin:
        raise UsageError(f"--to {end} is before --from {start}")
    return begin, end_ms


def parse_instant(text: str, now_ms: int, option: str) -> int:
    """Return the instant that `text` names, in epoch ms.

    `text` is `now`, a span before now (`-90s`, `-15m`, `-1h`, `-2d`), epoch milliseconds, or ISO
    8601 (`2025-01-31`, `2025-01-31T12:00`, `2025-01-31T12:00:00+02:00`), in local time if it names
    no zone. Instants before 1970 become 0.

    Raises:
        UsageError: `text` is none of these; the error names `option`.
    """
    return _parse(text, now_ms, option, "now")


def _parse(text: str, now_ms: int, option: str, words: str) -> int:
    word = text.strip()
    if word.lower() == "now":
        return now_ms
    if word.startswith("-") and (ago := _SPAN.fullmatch(word, 1)):
        return max(0, now_ms - _span_ms(ago))
    at_ms = _absolute(word)
    if at_ms is None:
        raise UsageError(
            f"{option} {text!r} is not a time: use {words}, a span such as -15m, -1h or -2d, "
            "or a time such as 2025-01-31T12:00"
        )
    return at_ms


def _absolute(word: str) -> int | None:
    """Return the instant of epoch milliseconds or ISO 8601, in epoch ms; None for other texts."""
    if _EPOCH_MS.fullmatch(word):
        return int(word)
    try:
        return max(0, int(datetime.fromisoformat(word).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        return None


def parse_ahead(text: str, now_ms: int, option: str) -> int:
    """Return the future instant that `text` names (epoch ms or ISO 8601), in epoch ms.

    Raises:
        UsageError: `text` is not a time, or not in the future; the error names `option`.
    """
    at_ms = _absolute(text.strip())
    if at_ms is None:
        raise UsageError(
            f"{option} {text!r} is not a time: use 2025-01-31T12:00 or epoch milliseconds"
        )
    if at_ms <= now_ms:
        at = datetime.fromtimestamp(at_ms / 1000).astimezone()
        raise UsageError(
            f"{option} {text!r} is {at:%Y-%m-%d %H:%M:%S}, which is in the past: use a later time, "
            "or omit the option for immediate delivery"
        )
    return at_ms


def parse_duration(text: str, option: str) -> int:
    """Return the length of a span such as `90s`, `15m`, `1h` or `2d`, in milliseconds.

    Raises:
        UsageError: `text` is not a span, or its length is 0; the error names `option`.
    """
    span = _SPAN.fullmatch(text.strip())
    if span is not None and _span_ms(span) == 0:
        raise UsageError(f"{option} {text!r} has no length: omit the option")
    if span is None:
        raise UsageError(f"{option} {text!r} is not a span: use 90s, 15m, 1h or 2d")
    return _span_ms(span)


def _span_ms(span: re.Match[str]) -> int:
    return int(span[1]) * _UNITS_MS[span[2]]
