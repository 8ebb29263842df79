"""Tests of `kourou send` and `kourou receive`."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kourou.testing.process import Outcome, Serving, run_command, start_command
from tests.held_ports import held_ports

pytestmark = pytest.mark.slow
Kourou = Callable[..., Outcome]
PATIENT = ("--timeout", "60")
"""Longer timeout for many messages at once, whose last answers may be late on a busy machine."""

EARLIEST = ("--from", "earliest", "--timeout", "60", "--count")


@pytest.fixture
def two_ports() -> Iterator[list[int]]:
    with held_ports(2) as ports:
        yield ports


def bodies(outcome: Outcome) -> list[str]:
    return sorted(str(row["body"]) for row in outcome.rows)


def test_message_arrives_with_all_its_fields(kourou: Kourou) -> None:
    sent = kourou(
        *("send", "m-whole", '{"total": 5}', "--tag", "eu", "--key", "o-17", "--key", "o-18"),
        *("--property", "shop=Köln", "--json"),
    )
    received = kourou("receive", "m-whole", "--from", "earliest", "--count", "1")

    (receipt,), (message,) = sent.rows, received.rows
    assert (sent.code, sent.err, received.code) == (0, "", 0)
    assert (receipt["durability"], receipt["status"]) == ("DISK", "SEND_OK")
    assert message["msg_id"] == receipt["msg_id"]
    assert {name: message[name] for name in ("body", "tags", "keys", "properties")} == {
        "body": '{"total": 5}',
        "tags": "eu",
        "keys": ["o-17", "o-18"],
        "properties": {"shop": "Köln"},
    }


def test_text_receipt_is_one_line_with_the_durability(kourou: Kourou) -> None:
    outcome = kourou("send", "m-person", "x")

    assert outcome.out.startswith("on disk  broker-a/")
    assert len(outcome.out.splitlines()) == 1


def test_body_is_read_from_stdin_unchanged(kourou: Kourou) -> None:
    kourou("send", "m-stdin", stdin="two\nlines\n")
    kourou("send", "m-stdin", "-", stdin="dash")

    assert bodies(kourou("receive", "m-stdin", *EARLIEST, "2")) == ["dash", "two\nlines\n"]


def test_lines_are_sent_as_messages_with_a_summary(kourou: Kourou, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"line {n}\n" for n in range(2_000)))

    sent = kourou("send", "m-lines", "--lines", str(file), *PATIENT)
    received = kourou("receive", "m-lines", *EARLIEST, "2000")

    assert sent.out.startswith("on disk  2,000 messages to m-lines  ")
    assert bodies(received) == sorted(f"line {n}" for n in range(2_000))


def test_receipts_are_printed_in_the_order_of_the_lines(kourou: Kourou) -> None:
    outcome = kourou("send", "m-order", "--lines", "-", "--json", stdin="a\nb\n\nc\n")

    assert [row["status"] for row in outcome.rows] == ["SEND_OK"] * 3
    assert len({row["msg_id"] for row in outcome.rows}) == 3


def test_count_sends_the_body_repeatedly(kourou: Kourou) -> None:
    kourou("send", "m-count", "again", "--count", "5")

    assert bodies(kourou("receive", "m-count", *EARLIEST, "5")) == ["again"] * 5


def test_tag_expression_filters_messages(kourou: Kourou) -> None:
    for tag in ("eu", "us", "cn"):
        kourou("send", "m-tags", tag, "--tag", tag)

    picked = kourou("receive", "m-tags", *EARLIEST, "2", "--tag", "eu || us")

    assert bodies(picked) == ["eu", "us"]


def test_receive_starts_at_a_time(kourou: Kourou) -> None:
    kourou("topic", "create", "m-time", "--queues", "1")
    kourou("send", "m-time", "before")
    (before,) = kourou("receive", "m-time", *EARLIEST, "1").rows
    later = int(str(before["store_at_ms"])) + 1
    kourou("send", "m-time", "after")

    since_an_hour = kourou("receive", "m-time", *EARLIEST[2:], "2", "--from", "-1h")
    since_then = kourou("receive", "m-time", *EARLIEST[2:], "1", "--from", str(later))

    assert bodies(since_an_hour) == ["after", "before"]
    assert bodies(since_then) == ["after"]


def test_delayed_message_is_delivered_later(kourou: Kourou) -> None:
    kourou("send", "m-delay", "later", "--delay-level", "1")
    (message,) = kourou("receive", "m-delay", *EARLIEST, "1").rows

    assert message["body"] == "later"
    assert int(str(message["store_at_ms"])) - int(str(message["born_at_ms"])) >= 1_000


def test_missing_messages_are_reported_by_the_exit_code(kourou: Kourou) -> None:
    kourou("send", "m-few", "one")
    outcome = kourou("receive", "m-few", "--from", "earliest", "--count", "2", "--timeout", "5")

    assert (outcome.code, bodies(outcome)) == (1, ["one"])
    assert outcome.err.endswith("received 1 of 2 messages, then none for 5 s\n")


def test_text_output_escapes_control_characters(kourou: Kourou) -> None:
    kourou("send", "m-text", "hello\x1b[2J", "--tag", "eu")
    outcome = kourou("receive", "m-text", "--from", "earliest", "--count", "1", "--text")

    assert outcome.out.endswith("[eu]  hello\\x1b[2J\n")


def test_group_continues_at_its_committed_offset(kourou: Kourou) -> None:
    kourou("send", "m-group", "--lines", "-", stdin="1\n2\n3\n4\n5\n6\n")
    as_group = ("receive", "m-group", "--group", "billing", "--from", "earliest")

    first = kourou(*as_group, "--count", "4", "--timeout", "60")
    second = kourou(*as_group, "--count", "2", "--timeout", "60")
    third = kourou(*as_group, "--timeout", "0.5")

    assert (first.code, second.code, third.code, third.out) == (0, 0, 0, "")
    assert sorted(bodies(first) + bodies(second)) == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize(
    ("number", "in_background"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
)
def test_signal_commits_the_printed_messages_of_a_member(
    serving: Serving, kourou: Kourou, number: signal.Signals, *, in_background: bool
) -> None:
    group = topic = f"m-{number.name}-{in_background}"
    kourou("topic", "create", topic, "--queues", "1")
    kourou("send", topic, "--lines", "-", stdin="1\n2\n3\n")
    as_group = ("receive", topic, "--group", group, "--from", "earliest")
    # As shells do for commands in the background of a script, which inherit it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if in_background else None
    member = start_command(*as_group, "-n", serving.namesrv)
    if before is not None:
        signal.signal(signal.SIGINT, before)
    assert member.stdout is not None
    printed = [json.loads(member.stdout.readline())["body"] for _ in range(3)]
    member.send_signal(number)
    member.communicate(timeout=60)

    assert (member.returncode, printed) == (130, ["1", "2", "3"])
    assert json.loads(kourou("group", "describe", group, "--json").out)["lag"] == 0


def test_receive_without_group_does_not_affect_groups(kourou: Kourou) -> None:
    kourou("send", "m-look", "x")
    kourou("receive", "m-look", *EARLIEST, "1")
    outcome = kourou("receive", "m-look", "--group", "looker", "--from", "earliest", "--count", "1")

    assert bodies(outcome) == ["x"]


def test_receive_prints_new_messages_until_ctrl_c(serving: Serving) -> None:
    at = ("-n", serving.namesrv)
    run_command("topic", "create", "m-live", *at)
    tail = start_command("receive", "m-live", *at)
    assert tail.stdout is not None
    assert tail.stderr is not None
    assert tail.stderr.readline().startswith("reading m-live, 8 queues")

    run_command("send", "m-live", "news", *at)
    line = tail.stdout.readline()
    tail.send_signal(signal.SIGINT)
    rest, err = tail.communicate(timeout=60)

    assert json.loads(line)["body"] == "news"
    assert (tail.returncode, rest, err) == (130, "", "")


def test_receive_waits_for_a_missing_topic(serving: Serving) -> None:
    at = ("-n", serving.namesrv)
    tail = start_command("receive", "m-unborn", "--count", "1", *at)
    assert tail.stderr is not None
    assert "m-unborn does not exist yet" in tail.stderr.readline()

    run_command("send", "m-unborn", "first", *at)
    out, _ = tail.communicate(timeout=60)

    assert (tail.returncode, json.loads(out)["body"]) == (0, "first")


def test_receive_survives_a_broker_restart(tmp_path: Path, two_ports: list[int]) -> None:
    port, namesrv_port = two_ports
    with Serving.start(tmp_path, port=port, namesrv_port=namesrv_port) as serving:
        at = ("-n", serving.namesrv)
        run_command("send", "orders", "before", *at)
        tail = start_command("receive", "orders", "--from", "earliest", "--count", "2", *at)
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["body"] == "before"
        serving.stop(signal.SIGKILL)

    with Serving.start(tmp_path, port=port, namesrv_port=namesrv_port):
        run_command("send", "orders", "after", *at)
        out, err = tail.communicate(timeout=60)

    assert (tail.returncode, json.loads(out)["body"]) == (0, "after")
    assert "Traceback" not in err


def test_closed_stdout_ends_receive_without_an_error(serving: Serving) -> None:
    at = ("-n", serving.namesrv)
    run_command("send", "m-pipe", "x", "--count", "20", *at)
    tail = start_command("receive", "m-pipe", "--from", "earliest", *at)
    assert tail.stdout is not None
    tail.stdout.readline()
    tail.stdout.close()
    run_command("send", "m-pipe", "x", "--count", "2000", *PATIENT, *at)
    assert tail.stderr is not None
    err = tail.stderr.read()
    tail.stderr.close()

    assert tail.wait(60) == 1
    assert "Traceback" not in err


def test_closed_stdout_ends_send_without_an_error(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n" * 20_000)
    args = ("m-gone", "--lines", str(tmp_path / "lines"), "--json", "-n", serving.namesrv)
    sender = start_command("send", *args, *PATIENT)
    assert sender.stdout is not None
    sender.stdout.readline()
    sender.stdout.close()
    assert sender.stderr is not None
    err = sender.stderr.read()
    sender.stderr.close()

    assert (sender.wait(60), err) == (1, "")


def test_ctrl_c_ends_send_at_once_and_prints_the_progress(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n" * 1_000_000)
    args = ("m-interrupt", "--lines", str(tmp_path / "lines"), "--json", "-n", serving.namesrv)
    sender = start_command("send", *args, *PATIENT)
    assert sender.stdout is not None
    sender.stdout.readline()
    sender.send_signal(signal.SIGINT)
    _, err = sender.communicate(timeout=60)

    assert sender.returncode == 130
    assert re.fullmatch(
        r"[0-9,]+ of [0-9,]+ messages were acknowledged before the interrupt\n", err
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("send", "bad topic!", "x"), "topic 'bad topic!'"),
        (("send", "t" * 128, "x"), "has 128 characters, the limit is 127"),
        (("send", "orders", "x", "--lines", "-"), "omit BODY and --count"),
        (("send", "orders", "--lines", "/absent"), "--lines /absent: No such file"),
        (("send", "orders", "x", "--property", "shop"), "'shop' is not NAME=VALUE"),
        (("send", "orders", "x", "-p", "a=1", "-p", "a=2"), "--property names a twice"),
        (("send", "orders", "x", "--property", "KEYS=1"), "property KEYS is set by the system"),
        (("send", "orders", "x", "--key", "a b"), "key 'a b' contains a blank"),
        (("send", "orders", "x", "--delay-level", "19"), "--delay-level"),
        (("send", "orders", "x", "--tga", "eu"), "--tga"),
        (("send", "orders", "x", "--tag", "eu || us"), "--tag 'eu || us': a message has one tag"),
        (("send", "orders", "x", "--at", "2020-12-24"), "--at '2020-12-24' is 2020-12-24 00:00:00"),
        (("send", "orders", "x", "-n", "a:1,b:2"), "addresses are separated by ';', not ','"),
        (("health", "-n", ""), "namesrv_addr is empty"),
        (("receive", "bad topic!"), "topic 'bad topic!'"),
        (("receive", "orders", "--from", "yesterday"), "--from 'yesterday' is not a time"),
        (("receive", "orders", "--group", "bad group!"), "bad group!"),
        (("receive", "orders", "--count", "0"), "--count"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_sent(
    command: Kourou, args: tuple[str, ...], text: str
) -> None:
    outcome = command(*args, environ={"KOUROU_NAMESRV": "127.0.0.1:1"})

    assert outcome.code == 2
    assert text in outcome.err
    assert "Traceback" not in outcome.err


def test_a_message_too_large_is_refused_with_the_limit(kourou: Kourou) -> None:
    outcome = kourou("send", "m-large", stdin="x" * (4 * 1024 * 1024 + 1))

    assert outcome.code == 2
    assert "4194305" in outcome.err.replace(",", "")
    assert "4194304" in outcome.err.replace(",", "")


@pytest.mark.parametrize(
    "args",
    [
        ("send", "orders", "x", "--timeout", "1"),
        ("receive", "orders", "--timeout", "1"),
        ("receive", "orders", "--group", "billing"),
        ("topic", "list"),
        ("group", "describe", "billing"),
    ],
)
def test_an_absent_name_server_is_named_with_a_remedy(
    command: Kourou, args: tuple[str, ...]
) -> None:
    outcome = command(*args, environ={"NAMESRV_ADDR": "127.0.0.1:1"})

    assert (outcome.code, outcome.out) == (3, "")
    error, remedy = outcome.err.splitlines()
    assert error.startswith("Error: ")
    assert "127.0.0.1:1" in error
    assert "kourou serve" in error
    assert "--namesrv" in remedy


def test_lines_sent_before_an_error_are_counted(kourou: Kourou) -> None:
    outcome = kourou("send", "m-error", "--lines", "-", stdin="1\n2\n" + "x" * (4 << 20) + "y\n")

    assert outcome.code == 2
    assert outcome.err.splitlines() == [
        "2 of 2 messages were acknowledged before the error",
        "Error: line 3 is longer than 4,194,304 bytes",
    ]
