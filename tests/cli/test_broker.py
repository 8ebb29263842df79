"""Tests of `kourou broker`, `producer` and `stats`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kourou import blocking
from kourou.model.message import Message
from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_brokers_are_listed_with_their_state(kourou: Kourou, serving: Serving) -> None:
    (row,) = document(kourou("broker", "list", "--json"))
    text = kourou("broker", "list").out

    assert (row["broker"], row["id"], row["address"]) == ("broker-a", 0, serving.broker)
    assert (row["version"], row["active"], row["problem"]) == ("V5_5_0", True, None)
    assert 0 <= row["disk_ratio"] <= 1
    assert text.splitlines()[1].split()[-1] == "ok"


def test_broker_is_selected_by_name_or_address(kourou: Kourou, serving: Serving) -> None:
    (by_name,) = document(kourou("broker", "status", "broker-a", "--json"))
    by_address = kourou("broker", "status", serving.broker, "--grep", "BROKERactive")
    unknown = kourou("broker", "status", "nope")
    absent = kourou("broker", "status", "127.0.0.1:1")

    assert by_name["values"]["brokerVersionDesc"] == "V5_5_0"
    assert by_address.out.splitlines()[-1].split() == ["brokerActive", "true"]
    assert (unknown.code, "registered brokers: broker-a" in unknown.err) == (1, True)
    assert (absent.code, "127.0.0.1:1" in absent.err) == (3, True)


def test_settings_are_described_without_a_server_and_with_the_values_of_one(
    command: Kourou, kourou: Kourou
) -> None:
    (row,) = document(
        command("broker", "config", "--describe", "--grep", "flushDiskType", "--json")
    )
    text = kourou("broker", "config", "broker-a", "--describe", "--grep", "longPollingEnable").out

    assert (row["option"], row["default"], row["live"]) == ("flush_disk_type", "SYNC_FLUSH", False)
    assert row["choices"] == ["SYNC_FLUSH", "ASYNC_FLUSH"]
    assert row["meaning"].startswith("Durability of an acknowledged message:")
    assert text.splitlines()[:2] == [
        "longPollingEnable = true",
        "    long_polling_enable; default true; live",
    ]
    assert max(map(len, text.splitlines())) <= 80


def test_settings_are_shown_and_changed_while_the_broker_runs(kourou: Kourou) -> None:
    (found,) = document(kourou("broker", "config", "--grep", "longPolling", "--json"))
    changed = document(kourou("broker", "set", "broker-a", "longPollingEnable=false", "--json"))
    kourou("broker", "set", "broker-a", "longPollingEnable=true")
    unknown = kourou("broker", "set", "broker-a", "longPolling=false")
    fixed = kourou("broker", "set", "broker-a", "listenPort=1")
    malformed = kourou("broker", "set", "broker-a", "longPollingEnable")

    assert found["values"] == {"longPollingEnable": "true"}
    assert changed == [
        {
            "broker": "broker-a",
            "id": 0,
            "setting": "longPollingEnable",
            "old": "true",
            "new": "false",
        }
    ]
    assert (unknown.code, "kourou broker config broker-a" in unknown.err) == (2, True)
    assert "did you mean longPollingEnable?" in unknown.err
    assert (fixed.code, "restart" in fixed.err) == (1, True)
    assert (malformed.code, "KEY=VALUE" in malformed.err) == (2, True)


def test_all_groups_of_a_broker_are_shown_by_their_lag(kourou: Kourou) -> None:
    kourou("topic", "create", "b-lag", "--queues", "1")
    kourou("send", "b-lag", "x", "--count", "5")
    options = ("--group", "b-group", "--from", "earliest", "--count", "2", "--timeout", "60")
    kourou("receive", "b-lag", *options)

    rows = document(kourou("broker", "consume-stats", "broker-a", "--json"))
    behind = document(kourou("broker", "consume-stats", "--lag-min", "1", "--json"))
    ordered = kourou("broker", "consume-stats", "--ordered")

    (row,) = [one for one in rows if one["topic"] == "b-lag"]
    assert (row["group"], row["committed_offset"], row["max_offset"], row["lag"]) == (
        "b-group",
        2,
        5,
        3,
    )
    assert row in behind
    assert all(one["lag"] >= 1 for one in behind)
    assert ordered.out.splitlines()[-1] == "0 messages behind"


def test_live_producers_are_listed(kourou: Kourou, serving: Serving) -> None:
    with blocking.Producer("b-shop", serving.namesrv) as producer:
        producer.send(Message("b-orders", b"x"))
        rows = document(kourou("producer", "list", "--json"))
        members = document(kourou("producer", "connections", "b-shop", "--json"))
        named = kourou("producer", "connections", "b-shop", "--topic", "b-orders").out
        text = kourou("producer", "list", "--broker", "broker-a").out
    nobody = kourou("producer", "connections", "b-nobody")

    (row,) = [one for one in rows if one["group"] == "b-shop"]
    assert row["client_id"] == members[0]["client_id"]
    assert row["client_id"] in named
    assert row["client_id"] in text
    assert (row["language"], row["version"]) == ("PYTHON", "V5_5_0")
    assert row["last_heartbeat_at_ms"] > 0
    assert (nobody.code, nobody.out) == (0, "b-nobody: no live producer\n")


def test_rates_are_shown_for_each_topic_and_group(kourou: Kourou) -> None:
    kourou("topic", "create", "b-rates", "--queues", "1")
    kourou("send", "b-rates", "x", "--count", "3")
    options = ("--group", "b-reader", "--from", "earliest", "--count", "1", "--timeout", "60")
    kourou("receive", "b-rates", *options)
    kourou("topic", "create", "b-unread")

    every = document(kourou("stats", "--json"))
    (row,) = document(kourou("stats", "b-rates", "--json"))
    system = {one["topic"] for one in document(kourou("stats", "--all", "--json"))}
    text = kourou("stats", "b-rates").out

    assert (row["group"], row["lag"]) == ("b-reader", 2)
    assert row in every
    (unread,) = [one for one in every if one["topic"] == "b-unread"]
    assert (unread["group"], unread["lag"]) == (None, None)
    assert not {"SCHEDULE_TOPIC_XXXX", "broker-a"} & {one["topic"] for one in every}
    assert {"SCHEDULE_TOPIC_XXXX", "broker-a"} <= system
    assert text.splitlines()[1].split()[:3] == ["b-rates", "b-reader", "2"]
