"""Tests of offset options."""

from __future__ import annotations

import pytest

from kourou.errors import ConfigError
from kourou.spark.offsets import EARLIEST, LATEST, Offsets, parse_offsets

FIRST = Offsets("startingOffsets", EARLIEST)


@pytest.mark.parametrize("text", ["earliest", "Earliest", " earliest "])
def test_word_applies_to_every_queue(text: str) -> None:
    assert parse_offsets("startingOffsets", text, "flights") == FIRST


def test_json_names_topic_broker_and_queue() -> None:
    text = '{"flights": {"broker-a": {"0": 23, "1": -2}, "broker-b": {"0": -1}}}'

    offsets = parse_offsets("endingOffsets", text, "flights")

    assert offsets.for_all_queues is None
    assert offsets.by_queue == {
        ("broker-a", 0): 23,
        ("broker-a", 1): EARLIEST,
        ("broker-b", 0): LATEST,
    }


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("yesterday", "expected earliest, latest or JSON"),
        ("{", "expected earliest, latest or JSON"),
        ("[]", "the topic 'flights' only"),
        ('{"trains": {}}', "the topic 'flights' only"),
        ('{"flights": {}, "trains": {}}', "the topic 'flights' only"),
        ('{"flights": 5}', "found 5 instead of an object"),
        ('{"flights": {"broker-a": [1]}}', "found [1] instead of an object"),
        ('{"flights": {"broker-a": {"one": 1}}}', "'one' of 'broker-a' is not a queue id"),
        ('{"flights": {"broker-a": {"0": -3}}}', "-3 of queue 0 of 'broker-a' is not an offset"),
        ('{"flights": {"broker-a": {"0": "7"}}}', "'7' of queue 0 of 'broker-a' is not an offset"),
        (
            '{"flights": {"broker-a": {"0": true}}}',
            "True of queue 0 of 'broker-a' is not an offset",
        ),
        ('{"flights": {"broker-a": {"0": 1, "0": 2}}}', "duplicate key"),
    ],
)
def test_a_bad_value_is_refused_with_the_option_and_the_reason(text: str, reported: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_offsets("endingOffsets", text, "flights")

    assert str(caught.value).startswith("endingOffsets")
    assert reported in str(caught.value)
