"""Numbers in the texts of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.decimals import INT_DIGITS, LONG_DIGITS, decimal_or, is_decimal


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "+1", "-1", "1_0", "1.0", "0x1", "²", "٣", "1\n", "one", "\x00"]
)
def test_a_text_that_is_not_only_ascii_digits_is_no_number(text: str) -> None:
    assert not is_decimal(text)
    assert decimal_or(text, None) is None
    assert decimal_or(text.encode(), -1) == -1


def test_a_text_of_more_digits_than_int_converts_is_no_number() -> None:
    assert decimal_or("1" * 5_000, 0) == 0
    assert decimal_or(b"1" * 5_000, 0) == 0


@given(st.integers(0, 10**LONG_DIGITS - 1))
def test_every_number_within_the_limit_is_read(number: int) -> None:
    assert decimal_or(str(number), None) == number
    assert decimal_or(b"%d" % number, None) == number


def test_a_digit_above_the_limit_is_refused() -> None:
    assert decimal_or("9" * 4, None, 4) == 9_999
    assert decimal_or("9" * 5, None, 4) is None


def test_numbers_of_the_default_limits_fit_their_types() -> None:
    assert 10**LONG_DIGITS - 1 <= 2**63 - 1 < 10 ** (LONG_DIGITS + 1)
    assert 10**INT_DIGITS - 1 <= 2**31 - 1 < 10 ** (INT_DIGITS + 1)
