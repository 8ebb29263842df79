"""Numbers are formatted as in Java."""

from __future__ import annotations

import pytest

from kourou.broker.java_text import bool_text, bytes_text, double_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (12.0, "12.0"),
        (0.05, "0.05"),
        (474.7857142857143, "474.7857142857143"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (0.00012345, "1.2345E-4"),
        (9_999_999.0, "9999999.0"),
        (10_000_000.0, "1.0E7"),
        (12_345_678.5, "1.23456785E7"),
        (1e22, "1.0E22"),
        (-0.0001, "-1.0E-4"),
    ],
)
def test_doubles_are_formatted_as_in_java(value: float, text: str) -> None:
    assert double_text(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (250_497_884_160, "233.3 GiB"),
        (1 << 50, "1.0 PiB"),
        (1 << 60, "1.0 EiB"),
    ],
)
def test_byte_counts_are_formatted_as_in_java(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_booleans_are_formatted_as_in_java() -> None:
    assert (bool_text(True), bool_text(False)) == ("true", "false")
