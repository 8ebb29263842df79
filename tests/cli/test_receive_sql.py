"""Tests of `kourou receive --sql`: filtered messages, and errors in expressions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kourou.testing.process import Outcome

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def test_sql_filters_messages_with_and_without_a_group(kourou: Kourou) -> None:
    for amount in ("3", "9"):
        kourou("send", "s-amounts", amount, "--property", f"amount={amount}")
    sql = ("--sql", "amount > 5", "--from", "earliest", "--count", "1", "--timeout", "60")

    off = kourou("receive", "s-amounts", *sql)
    assert off.code == 1
    assert "switch on enablePropertyFilter of broker" in off.err
    kourou("broker", "set", "broker-a", "enablePropertyFilter=true")
    try:
        onlooking = kourou("receive", "s-amounts", *sql)
        member = kourou("receive", "s-amounts", *sql, "--group", "s-group")
    finally:
        kourou("broker", "set", "broker-a", "enablePropertyFilter=false")

    for outcome in (onlooking, member):
        assert (outcome.code, [row["body"] for row in outcome.rows]) == (0, ["9"]), outcome.err


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (("--sql", "amount >> 5"), "at character 8"),
        (("--sql", "b LIKE 'x'"), "ignores the text behind b"),
        (("--sql", "a = 1", "--tag", "eu"), "pass only one"),
    ],
)
def test_a_wrong_expression_is_wrong_usage(
    command: Callable[..., Outcome], options: tuple[str, ...], reported: str
) -> None:
    outcome = command("receive", "s-wrong", *options, environ={"KOUROU_NAMESRV": "127.0.0.1:1"})
    assert outcome.code == 2
    assert reported in outcome.err
