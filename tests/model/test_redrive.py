"""Tests of the rule of redrives: the properties of a copy, and the recognition of copies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.model import properties as names
from kourou.model.redrive import (
    copies_since_ms,
    is_redriven_copy,
    origin_topic,
    redriven_properties,
)

OFFSET_ID = "7F00000100002A9F0000000000000000"
PROPERTIES = st.dictionaries(
    st.sampled_from(
        [*names.DELIVERY_PROPERTIES, names.RETRY_TOPIC, names.UNIQ_KEY, names.KEYS, "color"]
    ),
    st.text("ab", min_size=1, max_size=3),
)


@given(PROPERTIES, st.booleans())
def test_a_copy_keeps_what_does_not_describe_a_delivery(
    properties: dict[str, str], to_topic: bool
) -> None:
    copy = redriven_properties(properties, OFFSET_ID, to_topic=to_topic)

    dropped = {*names.DELIVERY_PROPERTIES, *([names.RETRY_TOPIC] if to_topic else [])}
    kept = {name: value for name, value in properties.items() if name not in dropped}
    assert copy == {**kept, names.REDRIVEN_FROM: OFFSET_ID}


@given(PROPERTIES, st.booleans())
def test_a_copy_is_recognized_and_its_own_dead_letter_has_another_copy(
    properties: dict[str, str], to_topic: bool
) -> None:
    unique_id = properties.get(names.UNIQ_KEY)
    copy = redriven_properties(properties, OFFSET_ID, to_topic=to_topic)

    assert is_redriven_copy(copy, OFFSET_ID, unique_id)
    assert not is_redriven_copy(properties, OFFSET_ID, unique_id)
    assert not is_redriven_copy(copy, OFFSET_ID[:-1] + "1", unique_id)
    again = redriven_properties(copy, OFFSET_ID[:-1] + "1", to_topic=to_topic)
    assert not is_redriven_copy(again, OFFSET_ID, unique_id)


def test_a_copy_of_another_message_at_the_same_position_is_not_recognized() -> None:
    copy = {names.REDRIVEN_FROM: OFFSET_ID, names.UNIQ_KEY: "of a store that was replaced"}

    assert not is_redriven_copy(copy, OFFSET_ID, "id")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"RETRY_TOPIC": "orders", "DLQ_ORIGIN_TOPIC": "other"}, "orders"),
        ({"DLQ_ORIGIN_TOPIC": "orders"}, "orders"),
        ({"RETRY_TOPIC": "%RETRY%billing"}, None),
        ({"DLQ_ORIGIN_TOPIC": "%RETRY%billing"}, None),
        ({}, None),
    ],
)
def test_the_original_topic_is_named_by_properties(
    properties: dict[str, str], expected: str | None
) -> None:
    assert origin_topic(properties) == expected


def test_copies_may_be_stored_by_a_clock_that_is_behind() -> None:
    assert copies_since_ms(1_000_000) == 400_000
    assert copies_since_ms(1) == 0
