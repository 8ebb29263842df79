"""Enums have the wire's values in the wire's order, and groups have Java's defaults."""

from __future__ import annotations

import json
from pathlib import Path

from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionGroup

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"


def test_enums_equal_javas_in_order() -> None:
    codes = json.loads((VECTORS / "codes.json").read_text())

    assert [e.value for e in ConsumeFromWhere] == codes["ConsumeFromWhere"]
    assert [e.value for e in ConsumeType] == codes["ConsumeType"]
    assert [e.value for e in MessageModel] == codes["MessageModel"]


def test_new_group_retries_sixteen_times_with_the_customized_policy() -> None:
    group = SubscriptionGroup("g")

    assert group.retry_max_times == 16
    assert group.group_retry_policy == {"type": "CUSTOMIZED"}
