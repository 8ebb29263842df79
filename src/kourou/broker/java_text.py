"""Numbers formatted as in Java, for administrators' tools that parse or print them unchanged."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

_PLAIN_MIN: Final = 1e-3
_PLAIN_END: Final = 1e7


def double_text(value: float) -> str:
    """Return the result of Java's Double.toString: `0.5`, `12.0`, `1.0E-4`, `1.2345678E7`."""
    if value == 0 or _PLAIN_MIN <= abs(value) < _PLAIN_END:
        return f"{Decimal(repr(value)):f}"
    digits = Decimal(repr(value)).normalize().as_tuple()
    first, *rest = map(str, digits.digits)
    exponent = int(digits.exponent) + len(rest)
    sign = "-" if digits.sign else ""
    return f"{sign}{first}.{''.join(rest) or '0'}E{exponent}"


def bytes_text(count: int) -> str:
    """Return the result of MixAll.humanReadableByteCount: `289 B`, `233.8 GiB`."""
    size = float(count)
    unit = ""
    for unit in ("", *"KMGTPE"):  # noqa: B007 - the last one is used after the loop
        if size < 1024:
            break
        size /= 1024
    return f"{size:.1f} {unit}iB" if unit else f"{count} B"


def bool_text(value: bool) -> str:  # noqa: FBT001 - it is the value
    """Return `true` or `false`."""
    return "true" if value else "false"
