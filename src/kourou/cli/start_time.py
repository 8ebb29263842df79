"""Parsers of start and end times on the command line: instants, and the ends of a queue."""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from kourou.errors import UsageError
from kourou.model.instants import parse_absolute, parse_instant


class Start(Enum):
    """An end of a queue."""

    LATEST = "latest"
    """After the newest message: only messages that arrive later."""
    EARLIEST = "earliest"
    """At the oldest stored message."""


def parse_start(text: str, now_ms: int, option: str = "--from") -> Start | int:
    """Return the start that `text` names: an end of the queue, or an instant as `parse_instant`.

    Raises:
        UsageError: `text` is neither; the error names `option`.
    """
    word = text.strip().lower()
    for start in Start:
        if word == start.value:
            return start
    return parse_instant(text, now_ms, option, ", ".join(start.value for start in Start))


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


def parse_ahead(text: str, now_ms: int, option: str) -> int:
    """Return the future instant that `text` names (epoch ms or ISO 8601), in epoch ms.

    Raises:
        UsageError: `text` is not a time, or not in the future; the error names `option`.
    """
    at_ms = parse_absolute(text.strip())
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
