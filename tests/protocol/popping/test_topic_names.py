"""Names of retry topics are built and taken apart as by Java, and collisions are recognized."""

from __future__ import annotations

import pytest

from kourou.protocol.popping.topic_names import (
    NOT_RETRY,
    RETRY_V1,
    RETRY_V2,
    normal_topic,
    real_topic,
    retry_topic_v1,
    retry_topic_v2,
    revive_topic,
    topic_kind,
)


def test_revive_topic_is_named_after_the_cluster() -> None:
    assert revive_topic("DefaultCluster") == "rmq_sys_REVIVE_LOG_DefaultCluster"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(NOT_RETRY, "T"), (RETRY_V1, "%RETRY%g_T"), (RETRY_V2, "%RETRY%g+T")],
)
def test_kind_of_a_topic_determines_its_name(kind: str, name: str) -> None:
    assert real_topic("T", "g", kind) == name
    assert topic_kind(name) == kind
    assert normal_topic(name, "g") == "T"


def test_retry_topic_of_another_group_or_of_no_topic_is_not_taken_apart() -> None:
    assert normal_topic("%RETRY%other_T", "g") == "%RETRY%other_T"
    assert normal_topic("%RETRY%g", "g") == "%RETRY%g"
    assert normal_topic("%RETRY%g_", "g") == "%RETRY%g_"
    assert topic_kind("%RETRY%g") == RETRY_V1


def test_names_of_version_1_collide_and_of_version_2_do_not() -> None:
    assert retry_topic_v1("a", "b_c") == retry_topic_v1("a_b", "c")
    assert retry_topic_v2("a", "b_c") != retry_topic_v2("a_b", "c")
    assert normal_topic("%RETRY%a_b_c", "a") == "b_c"
    assert normal_topic("%RETRY%a_b_c", "a_b") == "c"
