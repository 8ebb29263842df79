"""Tag expressions give the subscriptions that Java's client builds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import FilterSyntaxError
from kourou.filter.tags import matches_code, matches_tag, parse_tags
from kourou.protocol.hashing import tags_code
from kourou.protocol.json_records import to_json

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
CASES = [
    case
    for case in json.loads((VECTORS / "tag_subscription.json").read_text())["cases"]
    if case.get("type") in (None, "TAG")
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: repr(c["expression"]))
def test_expression_gives_the_subscription_of_java(case: dict[str, Any]) -> None:
    if "error" in case["result"]:
        with pytest.raises(FilterSyntaxError):
            parse_tags("T", case["expression"])
        return
    expected = case["result"] | {
        "codeSet": sorted(case["result"]["codeSet"]),
        "tagsSet": sorted(case["result"]["tagsSet"]),
    }

    assert to_json(parse_tags("T", case["expression"])) == expected


def test_subscription_has_the_given_version() -> None:
    assert parse_tags("T", "*", 7).sub_version == 7
    assert parse_tags("T", "a", 8).sub_version == 8


def test_star_matches_every_tag_and_untagged_messages() -> None:
    everything = parse_tags("T", "*")

    assert matches_code(everything, 0)
    assert matches_code(everything, tags_code("TagA"))
    assert matches_tag(everything, None)
    assert matches_tag(everything, "TagA")


def test_tags_match_only_their_own_messages() -> None:
    subscription = parse_tags("T", "TagA || TagB")

    assert matches_code(subscription, tags_code("TagA"))
    assert matches_tag(subscription, "TagB")
    assert not matches_code(subscription, tags_code("TagC"))
    assert not matches_tag(subscription, "TagC")
    assert not matches_code(subscription, tags_code(None))
    assert not matches_tag(subscription, None)


def test_tag_with_a_colliding_hash_passes_the_broker_only() -> None:
    subscription = parse_tags("T", "Aa")

    assert matches_code(subscription, tags_code("BB"))
    assert not matches_tag(subscription, "BB")


@given(st.text())
def test_any_expression_parses_or_is_refused(expression: str) -> None:
    try:
        subscription = parse_tags("T", expression)
    except FilterSyntaxError:
        assert not expression.replace("||", "")
    else:
        assert all(matches_tag(subscription, tag) for tag in subscription.tags_set)
        assert all(matches_code(subscription, tags_code(tag)) for tag in subscription.tags_set)


def test_too_long_expression_is_refused_with_the_limit() -> None:
    longest = "||".join(["tag"] * 13_107)
    assert parse_tags("T", longest).tags_set == {"tag"}

    with pytest.raises(FilterSyntaxError, match="70000 characters, at most 65536"):
        parse_tags("T", "x" * 70_000)
