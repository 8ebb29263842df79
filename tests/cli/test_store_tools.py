"""Tests of `kourou store info`, `dump`, `rebuild` and `truncate`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kourou.disk import OsDisk
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.testing.process import Outcome, start_command
from tests.store.rig import draft

CONFIG = StoreConfig(commitlog_segment_bytes=8192, consumequeue_file_bytes=400, free_bytes_min=1)
LOG = "commitlog/00000000000000000000"
NOW_MS = 1_700_000_000_000
Command = Callable[..., Outcome]


def fill(path: Path, count: int = 6) -> MessageStore:
    """Return an open store with messages of two topics."""
    opened = MessageStore.open(OsDisk(path), CONFIG, NOW_MS, pid=1)
    for number in range(count):
        properties = {"TAGS": "eu", "UNIQ_KEY": f"ID{number}"}
        one = draft(b"body %d" % number, topic=("orders", "pay")[number % 2], properties=properties)
        opened.writer.append(one, NOW_MS + number)
    opened.writer.write()
    opened.writer.dispatch(opened.writer.appended_position)
    return opened


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a cleanly closed store with six messages."""
    fill(tmp_path).close(NOW_MS)
    return tmp_path


def flip(path: Path, text: bytes) -> int:
    """Change the first byte of a text in the log; return its position."""
    data = (path / LOG).read_bytes()
    at = data.index(text)
    with (path / LOG).open("r+b") as file:
        file.seek(at)
        file.write(b"?")
    return at


def test_info_shows_sizes_and_topics(command: Command, store: Path) -> None:
    outcome = command("store", "info", str(store))

    assert (outcome.code, outcome.err) == (0, "")
    assert "closed cleanly, by Kourou" in outcome.out
    assert [line.split() for line in outcome.out.splitlines()[-3:]] == [
        ["TOPIC", "QUEUES", "MESSAGES", "FILES"],
        ["orders", "1", "3", "1"],
        ["pay", "1", "3", "1"],
    ]


def test_info_shows_each_queue(command: Command, store: Path) -> None:
    last = command("store", "info", str(store), "--queues").out.splitlines()[-1]

    assert last.split() == ["pay", "0", "0", "3", "3", "1", "queue"]


def test_info_shows_that_a_store_is_in_use(command: Command, tmp_path: Path) -> None:
    opened = fill(tmp_path)
    try:
        found = json.loads(command("store", "info", str(tmp_path), "--json").out)
    finally:
        opened.close(NOW_MS)

    assert (found["in_use"], found["closed_cleanly"], found["last_writer"]) == (
        True,
        False,
        "kourou",
    )
    assert found["log"]["first_store_at_ms"] == NOW_MS


def test_check_of_a_store_in_use_needs_live(command: Command, tmp_path: Path) -> None:
    opened = fill(tmp_path)
    try:
        refused = command("store", "check", str(tmp_path))
        taken = command("store", "check", str(tmp_path), "--live")
    finally:
        opened.close(NOW_MS)

    assert (refused.code, taken.code) == (3, 0)
    assert "no problems" in taken.out


def test_dump_prints_a_log_as_text(command: Command, store: Path) -> None:
    lines = command("store", "dump", str(store / LOG), "--count", "2").out.splitlines()

    assert lines[0].split()[:4] == ["POSITION", "SIZE", "WHAT", "TOPIC"]
    assert lines[1].split()[2:6] == ["record", "orders", "0", "0"]
    assert len(lines) == 3


def test_dump_prints_a_directory_as_json_lines(command: Command, store: Path) -> None:
    out = command("store", "dump", str(store / "commitlog"), "--json").out
    found = [json.loads(line) for line in out.splitlines()]

    assert [row["msg_id"] for row in found[:6]] == [f"ID{n}" for n in range(6)]
    assert found[6]["what"] == "unused"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("checkpoint", "queues_offset"),
        ("lock", "lock"),
        ("config/kourou-store.json", "commitlog_segment_bytes  8192"),
        ("consumequeue/pay/0", "TAGS_CODE"),
        ("index", "header"),
    ],
)
def test_dump_prints_any_file(command: Command, store: Path, name: str, words: str) -> None:
    outcome = command("store", "dump", str(store / name))

    assert outcome.code == 0
    assert words in outcome.out


def test_dump_shows_damage(command: Command, store: Path) -> None:
    flip(store, b"body 2")

    assert "checksum differs" in command("store", "dump", str(store / LOG)).out


def test_dump_prints_a_range_of_a_queue(command: Command, store: Path) -> None:
    queue = str(store / "consumequeue/pay/0")
    lines = command("store", "dump", queue, "--from", "1", "--to", "2").out.splitlines()

    assert [line.split()[0] for line in lines] == ["OFFSET", "1"]


def test_dump_of_a_whole_store_is_refused(command: Command, store: Path) -> None:
    outcome = command("store", "dump", str(store))

    assert (outcome.code, "is a whole store" in outcome.err) == (2, True)


def test_dump_ends_without_an_error_when_stdout_is_closed(store: Path) -> None:
    process = start_command("store", "dump", str(store / "commitlog"), "--json")
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()

    assert err == ""


def test_dump_of_a_copied_file_needs_its_kind(command: Command, store: Path) -> None:
    copied = store / "elsewhere"
    (store / "checkpoint").rename(copied)

    refused = command("store", "dump", str(copied))
    taken = command("store", "dump", str(copied), "--kind", "checkpoint")

    assert (refused.code, taken.code) == (2, 0)
    assert "--kind" in refused.err


def test_dump_of_a_missing_file_is_refused(command: Command, store: Path) -> None:
    outcome = command("store", "dump", str(store / "nothing"))

    assert (outcome.code, "no such file or directory" in outcome.err) == (2, True)


def test_rebuild_restores_lost_queues(command: Command, store: Path) -> None:
    for file in [*store.glob("consumequeue/*/*/*"), *store.glob("index/*")]:
        file.unlink()

    outcome = command("store", "rebuild", str(store))

    assert outcome.code == 0
    assert outcome.out == (f"{store}: 2 queues and 1 index file rebuilt from 6 messages\n")
    assert command("store", "check", str(store)).code == 0


def test_rebuild_warns_of_damage(command: Command, store: Path) -> None:
    flip(store, b"body 2")

    outcome = command("store", "rebuild", str(store), "--json")

    assert (outcome.code, json.loads(outcome.out)["damaged"]) == (0, 1)
    assert "6 " not in command("store", "check", str(store)).out.splitlines()[-1]


@pytest.mark.parametrize("args", [("rebuild",), ("truncate", "--at", "0", "--yes")])
def test_repair_of_a_store_in_use_is_refused(
    command: Command, tmp_path: Path, args: tuple[str, ...]
) -> None:
    opened = fill(tmp_path)
    try:
        outcome = command("store", args[0], str(tmp_path), *args[1:])
    finally:
        opened.close(NOW_MS)

    assert (outcome.code, "locked" in outcome.err) == (3, True)
    assert command("store", "check", str(tmp_path)).code == 0


def test_truncate_lists_deleted_messages_and_truncates(command: Command, store: Path) -> None:
    flip(store, b"body 3")

    refused = command("store", "truncate", str(store), "--at-damage")
    outcome = command("store", "truncate", str(store), "--at-damage", "--yes")

    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert outcome.code == 0
    assert "checksum differs" in outcome.out
    assert [line.split() for line in outcome.out.splitlines()[1:4]] == [
        ["TOPIC", "MESSAGES"],
        ["orders", "1"],
        ["pay", "1"],
    ]
    assert "no problems; 3 messages" in command("store", "check", str(store)).out


def test_truncate_at_a_byte_reports_json(command: Command, store: Path) -> None:
    found = json.loads(command("store", "truncate", str(store), "--at", "1", "--yes", "--json").out)

    assert (found["position"], found["records"]) == (0, 6)
    assert found["messages"] == {"orders": 3, "pay": 3}


def test_truncate_of_an_intact_log_does_nothing(command: Command, store: Path) -> None:
    outcome = command("store", "truncate", str(store), "--at-damage")

    assert (outcome.code, "not damaged" in outcome.out) == (0, True)
    assert command("store", "truncate", str(store), "--at", "99999").code == 0


@pytest.mark.parametrize("args", [(), ("--at", "5", "--at-damage")])
def test_truncate_without_a_position_is_refused(
    command: Command, store: Path, args: tuple[str, ...]
) -> None:
    assert command("store", "truncate", str(store), *args).code == 2


@pytest.mark.parametrize("name", ["info", "check", "rebuild", "truncate", "export", "import"])
def test_a_directory_without_a_store_is_refused(
    command: Command, tmp_path: Path, name: str
) -> None:
    more = {"truncate": ["--at-damage"], "export": ["-"], "import": ["no.jsonl"]}.get(name, [])

    outcome = command("store", name, str(tmp_path), *more)

    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["info", "check", "dump", "rebuild", "truncate", "export", "import"]
)
def test_each_command_has_examples(command: Command, name: str) -> None:
    out = command("store", name, "--help").out

    assert f"kourou store {name} " in out
    assert "Examples:" in out


def test_json_members_equal_those_in_the_documentation(command: Command, store: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "store.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([a-z_ ]+)`", page, flags=re.MULTILINE)
    messages = store / "messages.jsonl"
    messages.write_text('{"topic": "t", "body": "x"}')
    more = {"truncate": ("--at", "0", "--yes"), "import": (str(messages),)}

    for name in ("info", "check", "rebuild", "import", "truncate"):
        outcome = command("store", name, str(store), *more.get(name, ()), "--json")
        assert sorted(json.loads(outcome.out)) == sorted(dict(rows)[name].split()), name
    nothing = command("store", "truncate", str(store), "--at-damage", "--json")
    assert sorted(json.loads(nothing.out)) == sorted(dict(rows)["truncate"].split())
