"""Tests of store commands on a store that is being written: no false findings."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kourou.disk import OsDisk
from kourou.store.index.key_index import IndexStep
from kourou.store.message_store import MessageStore
from kourou.testing.process import Outcome
from tests.store.rig import CONFIG, draft

NOW_MS = 1_700_000_000_000
SMALL = replace(CONFIG, commitlog_segment_bytes=65_536, index_slots=64, index_entries=4_096)
Command = Callable[..., Outcome]


def write_until(stop: threading.Event, store: MessageStore, written: threading.Event) -> None:
    """Store messages in rounds of group commit, like a broker, until stopped."""
    number = 0
    while not stop.is_set():
        for _ in range(20):
            properties = {"KEYS": f"k{number}", "TAGS": "eu"}
            one = draft(b"x" * (number % 500), topic="TU"[number % 2], properties=properties)
            store.writer.append(one, NOW_MS + number)
            number += 1
        store.writer.write()
        plan = store.writer.sync_plan()
        assert plan is not None
        store.writer.run_sync(plan)
        store.writer.synced(plan)
        store.writer.dispatch(store.reader.synced_position)
        while (left := store.index_step()) is not IndexStep.IDLE:
            if left is IndexStep.BLOCKED:
                store.index_upkeep(NOW_MS)
        store.writer.flush(NOW_MS + number * 100)
        if number > 500:
            written.set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    disk = OsDisk(tmp_path)
    opened = MessageStore.open(disk, SMALL, NOW_MS, pid=1)
    stop, written = threading.Event(), threading.Event()
    writer = threading.Thread(target=write_until, args=(stop, opened, written))
    writer.start()
    assert written.wait(120)
    yield tmp_path
    assert writer.is_alive(), "it wrote on all the time"
    stop.set()
    writer.join()
    opened.close(NOW_MS)
    disk.close()


def test_live_check_of_an_intact_store_finds_no_problems(command: Command, store: Path) -> None:
    seen = [
        json.loads(command("store", "check", str(store), "--live", "--json").out) for _ in "123"
    ]

    assert [report["findings"] for report in seen] == [[], [], []]
    assert 0 < seen[0]["records"] <= seen[2]["records"]


def test_live_export_has_a_prefix_of_each_queue(command: Command, store: Path) -> None:
    outcome = command("store", "export", str(store), "-", "--live")
    offsets: dict[str, list[object]] = {}
    for row in outcome.rows:
        offsets.setdefault(str(row["topic"]), []).append(row["queue_offset"])

    assert (outcome.code, sorted(offsets)) == (0, ["T", "U"])
    for some in offsets.values():
        assert some == list(range(len(some)))


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "checkpoint", "index", "config"])
def test_each_file_can_be_dumped(command: Command, store: Path, part: str) -> None:
    assert command("store", "dump", str(store / part), "--json", "--count", "2000").code == 0


def test_info_of_a_store_in_use_counts_messages(command: Command, store: Path) -> None:
    found = json.loads(command("store", "info", str(store), "--json").out)

    assert found["in_use"] is True
    assert {queue["topic"] for queue in found["queues"]} == {"T", "U"}


@pytest.mark.parametrize(
    "args", [("check",), ("rebuild",), ("truncate", "--at", "0", "--yes"), ("export", "-")]
)
def test_commands_that_need_the_lock_are_refused(
    command: Command, store: Path, args: tuple[str, ...]
) -> None:
    name, *more = args
    outcome = command("store", name, str(store), *more)

    assert (outcome.code, outcome.out) == (3, "")
    assert "is locked by" in outcome.err
