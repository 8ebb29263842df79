"""Tests of the options that name the start and the end of a read."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import ConfigError, UsageError
from kourou.model.queue import MessageQueue
from kourou.spark.positions import (
    EARLIEST,
    LATEST,
    Offset,
    Positions,
    Time,
    parse_assignment,
    parse_offsets,
    parse_time,
    parse_times_by_queue,
)

Q0 = MessageQueue("flights", "broker-a", 0)
Q1 = MessageQueue("flights", "broker-a", 1)
OTHER = MessageQueue("trains", "broker-b", 0)
NOW_MS = 1_735_819_384_125


@pytest.mark.parametrize("text", ["earliest", "Earliest", " earliest "])
def test_word_applies_to_every_queue(text: str) -> None:
    assert parse_offsets("startingOffsets", text).of(Q0) is EARLIEST


def test_json_names_topic_broker_and_queue() -> None:
    text = json.dumps(
        {"flights": {"broker-a": {"0": 23, "1": -2}}, "trains": {"broker-b": {0: -1}}}
    )

    positions = parse_offsets("endingOffsets", text)

    assert positions.by_queue == {Q0: Offset(23), Q1: EARLIEST, OTHER: LATEST}
    assert positions.of(Q0) == Offset(23)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("yesterday", "expected earliest, latest or JSON"),
        ("{", "expected earliest, latest or JSON"),
        ("[" * 100_000, "expected earliest, latest or JSON"),
        ("[]", "found [] instead of an object"),
        ("{}", "found no queue"),
        ('{"flights": {}}', "found no queue"),
        ('{"flights": 5}', "found 5 instead of an object"),
        ('{"flights": {"broker-a": [1]}}', "found [1] instead of an object"),
        ('{"flights": {"broker-a": {"one": 1}}}', "'one' of 'broker-a' is not a queue id"),
        ('{"flights": {"broker-a": {"00": 1}}}', "'00' of 'broker-a' is not a queue id"),
        ('{"flights": {"broker-a": {"0": -3}}}', "-3 of queue 0 of 'flights' on 'broker-a' is not"),
        ('{"flights": {"broker-a": {"0": "7"}}}', "'7' of queue 0 of"),
        ('{"flights": {"broker-a": {"0": true}}}', "True of queue 0 of"),
        ('{"flights": {"broker-a": {"0": 9223372036854775808}}}', "is not an offset"),
        ('{"flights": {"broker-a": {"0": 1, "0": 2}}}', "duplicate key"),
    ],
)
def test_bad_offsets_are_refused_with_the_option_and_the_reason(text: str, reported: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_offsets("endingOffsets", text)

    assert str(caught.value).startswith("endingOffsets")
    assert reported in str(caught.value)


@given(st.text(max_size=40) | st.recursive(st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for parse in (
        parse_offsets,
        parse_assignment,
        lambda option, text: parse_time(option, text, NOW_MS),
        lambda option, text: parse_times_by_queue(option, text, NOW_MS),
    ):
        with contextlib.suppress(UsageError):
            assert parse("option", text)


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1735689600000", 1_735_689_600_000),
        ("-1h", NOW_MS - 3_600_000),
        ("2025-01-01T00:00Z", 1_735_689_600_000),
    ],
)
def test_time_is_epoch_ms_iso_or_a_span_before_now(text: str, at_ms: int) -> None:
    assert parse_time("startingTimestamp", text, NOW_MS).of(Q0) == Time(at_ms)


def test_times_by_queue_are_numbers_or_texts() -> None:
    text = '{"flights": {"broker-a": {"0": 5, "1": "-1h"}}}'

    positions = parse_times_by_queue("startingOffsetsByTimestamp", text, NOW_MS)

    assert positions.by_queue == {Q0: Time(5), Q1: Time(NOW_MS - 3_600_000)}


@pytest.mark.parametrize(
    ("value", "reported"),
    [("-1", "is not a time"), ("null", "is not a time"), ('"soon"', "'soon' is not a time")],
)
def test_bad_time_of_a_queue_is_refused_with_the_queue(value: str, reported: str) -> None:
    with pytest.raises(UsageError, match=reported) as caught:
        parse_times_by_queue("byTime", f'{{"flights": {{"broker-a": {{"0": {value}}}}}}}', NOW_MS)

    assert str(caught.value).startswith("byTime")
    assert "queue 0 of 'flights' on 'broker-a'" in str(caught.value)


def test_positions_must_name_each_queue_once() -> None:
    positions = Positions("startingOffsets", None, {Q0: Offset(1)})

    positions.check_queues([Q0])
    with pytest.raises(ConfigError, match="startingOffsets does not name flights/broker-a/1"):
        positions.check_queues([Q0, Q1])
    with pytest.raises(ConfigError, match="do not exist: flights/broker-a/0"):
        positions.check_queues([])
    with pytest.raises(ConfigError, match="does not name flights/broker-a/1"):
        positions.of(Q1)


def test_positions_for_all_queues_fit_any_queues_and_topics() -> None:
    positions = Positions("startingOffsets", LATEST)

    positions.check_queues([Q0, OTHER])
    positions.check_topics(["any"])
    assert positions.includes(LATEST)
    assert not positions.includes(EARLIEST)


def test_positions_of_other_topics_are_refused() -> None:
    positions = Positions("startingOffsets", None, {Q0: Offset(1)})

    positions.check_topics(["flights"])
    with pytest.raises(ConfigError, match=r"has the queues of 'flights': expected .* 'trains'"):
        positions.check_topics(["trains"])


def test_assignment_lists_queue_ids_by_topic_and_broker() -> None:
    text = '{"flights": {"broker-a": [1, 0]}, "trains": {"broker-b": [7]}}'

    assert parse_assignment("assign", text) == {
        "flights": {"broker-a": (0, 1)},
        "trains": {"broker-b": (7,)},
    }


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("flights", "expected JSON"),
        ("{}", "found no queue"),
        ('{"flights": [0]}', "found [0] instead of an object"),
        ('{"flights": {"broker-a": []}}', "found [] instead of queue ids"),
        ('{"flights": {"broker-a": [-1]}}', "found [-1] instead of queue ids"),
        ('{"flights": {"broker-a": [true]}}', "found [True] instead of queue ids"),
        ('{"flights": {"broker-a": [0, 0]}}', "repeats a queue id"),
    ],
)
def test_bad_assignment_is_refused_with_its_form(text: str, reported: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_assignment("assign", text)

    assert str(caught.value).startswith("assign")
    assert reported in str(caught.value)
