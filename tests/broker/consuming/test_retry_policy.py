"""Delay levels of sent-back messages by a group's retry policy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.consuming.retry import policy_delay_ms, retry_level
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.model.group import SubscriptionGroup


def customized(*delays: object) -> dict[str, object]:
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": list(delays)}}


def exponential(**values: object) -> dict[str, object]:
    return {"type": "EXPONENTIAL", "exponentialRetryPolicy": values}


def levels(policy: dict[str, Any]) -> list[int]:
    group = SubscriptionGroup("g", group_retry_policy=policy)
    return [retry_level(group, times, DELAY_LEVELS_MS) for times in (0, 1, 2, 15, 99)]


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "CUSTOMIZED"},
        {},
        {"type": "EXPONENTIAL"},
        customized(),
        customized("10"),
        customized(0, 0, True),
        exponential(initial=-1),
        exponential(multiplier=1.5),
        {"type": "CUSTOMIZED", "customizedRetryPolicy": [1]},
    ],
)
def test_without_a_valid_policy_each_redelivery_waits_a_level_longer(
    policy: dict[str, object],
) -> None:
    assert levels(policy) == [3, 4, 5, 18, 18]


def test_a_customized_policy_begins_with_its_third_delay_and_repeats_its_last() -> None:
    assert levels(customized(1, 2, 5_000, 60_000)) == [2, 5, 5, 5, 5]
    assert levels(customized(60_000)) == [5] * 5


def test_an_exponential_policy_grows_to_its_maximum() -> None:
    assert levels(exponential(initial=1_000, max=600_000, multiplier=10)) == [1, 3, 6, 14, 14]
    assert levels(exponential()) == [2, 3, 4, 18, 18]


def test_a_delay_beyond_the_highest_level_waits_at_it() -> None:
    assert levels(customized(86_400_000)) == [18] * 5


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["next", "initial", "max", "multiplier"]), inner)
        ),
        max_leaves=6,
    ),
    st.sampled_from(["CUSTOMIZED", "EXPONENTIAL", "else", 1]),
    st.integers(0, 2**31 - 1),
)
def test_any_policy_gives_a_valid_delay_or_none(inner: object, kind: object, times: int) -> None:
    policy = {"type": kind, "customizedRetryPolicy": inner, "exponentialRetryPolicy": inner}
    delay_ms = policy_delay_ms(policy, times)
    assert delay_ms is None or delay_ms >= 0
