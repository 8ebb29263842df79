"""Numbers in texts as Java reads them, and how Java orders them.

Python's `int` and `float` take more (blanks, underscores) and less (`1d`, hexadecimal exponents).

Source: Integer.parseInt, Long.parseLong, Double.valueOf and Double.compareTo of Java 8 to 21.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from kourou.errors import FilterEvaluationError
from kourou.filter.tree import Kind, Value

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1

_WHOLE: Final = re.compile(r"[+-]?\d+")
_DIGITS_MAX: Final = 19  # of a Long, without zeros in front
_DOUBLE: Final = re.compile(
    r"([+-]?)(?:(NaN|Infinity)|(?:([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    r"|(0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+))[fFdD]?)"
)
_TRIMMED: Final = "".join(map(chr, range(0x21)))  # what String.trim takes away


def read_int(text: str) -> int:
    """Return the number, of 32 bits.

    Raises:
        FilterEvaluationError: it is none.
    """
    if len(text) < len(str(INT_MAX)) and text.isascii() and text.isdigit():
        return int(text)
    return _read_whole(text, INT_MAX)


def read_long(text: str) -> int:
    """Return the number, of 64 bits.

    Raises:
        FilterEvaluationError: it is none.
    """
    if len(text) < _DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)
    return _read_whole(text, LONG_MAX)


def read_double(text: str) -> float:
    """Return the number; what is too large is infinite.

    Raises:
        FilterEvaluationError: it is none.
    """
    found = _DOUBLE.fullmatch(text.strip(_TRIMMED))
    if found is None:
        raise FilterEvaluationError(f"{_shown(text)} is no number")
    sign, name, digits, exponent, hexadecimal = found.groups()
    if digits is not None:
        return float(sign + digits + (exponent or ""))
    if name is not None:
        return float(sign + name)
    try:
        return float.fromhex(sign + hexadecimal)
    except OverflowError:
        return math.copysign(math.inf, -1 if sign == "-" else 1)


def read_number(kind: Kind) -> Callable[[str], int] | Callable[[str], float]:
    """Return what reads numbers of the kind."""
    return {Kind.INT: read_int, Kind.LONG: read_long}.get(kind, read_double)


def compare_doubles(left: float, right: float) -> int:
    """Return -1, 0 or 1: NaN is equal to itself and above all, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else _compare(math.copysign(1, left), math.copysign(1, right))
    return _compare(math.isnan(left), math.isnan(right))


def compare(left_kind: Kind, left: Value, right_kind: Kind, right: Value) -> int:
    """Return how two values compare that are not null: below 0, 0 or above 0.

    One of them is changed to the other's kind where Java does so; kinds that cannot be compared
    give -1, as there.

    Raises:
        FilterEvaluationError: a text is no number of the other's kind, or a boolean was asked for
            a text, which fails in Java.
    """
    kinds = {left_kind, right_kind}
    if left_kind is Kind.BOOLEAN and right_kind is Kind.STRING:
        raise FilterEvaluationError("TRUE and FALSE can stand on the right of a text only")
    if isinstance(left, str) and right_kind is not Kind.STRING:
        left = _as_kind(left, right_kind)
    elif isinstance(right, str) and left_kind is not Kind.STRING:
        right = _as_kind(right, left_kind)
    if isinstance(left, str) and isinstance(right, str):
        return _compare(left, right)
    if isinstance(left, bool) or isinstance(right, bool):
        if isinstance(left, bool) and isinstance(right, bool):
            return _compare(left, right)
        return -1
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if Kind.DOUBLE in kinds:
        return compare_doubles(float(left), float(right))
    return _compare(left, right)


def is_true_text(text: str) -> bool:
    """Return what Java takes the text for where a boolean is asked for."""
    return text.lower() == "true"


def _as_kind(text: str, kind: Kind) -> bool | float:
    return is_true_text(text) if kind is Kind.BOOLEAN else read_number(kind)(text)


def _compare(left: str | float, right: str | float) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]  # both of one kind


def _read_whole(text: str, limit: int) -> int:
    # Java knows digits of all scripts, but for those beyond the first 65,536 characters.
    if _WHOLE.fullmatch(text) is None or max(text) > "\uffff":
        raise FilterEvaluationError(f"{_shown(text)} is no whole number")
    digits = "".join(str(int(digit)) for digit in text.lstrip("+-")).lstrip("0")
    value = int(digits or "0") if len(digits) <= _DIGITS_MAX else limit + 2
    if text[0] == "-":
        value = -value
    if not -limit - 1 <= value <= limit:
        raise FilterEvaluationError(f"{_shown(text)} is beyond {limit.bit_length() + 1} bits")
    return value


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "...")


_SHOWN_MAX: Final = 64
