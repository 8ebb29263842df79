"""Tests of KOUROU_NAMESPACE: commands use names without the namespace, servers names with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Command = Callable[..., Outcome]
NS = "shop"


@pytest.fixture
def inside(command: Command, serving: Serving) -> Command:
    """Run a command within the namespace."""

    def run(*args: str, stdin: str = "") -> Outcome:
        environ = {"KOUROU_NAMESRV": serving.namesrv, "KOUROU_NAMESPACE": NS}
        return command(*args, stdin=stdin, environ=environ)

    return run


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_commands_accept_and_print_names_without_namespace(
    inside: Command, kourou: Command
) -> None:
    assert inside("topic", "create", "n-orders", "--queues", "1").code == 0
    assert inside("group", "create", "n-billing").code == 0
    for body in ("one", "two"):
        assert inside("send", "n-orders", body, "--key", "k").code == 0
    whole = kourou("topic", "list").out + kourou("group", "list").out
    assert f"{NS}%n-orders" in whole
    assert f"{NS}%n-billing" in whole

    received = inside(
        *("receive", "n-orders", "--group", "n-billing", "--from", "earliest", "--count", "2")
    )
    assert [(row["topic"], row["body"]) for row in received.rows] == [
        ("n-orders", "one"),
        ("n-orders", "two"),
    ]
    seen = inside("receive", "n-orders", "--from", "earliest", "--count", "2", "--json")
    assert {row["topic"] for row in seen.rows} == {"n-orders"}

    reported = [
        inside("topic", "list"),
        inside("topic", "describe", "n-orders"),
        inside("group", "list"),
        inside("group", "describe", "n-billing"),
        inside("message", "find", "n-orders", "k"),
        inside("group", "reset-offset", "n-billing", "n-orders", "--to", "earliest", "--yes"),
        inside("group", "skip", "n-billing", "n-orders", "--yes"),
        inside("group", "clone-offsets", "n-billing", "n-copy", "n-orders", "--yes"),
        inside("dlq", "list", "n-billing"),
        inside("stats"),
        inside("topic", "delete", "n-orders", "--yes"),
        inside("group", "delete", "n-billing", "--yes"),
    ]
    assert [(one.code, one.err) for one in reported if one.code] == []
    assert [one.out for one in reported if f"{NS}%" in one.out] == []
    assert "n-billing" in reported[2].out
    assert f"{NS}%n-orders" not in kourou("topic", "list").out


def test_invalid_namespace_is_refused(command: Command) -> None:
    outcome = command("topic", "list", environ={"KOUROU_NAMESPACE": "a%b"})
    assert (outcome.code, "namespace 'a%b'" in outcome.err) == (2, True)
