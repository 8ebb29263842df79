"""Tests of `kourou message`: show, find and print messages without consuming them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kourou.testing.process import Outcome, Serving

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]


def document(outcome: Outcome) -> Any:
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def send(kourou: Kourou, topic: str, *bodies: str, queues: int = 2) -> list[dict[str, Any]]:
    """Create the topic and send to it; return the receipts."""
    kourou("topic", "create", topic, "--queues", str(queues))
    receipts = [kourou("send", topic, body, "--tag", "eu", "--json") for body in bodies]
    return [receipt.rows[0] for receipt in receipts]


def test_message_is_shown_by_position_id_and_offset_id(kourou: Kourou) -> None:
    receipt = send(kourou, "f-show", "hello")[0]
    place = f"{receipt['broker']}/{receipt['queue_id']}@{receipt['queue_offset']}"

    [shown] = document(kourou("message", "show", "f-show", receipt["msg_id"], "--json"))

    assert (shown["body"], shown["tags"], shown["msg_id"]) == ("hello", "eu", receipt["msg_id"])
    assert shown["system_properties"]["UNIQ_KEY"] == receipt["msg_id"]
    for other in (place, shown["offset_msg_id"]):
        assert document(kourou("message", "show", "f-show", other, "--json")) == [shown]
    text = kourou("message", "show", "f-show", place).out
    assert f"Stored at    {place}\n" in text
    assert f"Offset id    {shown['offset_msg_id']}\n" in text
    assert text.endswith("\n\nhello\n")


def test_message_shows_which_groups_consumed_it(kourou: Kourou) -> None:
    send(kourou, "f-groups", "1", "2", queues=1)
    alone = kourou("message", "show", "f-groups", "broker-a/0@0", "--groups").out
    as_group = ("--group", "f-billing", "--from", "earliest", "--count", "1", "--timeout", "60")
    assert kourou("receive", "f-groups", *as_group).code == 0

    consumed, not_yet = (
        document(kourou("message", "show", "f-groups", f"broker-a/0@{n}", "--groups", "--json"))
        for n in (0, 1)
    )

    assert "No group has consumed this topic." in alone
    assert consumed[0]["groups"] == [{"group": "f-billing", "is_consumed": True}]
    assert not_yet[0]["groups"] == [{"group": "f-billing", "is_consumed": False}]
    text = kourou("message", "show", "f-groups", "broker-a/0@1", "--groups").out
    assert "  f-billing  not consumed yet\n" in text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("broker-a/0@9", "has no offset 9: it has 0 to "),
        ("broker-z/0@0", "not on broker-z, but on: broker-a"),
        ("0" * 32, "was found by the id"),
        ("o-17", "was found by the id o-17"),
        ("broker-a/7", "a position has the form BROKER/QUEUE@OFFSET"),
    ],
)
def test_missing_message_is_named(kourou: Kourou, message: str, text: str) -> None:
    send(kourou, "f-absent", "x", queues=1)

    missing = kourou("message", "show", "f-absent", message)

    assert (missing.code, missing.out) == (1, "")
    assert text in missing.err


def test_messages_are_found_by_key_and_by_tag_in_a_span(kourou: Kourou) -> None:
    for body in "123":
        kourou("send", "f-found", body, "--key", "o-17", "--tag", f"t{int(body) % 2}")
    second_at = str(kourou("message", "print", "f-found").rows[1]["store_at_ms"])

    by_key = kourou("message", "find", "f-found", "o-17", "--from", "-1h", "--to", "now")
    of_span = kourou("message", "find", "f-found", "o-17", "--from", second_at)
    by_tag = kourou("message", "find", "f-found", "--tag", "t1")
    last = kourou("message", "find", "f-found", "o-17", "--count", "1")

    assert [row["body"] for row in by_key.rows] == ["1", "2", "3"]
    assert [row["body"] for row in of_span.rows] == ["2", "3"]
    assert [row["body"] for row in by_tag.rows] == ["1", "3"]
    assert [row["body"] for row in last.rows] == ["3"]


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("o-18",), 1, "was found by the key o-18"),
        (("--tag", "o-17"), 1, "was found by the tag o-17"),
        ((), 2, "pass either KEY or --tag TAG"),
        (("o-17", "--tag", "a"), 2, "pass either KEY or --tag TAG"),
    ],
)
def test_key_without_messages_is_an_error(
    kourou: Kourou, args: tuple[str, ...], code: int, text: str
) -> None:
    kourou("send", "f-key", "x", "--key", "o-17")

    missing = kourou("message", "find", "f-key", *args)

    assert (missing.code, missing.out) == (code, "")
    assert text in missing.err


def test_topic_is_printed_in_store_order_without_consuming(kourou: Kourou) -> None:
    send(kourou, "f-print", *map(str, range(7)), queues=3)

    for _ in range(2):
        printed = kourou("message", "print", "f-print")
        assert [row["body"] for row in printed.rows] == list("0123456")
        assert (printed.code, printed.err) == (0, "7 messages\n")
    text = kourou("message", "print", "f-print", "--text", "--count", "2")
    assert [line.split()[-1] for line in text.out.splitlines()] == ["0", "1"]


def test_print_is_limited_by_time_tag_and_queue(kourou: Kourou) -> None:
    send(kourou, "f-span", "1", "2", "3", queues=1)
    kourou("send", "f-span", "us", "--tag", "us")
    rows = kourou("message", "print", "f-span").rows
    second_at = str(rows[1]["store_at_ms"])

    from_second = kourou("message", "print", "f-span", "--from", second_at, "--tag", "eu")
    to_second = kourou("message", "print", "f-span", "--to", second_at)
    queue = kourou("message", "print", "f-span", "--queue", "broker-a/0", "--tag", "us")
    before = kourou("message", "print", "f-span", "--to", "-1d")

    assert [row["body"] for row in from_second.rows] == ["2", "3"]
    assert [row["body"] for row in to_second.rows] == ["1", "2"]
    assert [row["body"] for row in queue.rows] == ["us"]
    assert (before.code, before.out, before.err) == (0, "", "0 messages\n")


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("--from", "latest"), 2, "use `kourou receive` instead"),
        (("--from", "yesterday"), 2, "--from 'yesterday' is not a time"),
        (("--to", "soon"), 2, "--to 'soon' is not a time"),
        (("--from", "-1h", "--to", "-2h"), 2, "--to -2h is before --from -1h"),
        (("--queue", "broker-a/7"), 2, "has no queue 'broker-a/7'; it has broker-a/0"),
        (("--tag", "||"), 2, "||"),
    ],
)
def test_invalid_print_arguments_are_refused(
    kourou: Kourou, args: tuple[str, ...], code: int, text: str
) -> None:
    send(kourou, "f-refused", "x", queues=1)

    refused = kourou("message", "print", "f-refused", *args)

    assert (refused.code, refused.out) == (code, "")
    assert text in refused.err


def test_a_topic_that_does_not_exist_is_named(kourou: Kourou) -> None:
    for args in (("print", "f-nothing"), ("show", "f-nothing", "0" * 32)):
        missing = kourou("message", *args)
        assert (missing.code, missing.out) == (1, "")
        assert "f-nothing" in missing.err


def test_message_is_shown_by_position_with_an_unusual_broker_name(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=room-1@broker-a\n")
    for _ in range(2):  # the second start opens the existing store
        with Serving.start(tmp_path / "store", "--config", str(config), "--no-console") as serving:

            def kourou(*args: str, namesrv: str = serving.namesrv) -> Outcome:
                return command(*args, environ={"KOUROU_NAMESRV": namesrv})

            receipt = send(kourou, "f-room", "hello", queues=1)[0]
            assert receipt["broker"] == "room-1@broker-a"
            place = f"room-1@broker-a/0@{receipt['queue_offset']}"
            [shown] = document(kourou("message", "show", "f-room", place, "--json"))
            assert shown["body"] == "hello"
            assert serving.stop().code == 0
