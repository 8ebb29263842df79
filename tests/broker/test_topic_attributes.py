"""Attributes are changed in the format of RocketMQ's admin tool; invalid changes are refused."""

from __future__ import annotations

import pytest

from kourou.broker.topic_attributes import change_attributes
from kourou.errors import RemoteSystemError


def test_attributes_are_set_changed_and_removed() -> None:
    made = change_attributes({}, "+message.type=FIFO,+queue.type=SimpleCQ", is_new=True)
    changed = change_attributes(made, " +message.type=DELAY , +reserve.time=5", is_new=False)
    removed = change_attributes(changed, "-reserve.time", is_new=False)

    assert made == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    assert changed == {"message.type": "DELAY", "queue.type": "SimpleCQ", "reserve.time": "5"}
    assert removed == {"message.type": "DELAY", "queue.type": "SimpleCQ"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reserve.time", "-1"),
        ("reserve.time", "0"),
        ("reserve.time", "9223372036854775807"),
        ("lite.topic.expiration", "-1"),
        ("lite.topic.expiration", "43200"),
    ],
)
def test_ranges_of_numbers_are_those_of_java(name: str, value: str) -> None:
    assert change_attributes({}, f"+{name}={value}", is_new=True) == {name: value}


@pytest.mark.parametrize("change", [None, "", " , "])
def test_an_empty_change_keeps_all_attributes(change: str | None) -> None:
    assert change_attributes({"message.type": "FIFO"}, change, is_new=False) == {
        "message.type": "FIFO"
    }


def test_an_unchangeable_attribute_may_be_set_to_its_current_value() -> None:
    current = {"queue.type": "SimpleCQ"}

    assert change_attributes(current, "+queue.type=SimpleCQ", is_new=False) == current


@pytest.mark.parametrize(
    ("change", "is_new", "reason"),
    [
        ("+no.such=1", True, "unsupported key: no.such"),
        ("+queue.type=BatchCQ", False, "unchangeable attribute. key: queue.type"),
        ("-queue.type", False, "unchangeable attribute. key: queue.type"),
        ("-reserve.time", False, "nonexistent key: reserve.time"),
        ("-queue.type", True, "nonexistent key: queue.type"),
        ("+message.type=LOUD", True, "message.type=LOUD"),
        ("+lite.topic.expiration=43201", True, "lite.topic.expiration=43201"),
        ("+reserve.time=-2", True, "reserve.time=-2"),
        ("+reserve.time=9223372036854775808", True, "does not allow this value"),
        ("+lite.topic.expiration=-2", True, "does not allow this value"),
        ("+reserve.time=soon", True, "reserve.time=soon"),
        ("+message.type=FIFO,-message.type", False, "duplication key. key: message.type"),
        ("message.type=FIFO", True, "neither"),
        ("+message.type", True, "neither"),
        ("+=x", True, "neither"),
    ],
)
def test_an_invalid_change_is_refused_with_its_reason(
    change: str, is_new: bool, reason: str
) -> None:
    with pytest.raises(RemoteSystemError, match=reason):
        change_attributes({"queue.type": "SimpleCQ"}, change, is_new=is_new)
