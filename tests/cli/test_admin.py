"""Tests of `kourou topic` and `kourou group` with a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kourou.cli.topic_text import Kind, kind_of
from kourou.testing.process import Outcome

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_a_topic_is_created_listed_and_described(kourou: Kourou) -> None:
    created = kourou("topic", "create", "a-orders", "--queues", "4")
    summarize = {row["topic"]: row for row in document(kourou("topic", "list", "--json"))}
    described = document(kourou("topic", "describe", "a-orders", "--json"))

    assert created.out == "a-orders: 4 queues on broker-a\n"
    assert summarize["a-orders"] == {
        "topic": "a-orders",
        "kind": "own",
        "brokers": ["broker-a"],
        "queues": 4,
        "perm": "RW-",
    }
    assert described["brokers"] == [
        {
            "broker": "broker-a",
            "read_queues": 4,
            "write_queues": 4,
            "perm": "RW-",
            "order": False,
            "attributes": {},
        }
    ]
    assert [queue["queue_id"] for queue in described["queues"]] == [0, 1, 2, 3]


def test_describe_counts_messages_by_queue(kourou: Kourou) -> None:
    kourou("topic", "create", "a-count", "--queues", "2")
    kourou("send", "a-count", "x", "--count", "5")

    queues = document(kourou("topic", "describe", "a-count", "--json"))["queues"]
    text = kourou("topic", "describe", "a-count").out

    assert sum(queue["max_offset"] - queue["min_offset"] for queue in queues) == 5
    assert all(queue["last_store_at_ms"] > 0 for queue in queues)
    assert text.splitlines()[0].split()[0] == "BROKER"
    assert text.splitlines()[-1].startswith("5 messages, ")


def test_system_topics_are_listed_with_all(kourou: Kourou) -> None:
    own = {row["topic"] for row in document(kourou("topic", "list", "--json"))}
    every = {row["topic"]: row["kind"] for row in document(kourou("topic", "list", "-a", "--json"))}

    assert "SCHEDULE_TOPIC_XXXX" not in own
    assert every["SCHEDULE_TOPIC_XXXX"] == "system"
    assert {every["broker-a"], every["DefaultCluster"]} == {"system"}
    assert every["DefaultCluster_REPLY_TOPIC"] == "system"


def test_a_topic_may_be_closed_for_sends(kourou: Kourou) -> None:
    kourou("topic", "create", "a-closed", "--access", "r")
    outcome = kourou("send", "a-closed", "x", "--timeout", "3")

    assert outcome.code == 1
    assert "a-closed" in outcome.err


def test_topic_is_deleted_only_after_confirmation(kourou: Kourou) -> None:
    kourou("topic", "create", "a-gone")
    refused = kourou("topic", "delete", "a-gone")
    deleted = kourou("topic", "delete", "a-gone", "--yes")
    described = kourou("topic", "describe", "a-gone")

    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert (deleted.code, deleted.out) == (0, "a-gone: deleted\n")
    assert described.code == 1
    assert "a-gone" in described.err


@pytest.mark.parametrize("act", ["create", "delete"])
def test_system_topic_cannot_be_changed(kourou: Kourou, act: str) -> None:
    more = ("--yes",) if act == "delete" else ()
    outcome = kourou("topic", act, "SCHEDULE_TOPIC_XXXX", *more)

    assert outcome.code == 2
    assert "SCHEDULE_TOPIC_XXXX is a system topic" in outcome.err


def test_a_group_shows_its_lag_by_queue(kourou: Kourou) -> None:
    kourou("topic", "create", "a-lag", "--queues", "1")
    kourou("send", "a-lag", "x", "--count", "7")
    as_group = ("--group", "a-billing", "--from", "earliest", "--count", "3", "--timeout", "60")
    assert kourou("receive", "a-lag", *as_group).code == 0

    summarize = {row["group"]: row for row in document(kourou("group", "list", "--json"))}
    described = document(kourou("group", "describe", "a-billing", "--json"))
    text = kourou("group", "describe", "a-billing").out

    assert summarize["a-billing"]["lag"] == described["lag"] == 4
    (queue,) = [row for row in described["queues"] if row["topic"] == "a-lag"]
    assert (queue["committed_offset"], queue["max_offset"], queue["lag"]) == (3, 7, 4)
    assert text.splitlines()[0] == "no live member"
    assert "4 messages behind" in text.splitlines()


def test_tools_group_is_hidden_and_does_not_affect_deletion(kourou: Kourou) -> None:
    kourou("send", "a-tools", "x")
    kourou("receive", "a-tools", "--from", "earliest", "--count", "1")

    own = {row["group"] for row in document(kourou("group", "list", "--json"))}
    every = {row["group"] for row in document(kourou("group", "list", "--all", "--json"))}

    assert "TOOLS_CONSUMER" not in own
    assert "TOOLS_CONSUMER" in every


def test_an_unknown_group_or_topic_is_named(kourou: Kourou) -> None:
    group = kourou("group", "describe", "a-nobody")
    topic = kourou("topic", "describe", "a-nothing")

    assert (group.code, topic.code) == (1, 1)
    assert "a-nobody" in group.err
    assert "kourou group list" in group.err
    assert "a-nothing" in topic.err


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("orders", Kind.OWN),
        ("%RETRY%billing", Kind.RETRY),
        ("%DLQ%billing", Kind.DLQ),
        ("TBW102", Kind.SYSTEM),
        ("rmq_sys_x", Kind.SYSTEM),
    ],
)
def test_topic_kind_follows_from_its_name(name: str, kind: Kind) -> None:
    assert kind_of(name) is kind
