"""Tests of `kourou topic`: changes, routes and groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_update_changes_only_the_given_options(kourou: Kourou) -> None:
    kourou("topic", "create", "t-update", "--queues", "4", "--attribute", "message.type=FIFO")

    changed = kourou(
        *("topic", "update", "t-update", "--write-queues", "2", "--access", "r"),
        *("--no-attribute", "message.type", "--order", "--json"),
    )

    [broker] = document(changed)["brokers"]
    assert broker == {
        "broker": "broker-a",
        "read_queues": 4,
        "write_queues": 2,
        "perm": "R--",
        "order": True,
        "attributes": {},
    }
    assert document(kourou("namesrv", "kv", "get", "ORDER_TOPIC_CONFIG", "t-update", "--json")) == {
        "namespace": "ORDER_TOPIC_CONFIG",
        "key": "t-update",
        "value": "broker-a:2",
    }


def test_creating_an_existing_topic_keeps_its_queues(kourou: Kourou) -> None:
    kourou("topic", "create", "t-again", "--queues", "3")

    assert kourou("topic", "create", "t-again").out == (
        "t-again: 3 queues on broker-a\nit already existed on broker-a; nothing changed\n"
    )
    assert kourou("topic", "create", "t-again", "--queues", "5").out.splitlines() == [
        "t-again: 5 queues on broker-a",
        "it already existed on broker-a; changed",
        "  broker-a: read_queue_nums 3 -> 5",
        "  broker-a: write_queue_nums 3 -> 5",
    ]
    reported = json.loads(kourou("topic", "create", "t-again", "--access", "r", "--json").out)
    assert reported["existed"]
    assert reported["changes"] == {"broker-a": {"perm": ["RW-", "R--"]}}
    assert not json.loads(kourou("topic", "create", "t-fresh", "--json").out)["existed"]


def test_topic_table_shows_attributes(kourou: Kourou) -> None:
    kourou("topic", "create", "t-table")
    shown = kourou("topic", "update", "t-table", "--attribute", "+message.type=DELAY").out

    assert shown.splitlines()[1].endswith("RW-     no       message.type=DELAY")


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("update", "t-nothing", "--queues", "3"), 1, "kourou topic create t-nothing"),
        (("update", "t-refused"), 2, "nothing to change"),
        (("update", "t-refused", "--attribute", "x"), 2, "--attribute 'x' is not KEY=VALUE"),
        (("update", "t-refused", "--attribute", "a=1", "--attribute", "a=2"), 2, "a twice"),
        (("update", "t-refused", "--attribute", "colour=red"), 1, "unsupported key: colour"),
        (("update", "t-refused", "--queues", "3", "--broker", "b"), 1, "but on: broker-a"),
        (("create", "t-refused", "--cluster", "elsewhere"), 1, "in cluster elsewhere"),
        (("create", "t-refused", "--queues", "0"), 2, "--queues"),
        (("route", "t-nothing"), 1, "t-nothing"),
        (("groups", "t nothing"), 2, "allowed are"),
    ],
)
def test_invalid_arguments_are_refused_with_the_allowed_values(
    kourou: Kourou, args: tuple[str, ...], code: int, text: str
) -> None:
    kourou("topic", "create", "t-refused")

    refused = kourou("topic", *args)

    assert (refused.code, refused.out) == (code, "")
    assert text in refused.err


def test_route_shows_addresses(kourou: Kourou, serving: Serving) -> None:
    kourou("topic", "create", "t-route", "--queues", "2")

    found = document(kourou("topic", "route", "t-route", "--json"))

    assert found["brokers"] == [
        {
            "broker": "broker-a",
            "cluster": "DefaultCluster",
            "read_queues": 2,
            "write_queues": 2,
            "perm": "RW-",
            "addresses": {"0": serving.broker},
        }
    ]
    assert f"0={serving.broker}" in kourou("topic", "route", "t-route").out


def test_groups_lists_consumers_of_the_topic(kourou: Kourou) -> None:
    kourou("send", "t-groups", "x")
    none = kourou("topic", "groups", "t-groups")
    kourou("receive", "t-groups", "--group", "t-billing", "--from", "earliest", "--count", "1")

    assert none.out == "no group has consumed this topic\n"
    assert kourou("topic", "groups", "t-groups").out == "t-billing\n"
    assert document(kourou("topic", "groups", "t-groups", "--json"))["groups"] == ["t-billing"]


def test_topics_are_listed_by_cluster(kourou: Kourou) -> None:
    kourou("topic", "create", "t-cluster")

    here = document(kourou("topic", "list", "--cluster", "DefaultCluster", "--json"))
    assert "t-cluster" in [row["topic"] for row in here]
    assert document(kourou("topic", "list", "--cluster", "elsewhere", "--json")) == []


@pytest.mark.parametrize("kind", ["normal", "fifo", "delay", "transaction", "priority"])
def test_type_of_a_topic_is_its_attribute(kind: str, kourou: Kourou) -> None:
    created = kourou("topic", "create", f"t-type-{kind}", "--type", kind)

    assert created.code == 0, created.err
    [broker] = document(kourou("topic", "update", f"t-type-{kind}", "--queues", "4", "--json"))[
        "brokers"
    ]
    assert broker["attributes"] == {"message.type": kind.upper()}
    changed = kourou("topic", "update", f"t-type-{kind}", "--type", "normal", "--json")
    [broker] = document(changed)["brokers"]
    assert broker["attributes"] == {"message.type": "NORMAL"}


def test_type_and_its_attribute_exclude_each_other(kourou: Kourou) -> None:
    refused = kourou("topic", "create", "t-both", "--type", "fifo", "--attribute", "message.type=X")

    assert refused.code == 2
    assert "--type and --attribute message.type exclude each other" in refused.err
