"""Members of parsed JSON are converted as in Java."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kourou.errors import MalformedBodyError
from kourou.protocol import json_values as j


def number_of(parent: dict[str, Any], name: str) -> float:
    return j.as_number(parent[name], name)


def test_missing_and_null_members_get_the_default() -> None:
    for parent in ({}, {"a": None}):
        assert j.get_object(parent, "a") == {}
        assert j.get_list(parent, "a") == []
        assert j.get_texts(parent, "a") == []
        assert j.get_text_map(parent, "a") == {}
        assert j.get_text(parent, "a", "x") == "x"
        assert j.get_optional_text(parent, "a") is None
        assert j.get_integer(parent, "a", 7) == 7
        assert j.get_boolean(parent, "a", default=True) is True


def test_numbers_and_booleans_may_be_texts() -> None:
    assert j.get_integer({"a": "-12"}, "a") == -12
    assert j.get_boolean({"a": "true"}, "a") is True
    assert j.get_boolean({"a": "false"}, "a", default=True) is False


def test_members_are_returned_by_type() -> None:
    assert j.get_object({"a": {"b": 1}}, "a") == {"b": 1}
    assert j.get_texts({"a": ["x", "y"]}, "a") == ["x", "y"]
    assert j.get_text_map({"a": {"x": "y", "z": None}}, "a") == {"x": "y"}
    assert j.get_optional_text({"a": ""}, "a") == ""
    assert j.get_integer({"a": 2**63 - 1}, "a") == 2**63 - 1
    assert j.as_number(3, "a") == 3.0
    assert j.get_boolean({"a": False}, "a", default=True) is False


@pytest.mark.parametrize(
    ("get", "value"),
    [
        (j.get_object, []),
        (j.get_list, {}),
        (j.get_texts, [1]),
        (j.get_texts, [None]),
        (j.get_text_map, {"x": 1}),
        (j.get_text, 1),
        (j.get_optional_text, []),
        (j.get_integer, 1.0),
        (j.get_integer, True),
        (j.get_integer, 2**63),
        (j.get_integer, "1.5"),
        (j.get_integer, "9" * 5000),
        (number_of, "1.5"),
        (number_of, False),
        (number_of, 10**400),
        (j.get_boolean, 1),
        (j.get_boolean, "TRUE"),
    ],
)
def test_wrong_type_is_refused_naming_the_member(get: Callable[..., Any], value: object) -> None:
    with pytest.raises(MalformedBodyError, match="member"):
        get({"member": value}, "member")


def test_deeply_nested_object_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(j.STORED_DEPTH_MAX - 1):
        deep = {"a": [deep]}

    assert j.as_stored_object({"a": [{"b": 1}]}, "policy") == {"a": [{"b": 1}]}
    with pytest.raises(MalformedBodyError, match="policy is nested deeper"):
        j.as_stored_object(deep, "policy")
