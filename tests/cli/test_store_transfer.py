"""Tests of `kourou store export` and `import` with JSON lines and Parquet."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kourou.disk import OsDisk
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.testing.process import Outcome
from tests.store.rig import draft

CONFIG = StoreConfig(commitlog_segment_bytes=8192, consumequeue_file_bytes=400, free_bytes_min=1)
NOW_MS = 1_700_000_000_000
Command = Callable[..., Outcome]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a cleanly closed store with four messages, one of them with a binary body."""
    path = tmp_path / "store"
    path.mkdir()
    opened = MessageStore.open(OsDisk(path), CONFIG, NOW_MS, pid=1)
    for number, body in enumerate((b"plain", b"\xff\x00", b"\xc3\xa4", b"")):
        properties = {"TAGS": "eu", "KEYS": "a b", "UNIQ_KEY": f"ID{number}", "city": "Köln"}
        one = draft(body, topic=("orders", "pay")[number % 2], properties=properties)
        opened.writer.append(one, NOW_MS + number)
    opened.close(NOW_MS)
    return path


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_exported_messages_can_be_imported(command: Command, store: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    file, new = store.parent / name, store.parent / "new"

    out = command("store", "export", str(store), str(file))
    taken = command("store", "import", str(new), str(file))

    assert (out.code, out.err) == (0, f"{file}: 4 messages\n")
    assert taken.code == 0
    assert taken.out == f"{new}: 4 messages of 2 topics stored; new: orders pay\n"
    before = command("store", "export", str(store), "-").out
    assert command("store", "export", str(new), "-").out == before
    assert command("store", "check", str(new)).code == 0
    assert not list(store.parent.glob("*.part"))


def test_messages_are_transferred_through_a_pipe(command: Command, store: Path) -> None:
    new = store.parent / "new"
    out = command("store", "export", str(store), "-")
    taken = command("store", "import", str(new), "-", stdin=out.out)

    assert out.err == "stdout: 4 messages\n"
    assert (taken.code, taken.err) == (0, "")
    assert taken.out == f"{new}: 4 messages of 2 topics stored; new: orders pay\n"
    assert command("store", "export", str(new), "-").out == out.out


def test_parquet_from_a_pipe_is_refused(command: Command, tmp_path: Path) -> None:
    outcome = command("store", "import", str(tmp_path / "new"), "-", "--format", "parquet")

    assert (outcome.code, "name a file" in outcome.err) == (2, True)
    assert not (tmp_path / "new").exists()


def test_exported_json_line_has_all_fields(command: Command, store: Path) -> None:
    first, second, *_ = lines(command("store", "export", str(store), "-").out)

    assert (first["topic"], first["body"], first["keys"]) == ("orders", "plain", ["a", "b"])
    assert first["properties"] == {"city": "Köln"}
    assert second["body_base64"] == base64.b64encode(b"\xff\x00").decode()


def test_export_applies_the_selection(command: Command, store: Path) -> None:
    def bodies(*args: str) -> list[object]:
        out = command("store", "export", str(store), "-", *args).out
        return [line["msg_id"] for line in lines(out)]

    assert bodies("--topic", "pay") == ["ID1", "ID3"]
    assert bodies("--from", str(NOW_MS + 2)) == ["ID2", "ID3"]
    assert bodies("--to", str(NOW_MS + 1)) == ["ID0", "ID1"]
    assert bodies("--queue", "1") == []


def test_export_skips_and_reports_damage(command: Command, store: Path) -> None:
    log = store / "commitlog" / "00000000000000000000"
    data = log.read_bytes()
    log.write_bytes(data.replace(b"plain", b"plane"))

    outcome = command("store", "export", str(store), "-")

    assert outcome.code == 1
    assert len(lines(outcome.out)) == 3
    assert "damaged at byte 0" in outcome.err


def test_store_in_use_is_exported_only_with_live(command: Command, store: Path) -> None:
    opened = MessageStore.open(OsDisk(store), CONFIG, NOW_MS, pid=1)
    try:
        refused = command("store", "export", str(store), "-")
        taken = command("store", "export", str(store), "-", "--live")
        entered = command("store", "import", str(store), "-", "--format", "json")
    finally:
        opened.close(NOW_MS)

    assert (refused.code, taken.code, len(lines(taken.out))) == (3, 0, 4)
    assert (entered.code, "locked by another store" in entered.err) == (3, True)


def test_file_is_replaced_only_with_force(command: Command, store: Path) -> None:
    file = store.parent / "all.jsonl"
    file.write_text("precious")

    refused = command("store", "export", str(store), str(file))

    assert (refused.code, file.read_text()) == (2, "precious")
    assert command("store", "export", str(store), str(file), "--force").code == 0
    assert len(lines(file.read_text())) == 4


def test_output_of_kourou_receive_can_be_imported(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    printed = {"topic": "t", "broker": "b", "queue_id": 1, "msg_id": "X1", "tags": "eu"}
    file.write_text(json.dumps({**printed, "keys": ["k"], "properties": {"a": "b"}, "body": "hi"}))

    assert command("store", "import", str(tmp_path / "new"), str(file)).code == 0
    (row,) = lines(command("store", "export", str(tmp_path / "new"), "-").out)
    assert (row["msg_id"], row["tags"], row["keys"]) == ("X1", "eu", ["k"])
    assert (row["queue_id"], row["properties"], row["body"]) == (1, {"a": "b"}, "hi")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nonsense", "line 2 is not a message"),
        ('{"topic": "t"}', "body"),
        ('{"topic": 7, "body": "x"}', "topic"),
        ('{"topic": "t", "body_base64": "!!"}', "line 2"),
        ('{"topic": "t", "body": "x", "queue_id": -1}', "queue id -1"),
        ('{"topic": "t", "body": "x", "born_host": "here"}', "must be a host and port"),
        ('{"topic": "", "body": "x"}', "'' is not a valid topic name"),
        ('{"topic": "t", "body": "x", "flag": 99999999999}', "does not fit"),
    ],
)
def test_invalid_line_ends_the_import(
    command: Command, tmp_path: Path, line: str, words: str
) -> None:
    file, new = tmp_path / "in.jsonl", tmp_path / "new"
    file.write_text(f'{{"topic": "t", "body": "first"}}\n{line}\n')

    outcome = command("store", "import", str(new), str(file))

    assert outcome.code == 2
    assert words in outcome.err
    assert "messages stored before it: 1" in outcome.err
    assert "no problems; 1 message" in command("store", "check", str(new)).out


def test_invalid_parquet_file_is_refused(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file = tmp_path / "in.parquet"
    file.write_text("no parquet")

    outcome = command("store", "import", str(tmp_path / "new"), str(file))

    assert (outcome.code, "not a valid Parquet file" in outcome.err) == (2, True)


def test_parquet_without_pyarrow_names_the_extra(
    command: Command, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    outcome = command("store", "export", str(store), str(store.parent / "x.parquet"))

    assert (outcome.code, "pip install 'kourou[spark]'" in outcome.err) == (2, True)
    assert not list(store.parent.glob("x.parquet*"))


def test_unknown_extension_needs_a_format(command: Command, store: Path) -> None:
    file = str(store.parent / "all.txt")

    assert command("store", "export", str(store), file).code == 2
    assert command("store", "export", str(store), file, "--format", "json").code == 0


def test_failed_export_write_names_the_file(command: Command, store: Path) -> None:
    outcome = command("store", "export", str(store), str(store.parent / "no" / "all.jsonl"))

    assert outcome.code == 2
    assert "all.jsonl cannot be written: No such file or directory" in outcome.err


def test_topic_without_messages_is_reported(command: Command, store: Path) -> None:
    outcome = command("store", "export", str(store), "-", "--topic", "order", "--topic", "pay")

    assert (outcome.code, len(lines(outcome.out))) == (0, 2)
    assert "note: no messages of topic order" in outcome.err
    assert "topic pay" not in outcome.err


def test_store_path_that_is_a_file_is_refused(command: Command, store: Path) -> None:
    file = store.parent / "in.jsonl"
    file.write_text('{"topic": "t", "body": "x"}')

    outcome = command("store", "import", str(file), str(file))

    assert (outcome.code, "in.jsonl is not a directory" in outcome.err) == (2, True)
