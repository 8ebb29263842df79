"""Tests of stamps, which identify the row that a message was made of."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from kourou.spark.stamps import KEYED_PATTERN, Stamps


def test_stamp_names_write_batch_partition_and_row() -> None:
    assert Stamps("q", 3, 7).of_row(11) == "q:3:7:11"


def test_stamp_with_a_key_names_no_position() -> None:
    assert Stamps("q", 3, 7).of_key("a:b") == Stamps("q", 3, 0).of_key("a:b") == "q:3:=a:b"


@given(st.integers(0), st.integers(0), st.integers(0), st.text())
def test_the_pattern_tells_both_kinds_apart(batch: int, partition: int, row: int, key: str) -> None:
    stamps = Stamps("3f0-a", batch, partition)

    assert re.match(KEYED_PATTERN, stamps.of_key(key))
    assert not re.match(KEYED_PATTERN, stamps.of_row(row))


def test_error_texts_name_one_row_or_several() -> None:
    stamps = Stamps("nightly", 0, 2)

    assert stamps.describe(5) == "row 5 of partition 2 of batch 0 of nightly"
    assert stamps.describe(5, 5) == "row 5 of partition 2 of batch 0 of nightly"
    assert stamps.describe(5, 9) == "rows 5 to 9 of partition 2 of batch 0 of nightly"
