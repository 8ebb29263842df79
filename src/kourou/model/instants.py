"""Parsers of instants and durations that a user enters, on the command line or as an option."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from kourou.errors import UsageError

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"([0-9]{1,9})([smhd])")
_EPOCH_MS: Final = re.compile(r"[0-9]{1,15}")


def parse_instant(text: str, now_ms: int, option: str, words: str = "now") -> int:
    """Return the instant that `text` names, in epoch ms.

    `text` is `now`, a span before now (`-90s`, `-15m`, `-1h`, `-2d`), epoch milliseconds, or ISO
    8601 (`2025-01-31`, `2025-01-31T12:00`, `2025-01-31T12:00:00+02:00`), in local time if it names
    no zone. Instants before 1970 become 0.

    Args:
        text: as above, in any case.
        now_ms: the current time.
        option: name of the option, for the error.
        words: the words that the option accepts, for the error.

    Raises:
        UsageError: `text` is none of these; the error names `option`.
    """
    word = text.strip()
    if word.lower() == "now":
        return now_ms
    if word.startswith("-") and (ago := _SPAN.fullmatch(word, 1)):
        return max(0, now_ms - _span_ms(ago))
    at_ms = parse_absolute(word)
    if at_ms is None:
        raise UsageError(
            f"{option} {text!r:.200} is not a time: use {words}, a span such as -15m, -1h or -2d, "
            "or a time such as 2025-01-31T12:00"
        )
    return at_ms


def parse_absolute(word: str) -> int | None:
    """Return the instant of epoch milliseconds or ISO 8601, in epoch ms; None for other texts."""
    if _EPOCH_MS.fullmatch(word):
        return int(word)
    try:
        return max(0, int(datetime.fromisoformat(word).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        return None


def parse_duration(text: str, option: str) -> int:
    """Return the length of a span such as `90s`, `15m`, `1h` or `2d`, in milliseconds.

    Raises:
        UsageError: `text` is not a span, or its length is 0; the error names `option`.
    """
    span = _SPAN.fullmatch(text.strip())
    if span is not None and _span_ms(span) == 0:
        raise UsageError(f"{option} {text!r:.200} has no length: omit the option")
    if span is None:
        raise UsageError(f"{option} {text!r:.200} is not a span: use 90s, 15m, 1h or 2d")
    return _span_ms(span)


def _span_ms(span: re.Match[str]) -> int:
    return int(span[1]) * _UNITS_MS[span[2]]
