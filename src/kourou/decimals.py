"""Decimal numbers in the texts of others: properties, header fields, names of files.

`int` takes more than these formats allow, such as signs, blanks, underscores and the digits of all
scripts, and it fails for a text of more than 4,300 digits, which a property can have.
"""

from __future__ import annotations

from typing import Final, TypeVar

_T = TypeVar("_T")

LONG_DIGITS: Final = 18
"""The most digits with which every number fits 64 bits."""
INT_DIGITS: Final = 9
"""The most digits with which every number fits 32 bits."""


def is_decimal(text: str | bytes, digits_max: int = LONG_DIGITS) -> bool:
    """Tell whether the text is one to `digits_max` ASCII digits."""
    return len(text) <= digits_max and text.isascii() and text.isdigit()


def decimal_or(text: str | bytes, default: _T, digits_max: int = LONG_DIGITS) -> int | _T:
    """Return the number if the text is one to `digits_max` ASCII digits, and `default` if not."""
    return int(text) if is_decimal(text, digits_max) else default
