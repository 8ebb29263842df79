"""Java's index files are read here, and the same messages produce the same index bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kourou.store.index.index_file import IndexLayout
from kourou.store.index.index_keys import KeyKind, key_hash
from kourou.store.index.key_index import IndexStep, KeyIndex, KeyQuery
from kourou.store.log.commitlog import CommitLog
from kourou.store.message_store import MessageStore
from kourou.testing.disk import SimDisk
from tests.store.golden import NAMES, Golden, load

LONG_MAX = 2**63 - 1


def open_golden(golden: Golden) -> MessageStore:
    config = replace(golden.config, free_bytes_min=1)
    return MessageStore.open(golden.disk, config, 1_800_000_000_000, pid=1)


def index_files(golden: Golden) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = golden.manifest["index_files"]
    return files


def index_all(index: KeyIndex, until: int, now_ms: int = 0) -> None:
    """Index the log to its end."""
    while (left := index.step(until)) is not IndexStep.IDLE:
        if left is IndexStep.BLOCKED:
            index.upkeep(until, now_ms)


@pytest.mark.parametrize("name", NAMES)
def test_each_key_is_found_at_the_same_positions_as_in_java(name: str) -> None:
    golden = load(name)
    store = open_golden(golden)
    assert store.index is not None
    index_all(store.index, store.reader.synced_position)
    for asked in golden.manifest["index_queries"]:
        hash_ = key_hash(asked["topic"], asked["key"], KeyKind.KEY)
        found = list(store.index.find(hash_, 0, LONG_MAX))
        assert set(asked["physical_offsets"]) <= set(found), asked
        query = KeyQuery(asked["topic"], asked["key"], KeyKind.KEY, 64, 0, LONG_MAX)
        proven = store.find_messages(query).records
        places = [int.from_bytes(record[28:36]) for record in proven]
        assert places == sorted(asked["physical_offsets"]), asked
    store.abandon()


@pytest.mark.parametrize("name", ["clean", "expired", "lmq"])
def test_javas_index_files_are_not_changed(name: str) -> None:
    golden = load(name)
    store = open_golden(golden)
    assert store.index is not None
    assert [
        {"file": file.name} | _java_header(file.header) for file in store.index.files
    ] == index_files(golden)
    store.close(1_800_000_000_000)
    for file in index_files(golden):
        path = f"index/{file['file']}"
        data = golden.files[path]
        assert golden.disk.read(path, 0, len(data)) == data


def _java_header(header: Any) -> dict[str, int]:
    return {
        "beginTimestamp": header.begin_at_ms,
        "endTimestamp": header.end_at_ms,
        "beginPhyOffset": header.begin_offset,
        "endPhyOffset": header.end_offset,
        "hashSlotCount": header.used_slots,
        "indexCount": header.count,
    }


@pytest.mark.parametrize("name", ["clean", "lmq"])
def test_the_same_messages_produce_the_same_index_bytes(name: str) -> None:
    golden = load(name)
    log = CommitLog(golden.disk, golden.config.commitlog_segment_bytes)
    log.segments.load()
    end = golden.manifest["commit_log"]["max_offset"]
    log.start_at(end)
    disk = SimDisk()
    layout = IndexLayout(golden.config.index_slots, golden.config.index_entries)
    index = KeyIndex(disk, log, layout)
    index.open(durable_to_ms=None, complete_to=None)
    index_all(index, end)
    index.save()
    made = [disk.read(file.path, 0, layout.file_bytes) for file in index.files]
    java = [golden.files[f"index/{file['file']}"] for file in index_files(golden)]
    assert len(made) == len(java)
    for ours, theirs in zip(made, java, strict=True):
        assert ours == theirs


@pytest.mark.parametrize("name", ["killed", "torn"])
def test_index_files_in_unknown_state_after_a_killed_java_are_rebuilt(name: str) -> None:
    golden = load(name)
    store = open_golden(golden)
    assert store.index is not None
    durable_to_ms = golden.manifest["checkpoint_before_opening"]["indexMsgTimestamp"]
    kept = [file["file"] for file in index_files(golden) if file["endTimestamp"] <= durable_to_ms]
    assert [file.name for file in store.index.files] == kept
    store.abandon()
