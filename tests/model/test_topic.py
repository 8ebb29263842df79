"""Names and permissions are validated as in Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kourou.errors import InvalidGroupError, InvalidTopicError
from kourou.model import topic as topics
from kourou.model.topic import TopicConfig, check_client_group, check_group, check_topic

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
NAMES = json.loads((VECTORS / "names.json").read_text())
TABLES = json.loads((VECTORS / "tables.json").read_text())
VALIDATION = [case for case in NAMES["validation"] if case["name"] is not None]


@pytest.mark.parametrize("case", VALIDATION, ids=lambda c: repr(c["name"][:20]))
def test_names_are_validated_as_in_java(case: dict[str, Any]) -> None:
    name = case["name"]
    if case["topic_result"]["ok"]:
        check_topic(name)
    else:
        with pytest.raises(InvalidTopicError):
            check_topic(name)
    if case["group_result"]["ok"]:
        check_group(name)
    else:
        with pytest.raises(InvalidGroupError):
            check_group(name)
    assert topics.is_system_topic(name) == case["system_topic"]
    assert topics.is_system_group(name) == case["system_group"]
    assert (name in topics.NOT_ALLOWED_SEND_TOPICS) == case["send_not_allowed"]


def test_name_with_a_line_break_is_refused() -> None:
    with pytest.raises(InvalidTopicError):
        check_topic("T\n")
    with pytest.raises(InvalidGroupError):
        check_group("g\n")


def test_placeholder_group_is_refused_for_clients() -> None:
    check_client_group("orders")
    for name in ("DEFAULT_PRODUCER", "DEFAULT_CONSUMER"):
        check_group(name)
        with pytest.raises(InvalidGroupError, match="reserved"):
            check_client_group(name)


def test_system_topics_equal_javas() -> None:
    assert sorted(topics.SYSTEM_TOPICS) == NAMES["system_topics"]
    assert sorted(topics.NOT_ALLOWED_SEND_TOPICS) == NAMES["not_allowed_send_topics"]


@pytest.mark.parametrize("case", NAMES["cases"], ids=lambda c: c["group"])
def test_retry_and_dead_letter_topics_are_named_after_the_group(case: dict[str, str]) -> None:
    retry, dlq = topics.retry_topic(case["group"]), topics.dlq_topic(case["group"])

    assert (retry, dlq) == (case["retry"], case["dlq"])
    assert topics.is_retry_topic(retry)
    assert not topics.is_retry_topic(dlq)
    assert topics.is_dlq_topic(dlq)
    assert not topics.is_dlq_topic(retry)


@pytest.mark.parametrize("case", TABLES["perm"], ids=lambda c: str(c["perm"]))
def test_permissions_equal_javas(case: dict[str, Any]) -> None:
    perm = case["perm"]
    config = TopicConfig("T", perm=perm)

    assert config.is_readable == case["readable"]
    assert config.is_writable == case["writeable"]
    assert topics.is_inherited(perm) == case["inherited"]
    assert topics.format_perm(perm) == case["text"]
    assert (perm <= topics.PERM_MAX) == case["valid"]


def test_topic_flags_equal_javas() -> None:
    flags = TABLES["topic_sys_flag"]

    assert (flags["unit"], flags["unit_sub"]) == (topics.TOPIC_UNIT, topics.TOPIC_UNIT_SUB)
