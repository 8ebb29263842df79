"""Tests of `kourou group`: create, change and delete groups, reset offsets, query members."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from kourou import blocking
from kourou.cli import options
from kourou.cli.group_changes import parse_settings
from kourou.cli.main import app
from kourou.client.consuming.consumer_config import PushConsumerConfig, SimpleConsumerConfig
from kourou.errors import UsageError
from kourou.model.group import ConsumeFromWhere
from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]
Got = queue.SimpleQueue[str]


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


@contextmanager
def subscribed(
    serving: Serving, group: str, topic: str, *, in_order: bool = False
) -> Iterator[tuple[str, Got]]:
    """Consume a topic in the background; yield the member's id, and a queue of received bodies."""
    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    got: Got = queue.SimpleQueue()
    consumer = blocking.PushConsumer(group, serving.namesrv, config=config)
    consumer.subscribe(topic)
    listen = consumer.listen_orderly if in_order else consumer.listen
    listen(lambda message: got.put(message.body.decode()))
    with consumer:
        yield consumer.client_id, got


@contextmanager
def popping(
    serving: Serving, group: str, topic: str, tags: str
) -> Iterator[blocking.SimpleConsumer]:
    """Yield a simple consumer, which sends its heartbeat with its first receive."""
    config = SimpleConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = blocking.SimpleConsumer(group, serving.namesrv, config=config)
    consumer.subscribe(topic, tags)
    with consumer:
        yield consumer


def consumed(kourou: Kourou, group: str, topic: str, count: int) -> None:
    """Send messages to a new topic with one queue, and let the group consume them."""
    kourou("topic", "create", topic, "--queues", "1")
    kourou("send", topic, "x", "--count", str(count))
    options = ("--group", group, "--from", "earliest", "--count", str(count), "--timeout", "60")
    assert kourou("receive", topic, *options).code == 0


def test_group_with_order_keeps_the_order_of_its_queues(kourou: Kourou) -> None:
    created = kourou("group", "create", "g-kept-order", "--order", "--json")
    assert created.code == 0, created.err

    [settings] = json.loads(created.out)["settings"].values()
    assert settings["consume_message_orderly"] is True


def test_a_group_is_created_changed_and_described(kourou: Kourou) -> None:
    created = kourou("group", "create", "g-made", "retry_max_times=3", "consume_enable=false")
    again = kourou("group", "create", "g-made")
    updated = kourou("group", "update", "g-made", "consume_enable=true")
    settings = document(kourou("group", "describe", "g-made", "--json"))["settings"]["broker-a"]
    text = kourou("group", "describe", "g-made", "--settings").out

    assert (created.code, created.out) == (0, "g-made: created on broker-a\n")
    assert (again.code, "kourou group update" in again.err) == (2, True)
    assert updated.out == "g-made: updated on broker-a\n"
    assert (settings["retry_max_times"], settings["consume_enable"]) == (3, True)
    assert "retry_max_times" in text


def test_group_is_deleted_only_after_confirmation(kourou: Kourou) -> None:
    kourou("group", "create", "g-gone")
    refused = kourou("group", "delete", "g-gone")
    deleted = kourou("group", "delete", "g-gone", "--yes", "--json")
    unknown = kourou("group", "delete", "g-gone", "--yes")
    not_there = kourou("group", "update", "g-gone", "retry_max_times=1")

    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert document(deleted) == {"group": "g-gone", "deleted": True, "live_members": []}
    assert (unknown.code, not_there.code) == (1, 1)
    assert "kourou group list" in unknown.err


def test_lock_holder_of_an_ordered_queue_is_shown(kourou: Kourou, serving: Serving) -> None:
    kourou("topic", "create", "g-ordered-topic", "--queues", "1")
    kourou("send", "g-ordered-topic", "x")
    with subscribed(serving, "g-ordered", "g-ordered-topic", in_order=True) as (member, got):
        assert got.get(timeout=30) == "x"
        text = kourou("group", "describe", "g-ordered").out
        reported = document(kourou("group", "describe", "g-ordered", "--json"))["queues"]

    assert "LOCKED BY" in text
    assert {queue["locked_by"] for queue in reported} == {member}
    assert "LOCKED BY" not in kourou("group", "describe", "g-ordered").out


def test_members_are_described_with_language_and_version(kourou: Kourou, serving: Serving) -> None:
    kourou("topic", "create", "g-live-topic", "--queues", "1")
    kourou("send", "g-live-topic", "x")
    with subscribed(serving, "g-live", "g-live-topic") as (member, got):
        assert got.get(timeout=30) == "x"
        text = kourou("group", "describe", "g-live").out
        described = document(kourou("group", "describe", "g-live", "--json"))

    (connection,) = described["connections"]
    assert described["members"] == [member] == [connection["client_id"]]
    assert (connection["language"], connection["version"]) == ("PYTHON", "V5_5_0")
    head, shown = (line.split() for line in text.splitlines()[:2])
    assert head == ["MEMBER", "ADDRESS", "LANGUAGE", "VERSION"]
    assert shown == [member, connection["address"], "PYTHON", "V5_5_0"]


def test_offset_reset_has_a_dry_run(kourou: Kourou) -> None:
    consumed(kourou, "g-reset", "g-reset-topic", 4)
    reset = ("group", "reset-offset", "g-reset", "g-reset-topic")

    planned = kourou(*reset, "--to", "-1h", "--dry-run")
    refused = kourou(*reset, "--to", "-1h")
    before = document(kourou("group", "describe", "g-reset", "--json"))["lag"]
    made = document(kourou(*reset, "--to", "earliest", "--yes", "--json"))
    after = document(kourou("group", "describe", "g-reset", "--json"))["lag"]

    assert "receives 4 messages again of g-reset-topic; nothing is changed" in planned.out
    assert (refused.code, "--yes" in refused.err, "4 messages" in refused.err) == (2, True, True)
    assert (before, after) == (0, 4)
    assert made["dry_run"] is False
    assert made["queues"] == [
        {"broker": "broker-a", "queue_id": 0, "old_offset": 4, "new_offset": 0}
    ]


def test_one_queue_is_reset_to_an_offset_and_backlog_is_skipped(kourou: Kourou) -> None:
    consumed(kourou, "g-one", "g-one-topic", 5)
    one = ("--broker", "broker-a", "--queue", "0", "--offset")
    reset = kourou("group", "reset-offset", "g-one", "g-one-topic", *one, "2", "--yes")
    wrong = kourou("group", "reset-offset", "g-one", "g-one-topic", *one, "99", "--yes")
    planned = kourou("group", "skip", "g-one", "g-one-topic", "--dry-run")
    skipped = kourou("group", "skip", "g-one", "g-one-topic", "--yes")

    assert reset.out.splitlines()[-1] == "g-one: receives 3 messages again of g-one-topic"
    assert (wrong.code, "[0-5]" in wrong.err) == (1, True)
    assert "skips 3 messages" in planned.out
    assert "skips 3 messages" in skipped.out
    assert document(kourou("group", "describe", "g-one", "--json"))["lag"] == 0


def test_group_that_pops_is_described(kourou: Kourou, serving: Serving) -> None:
    topic, group = "g-popped-topic", "g-popped"
    kourou("topic", "create", topic, "--queues", "1")
    for body in ("a", "b", "c"):
        kourou("send", topic, body, "--tag", "eu")
    with popping(serving, group, topic, "eu") as one:
        assert len(one.receive(2, invisible_ms=60_000)) == 2
        shown = kourou("group", "describe", group).out
        with popping(serving, group, topic, "us") as other:
            assert other.receive(wait_ms=1_000) == []
            differing = kourou("group", "describe", group).out
            doctor = kourou("doctor", "--namesrv", serving.namesrv, "--port", "1").out
        described = document(kourou("group", "describe", group, "--json"))

    (queue,) = described["queues"]
    assert (queue["in_flight"], queue["lag"], queue["blocked"]) == (2, 0, None)
    assert described["consume_type"] == "CONSUME_POP"
    assert described["modes"] == [
        {"topic": topic, "broker": "broker-a", "mode": "pull", "share": 0, "is_set": False}
    ]
    assert described["revive_lag"] == [{"broker": "broker-a", "messages": 0, "ms": 0}]
    assert "2 messages in flight\nrevival on broker-a: nothing is late\n" in shown
    assert "pull (default)" in shown
    assert "SUBSCRIPTIONS DIFFER" not in shown
    assert f"{topic}: 'eu' by {one.client_id}, 'us' by " in differing
    assert f"kourou group describe {group}" in " ".join(doctor.split())


def test_mode_of_a_group_is_set_and_described(kourou: Kourou) -> None:
    consumed(kourou, "g-mode", "g-mode-topic", 1)
    made = kourou("group", "set-mode", "g-mode", "g-mode-topic", "pop", "--share", "1")
    shown = kourou("group", "describe", "g-mode").out
    back = kourou("group", "set-mode", "g-mode", "g-mode-topic", "pull")

    assert made.out == "g-mode pops g-mode-topic on broker-a\n"
    assert "pop, 1 other member at a queue" in shown
    assert "members that broadcast, or lock queues to consume in order, pull in any mode" in shown
    assert back.out == "g-mode pulls g-mode-topic on broker-a\n"
    described = kourou("group", "describe", "g-mode").out
    assert "pull" in described
    assert "in flight" not in described


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ((), "--to"),
        (("--to", "latest", "--offset", "1"), "--to"),
        (("--offset", "1"), "--broker and --queue"),
        (("--to", "latest", "--queue", "1"), "--broker and --queue"),
        (("--to", "yesterday"), "--to 'yesterday' is not a time"),
    ],
)
def test_reset_without_a_position_is_refused(
    kourou: Kourou, options: tuple[str, ...], reported: str
) -> None:
    outcome = kourou("group", "reset-offset", "g", "t", *options, "--yes")

    assert (outcome.code, reported in outcome.err) == (2, True)


def test_offsets_are_cloned_to_a_group_without_members(kourou: Kourou, serving: Serving) -> None:
    consumed(kourou, "g-source", "g-clone-topic", 3)
    kourou("send", "g-clone-topic", "y", "--count", "2")
    clone = ("group", "clone-offsets", "g-source")

    cloned = kourou(*clone, "g-copy", "g-clone-topic", "--yes")
    unknown = kourou("group", "clone-offsets", "g-none", "g-copy", "g-clone-topic", "--yes")
    with subscribed(serving, "g-live", "g-clone-topic") as (_, got):
        got.get(timeout=60)
        refused = kourou(*clone, "g-live", "g-clone-topic", "--yes")

    assert "2 messages behind" in cloned.out
    assert (unknown.code, "g-none" in unknown.err) == (1, True)
    assert (refused.code, "1 live member" in refused.err) == (2, True)


def test_live_members_are_listed_queried_and_reset(kourou: Kourou, serving: Serving) -> None:
    kourou("topic", "create", "g-live-topic", "--queues", "2")
    kourou("send", "g-live-topic", "x", "--count", "2")
    with subscribed(serving, "g-members", "g-live-topic") as (client_id, got):
        assert [got.get(timeout=60) for _ in range(2)] == ["x", "x"]
        connected = document(kourou("group", "connections", "g-members", "--json"))
        reported = document(kourou("group", "running-info", "g-members", "--json"))
        text = kourou("group", "running-info", "g-members", client_id, "--settings", "--stack").out
        kourou("group", "reset-offset", "g-members", "g-live-topic", "--to", "earliest", "--yes")
        assert [got.get(timeout=60) for _ in range(2)] == ["x", "x"]
    away = kourou("group", "connections", "g-members")
    nobody = kourou("group", "running-info", "g-members", "nobody")

    assert [one["client_id"] for one in connected["members"]] == [client_id]
    assert connected["members"][0]["language"] == "PYTHON"
    assert connected["subscriptions"]["g-live-topic"] == "*"
    queues = [one for one in reported[client_id]["queues"] if one["topic"] == "g-live-topic"]
    assert sorted(one["queue_id"] for one in queues) == [0, 1]
    assert {"PROP_CONSUME_TYPE", client_id} <= set(text.split())
    assert (away.code, "no live member" in away.err) == (1, True)
    assert (nobody.code, "nobody" in nobody.err) == (1, True)


def test_settings_are_parsed_by_their_types() -> None:
    assert parse_settings(
        ["retry_max_times=3", "consume_enable=false", 'group_retry_policy={"type":"CUSTOMIZED"}']
    ) == {
        "retry_max_times": 3,
        "consume_enable": False,
        "group_retry_policy": {"type": "CUSTOMIZED"},
    }


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("retries=3", "retries is not a setting of a group: use consume_enable"),
        ("retry_max_times=many", "a whole number"),
        ("retry_max_times=true", "a whole number"),
        ("consume_enable=1", "true or false"),
        ("group_retry_policy=[]", "a JSON object"),
        ('attributes={"a":1}', "its values must be strings"),
        ("consume_enable", "KEY=VALUE"),
    ],
)
def test_unknown_or_invalid_setting_is_refused(text: str, reported: str) -> None:
    with pytest.raises(UsageError, match=reported):
        parse_settings([text])


def test_confirmation_at_a_terminal_can_be_declined(
    serving: Serving, kourou: Kourou, monkeypatch: pytest.MonkeyPatch
) -> None:
    kourou("group", "create", "g-asked")

    class Terminal:
        def isatty(self) -> bool:
            return True

    class System:
        stdin = Terminal()

    monkeypatch.setattr(options, "sys", System)
    environ = {"KOUROU_NAMESRV": serving.namesrv}
    no = CliRunner().invoke(app, ["group", "delete", "g-asked"], input="n\n", env=environ)
    kept = kourou("group", "describe", "g-asked").code
    yes = CliRunner().invoke(app, ["group", "delete", "g-asked"], input="y\n", env=environ)

    assert (no.exit_code, kept) == (1, 0)
    assert "Delete g-asked on every broker?" in no.stderr
    assert (yes.exit_code, yes.stdout.endswith("g-asked: deleted\n")) == (0, True)
