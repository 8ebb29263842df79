"""Number parsing and comparison with Java's semantics.

Python's `int` and `float` accept some texts that Java refuses (blanks, underscores) and refuse
some that Java accepts (`1d`, hexadecimal exponents).

Source: Integer.parseInt, Long.parseLong, Double.valueOf and Double.compareTo of Java 8 to 21.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final

from kourou.decimals import INT_DIGITS, is_decimal
from kourou.errors import FilterEvaluationError
from kourou.filter.tree import Kind, Value

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1

_WHOLE: Final = re.compile(r"[+-]?\d+")
_DIGITS_MAX: Final = 19  # of a Long, without leading zeros
_DOUBLE: Final = re.compile(
    r"([+-]?)(?:(NaN|Infinity)|(?:([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
    r"|(0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+))[fFdD]?)"
)
_TRIMMED: Final = "".join(map(chr, range(0x21)))  # characters that String.trim removes


def parse_int(text: str) -> int:
    """Return the 32-bit integer of a text, as Integer.parseInt does.

    Raises:
        FilterEvaluationError: the text is not a whole number, or does not fit.
    """
    if is_decimal(text, INT_DIGITS):
        return int(text)
    return _parse_integer(text, INT_MAX)


def parse_long(text: str) -> int:
    """Return the 64-bit integer of a text, as Long.parseLong does.

    Raises:
        FilterEvaluationError: the text is not a whole number, or does not fit.
    """
    if is_decimal(text):
        return int(text)
    return _parse_integer(text, LONG_MAX)


def parse_double(text: str) -> float:
    """Return the floating-point number of a text, as Double.valueOf does; overflow is infinite.

    Raises:
        FilterEvaluationError: the text is not a number.
    """
    match = _DOUBLE.fullmatch(text.strip(_TRIMMED))
    if match is None:
        raise FilterEvaluationError(f"{_quote(text)} is not a number")
    sign, name, digits, exponent, hexadecimal = match.groups()
    if digits is not None:
        return float(sign + digits + (exponent or ""))
    if name is not None:
        return float(sign + name)
    try:
        return float.fromhex(sign + hexadecimal)
    except OverflowError:
        return math.copysign(math.inf, -1 if sign == "-" else 1)


def number_parser(kind: Kind) -> Callable[[str], int] | Callable[[str], float]:
    """Return the function that parses numbers of the kind."""
    return {Kind.INT: parse_int, Kind.LONG: parse_long}.get(kind, parse_double)


def compare_doubles(left: float, right: float) -> int:
    """Return -1, 0 or 1: NaN equals itself and exceeds every other number, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else _compare(math.copysign(1, left), math.copysign(1, right))
    return _compare(math.isnan(left), math.isnan(right))


def compare_values(left_kind: Kind, left: Value, right_kind: Kind, right: Value) -> int:
    """Compare two values that are not null: return a number below 0, 0 or above 0.

    One value is converted to the other's kind where Java does so. Kinds that cannot be compared
    give -1, as in Java.

    Raises:
        FilterEvaluationError: a text is not a number of the other's kind, or the left value is a
            boolean and the right one a text, which fails in Java.
    """
    kinds = {left_kind, right_kind}
    if left_kind is Kind.BOOLEAN and right_kind is Kind.STRING:
        raise FilterEvaluationError(
            "TRUE or FALSE is compared with a text: write the text on the left"
        )
    if isinstance(left, str) and right_kind is not Kind.STRING:
        left = _convert(left, right_kind)
    elif isinstance(right, str) and left_kind is not Kind.STRING:
        right = _convert(right, left_kind)
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
    """Return the boolean that Java converts the text to."""
    return text.lower() == "true"


def _convert(text: str, kind: Kind) -> bool | float:
    return is_true_text(text) if kind is Kind.BOOLEAN else number_parser(kind)(text)


def _compare(left: str | float, right: str | float) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]  # both of one kind


def _parse_integer(text: str, limit: int) -> int:
    # Java accepts the decimal digits of all scripts, except those beyond U+FFFF.
    if _WHOLE.fullmatch(text) is None or max(text) > "\uffff":
        raise FilterEvaluationError(f"{_quote(text)} is not a whole number")
    digits = "".join(str(int(digit)) for digit in text.lstrip("+-")).lstrip("0")
    value = int(digits or "0") if len(digits) <= _DIGITS_MAX else limit + 2
    if text[0] == "-":
        value = -value
    if not -limit - 1 <= value <= limit:
        raise FilterEvaluationError(f"{_quote(text)} does not fit {limit.bit_length() + 1} bits")
    return value


def _quote(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_CHARS_MAX else text[:_QUOTED_CHARS_MAX] + "...")


_QUOTED_CHARS_MAX: Final = 64
