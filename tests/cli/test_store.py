"""Tests of `kourou store check`: findings, and no changes to the store."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kourou.disk import OsDisk
from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.testing.process import Outcome

CONFIG = StoreConfig(commitlog_segment_bytes=8192, consumequeue_file_bytes=400, free_bytes_min=1)
Command = Callable[..., Outcome]


def draft(body: bytes) -> RecordDraft:
    return RecordDraft(
        topic=b"orders",
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_at_ms=1,
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        properties=b"",
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a cleanly closed store with three messages."""
    disk = OsDisk(tmp_path)
    opened = MessageStore.open(disk, CONFIG, 1, pid=1)
    for number in range(3):
        opened.writer.append(draft(b"order %d" % number), 2)
    opened.writer.write()
    opened.writer.dispatch(opened.writer.appended_position)
    opened.close(3)
    disk.close()
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_intact_store_has_no_problems_and_is_not_changed(command: Command, store: Path) -> None:
    before = contents(store)

    outcome = command("store", "check", str(store))

    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{store}: no problems; 3 messages in ")
    assert outcome.out.endswith(" bytes, 1 queue\n")
    assert contents(store) == before


def test_check_report_as_json(command: Command, store: Path) -> None:
    report = json.loads(command("store", "check", str(store), "--json").out)

    assert report["store"] == str(store)
    assert (report["ok"], report["findings"], report["records"], report["queues"]) == (
        True,
        [],
        3,
        1,
    )


def test_flipped_byte_is_found_with_file_and_position(command: Command, store: Path) -> None:
    log = store / "commitlog" / "00000000000000000000"
    with log.open("r+b") as file:
        file.seek(log.read_bytes().index(b"order 1"))
        file.write(b"O")

    outcome = command("store", "check", str(store))
    report = json.loads(command("store", "check", str(store), "--json").out)

    assert outcome.code == 1
    assert outcome.out.splitlines()[0].split() == ["FILE", "BYTE", "PROBLEM"]
    assert "commitlog/00000000000000000000" in outcome.out
    assert outcome.out.splitlines()[-1].startswith(f"{store}: ")
    assert " problem" in outcome.out.splitlines()[-1]
    assert report["ok"] is False
    assert report["findings"][0]["file"] == "commitlog/00000000000000000000"


def test_a_store_in_use_is_refused_with_a_remedy(command: Command, store: Path) -> None:
    opened = MessageStore.open(OsDisk(store), CONFIG, 1, pid=1)
    try:
        outcome = command("store", "check", str(store))
    finally:
        opened.close(2)

    assert outcome.code == 3
    assert "locked by another store" in outcome.err
    assert "close that one first" in outcome.err
    assert "with --live" in outcome.err


@pytest.mark.parametrize("make", [True, False])
def test_a_directory_without_a_store_is_refused(
    command: Command, tmp_path: Path, *, make: bool
) -> None:
    path = tmp_path / "empty"
    if make:
        path.mkdir()

    outcome = command("store", "check", str(path))

    assert outcome.code == 2
    assert str(path) in outcome.err
    assert ("no directory commitlog" if make else "is not a directory") in outcome.err
    assert path.exists() == make


def test_a_store_on_a_read_only_file_system_is_verified(
    command: Command, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(OsDisk, "lock", refuse)

    assert command("store", "check", str(store)).code == 0
    assert command("store", "export", str(store), "-").code == 0
    rebuilt = command("store", "rebuild", str(store))
    assert (rebuilt.code, "Read-only file system" in rebuilt.err) == (3, True)
