"""Tests of `kourou dlq`: list, show and redrive dead letters."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kourou import (
    ConsumeFromWhere,
    DeadLetter,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushConsumerConfig,
)
from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


async def kill(serving: Serving, topic: str, group: str, *bodies: bytes) -> None:
    """Make a group reject messages of a topic."""
    refused: list[bytes] = []
    enough = asyncio.Event()

    async def refuse(message: MessageExt) -> None:
        refused.append(message.body)
        if len(refused) == len(bodies):
            enough.set()
        raise DeadLetter(f"no account {message.body.decode()}")

    config = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with Producer("killers", serving.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))
    consumer = PushConsumer(group, serving.namesrv, config=config)
    consumer.subscribe(topic)
    consumer.listen(refuse)
    async with consumer, asyncio.timeout(60):
        await enough.wait()


def test_dead_letters_are_listed_shown_and_sent_again(kourou: Kourou, serving: Serving) -> None:
    asyncio.run(kill(serving, "d-orders", "d-billing", b"17", b"18"))

    summarize = document(kourou("dlq", "list", "d-billing", "--json"))
    assert {row["reason"] for row in summarize} == {"no account 17", "no account 18"}
    assert {row["origin_topic"] for row in summarize} == {"d-orders"}
    table = kourou("dlq", "list", "d-billing").out
    assert "no account 17" in table
    first = summarize[0]

    shown = document(kourou("dlq", "show", "d-billing", first["msg_id"], "--json"))
    assert [one["reason"] for one in shown] == [first["reason"]]
    text = kourou("dlq", "show", "d-billing", first["stored_at"]).out
    assert text.startswith(f"Sent to d-orders, failed 1 time\nReason: {first['reason']}\n")

    alone = kourou("dlq", "redrive", "d-billing", "--id", first["msg_id"])
    assert alone.code == 0
    assert f"{first['msg_id']} -> %RETRY%d-billing broker-a/0@0" in alone.out
    again = kourou("dlq", "redrive", "d-billing", "--id", first["msg_id"])
    assert (again.code, again.out) == (0, "")
    assert "was sent again before" in again.err

    rest = kourou("dlq", "redrive", "d-billing", "--all", "--yes", "--json")
    assert document(rest) == {"sent": 1, "skipped": 1, "unchecked": 0, "left": {}}
    nothing = kourou("dlq", "redrive", "d-billing", "--all", "--yes")
    assert nothing.out == "0 dead letters sent again\n"
    assert [
        row["is_redriven"] for row in document(kourou("dlq", "list", "d-billing", "--json"))
    ] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        (("redrive", "g"), "use either --id MESSAGE or --all"),
        (("redrive", "g", "--all", "--id", "x"), "use either --id MESSAGE or --all"),
        (("redrive", "g", "--all", "--again"), "--again applies to one message"),
        (("redrive", "g", "--all"), "all dead letters of g are sent again, to g: add --yes"),
        (("list", "a b"), "a b"),
    ],
)
def test_invalid_arguments_are_refused(
    command: Callable[..., Outcome], asked: tuple[str, ...], reported: str
) -> None:
    outcome = command("dlq", *asked)
    assert (outcome.code, reported in outcome.err) == (2, True), outcome.err


def test_dead_letters_of_a_silent_broker_are_redriven_by_the_next_call(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    (tmp_path / "b.conf").write_text("brokerName=broker-b\n")
    options = ("--config", str(tmp_path / "b.conf"))
    with (
        Serving.start(tmp_path / "a") as serving,
        Serving.start(tmp_path / "b", "--namesrv", serving.namesrv, *options) as other,
    ):
        at = ("-n", serving.namesrv, "--timeout", "1")
        redrive = ("dlq", "redrive", "d-two", "--all", "--yes", *at)
        assert command("topic", "create", "d-both", "--queues", "1", *at).code == 0
        asyncio.run(kill(serving, "d-both", "d-two", b"1", b"2", b"3", b"4"))
        summarize = document(command("dlq", "list", "d-two", "--json", *at))
        stored = {row["stored_at"].split("/")[0] for row in summarize}
        assert stored == {"broker-a", "broker-b"}
        other.process.send_signal(signal.SIGSTOP)
        try:
            outcome = command(*redrive)
            silent = command("group", "list", *at)
        finally:
            other.process.send_signal(signal.SIGCONT)
        assert silent.code == 3
        assert f"{other.broker} did not answer " in silent.err
        assert outcome.code == 3
        assert outcome.out.endswith("sent again\n")
        assert "Error: dead letters on broker-b were not sent: " in outcome.err
        assert "repeat the command to send them" in outcome.err
        rest = command(*redrive)
        assert "no member of d-two is connected: they are delivered once one connects" in rest.err
        sent = [int(text.split()[0]) for text in (outcome.out, rest.out)]
        assert (rest.code, sum(sent), 0 < sent[0] < 4) == (0, 4, True)


def test_list_of_a_group_without_dead_letters_is_empty(kourou: Kourou) -> None:
    assert document(kourou("dlq", "list", "d-nobody", "--json")) == []
    assert kourou("dlq", "list", "d-nobody").err == "d-nobody has no dead letters\n"
    assert kourou("dlq", "show", "d-nobody", "broker-a/0@17").code == 1
