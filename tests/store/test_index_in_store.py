"""The store's key index stays correct across stops, kills, deletions and runs of Java."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kourou.store.index.index_file import IndexLayout
from kourou.store.index.index_keys import KeyKind
from kourou.store.index.key_index import IndexStep, KeyIndex, KeyQuery
from kourou.store.message_store import MessageStore
from kourou.store.paths import ABORT, INDEX
from kourou.store.state.store_state import StoreStateFile
from kourou.store.tools.check_index import check_index
from kourou.store.tools.rebuild import rebuild
from tests.store.rig import CONFIG, Rig, delete_topic, draft

LONG_MAX = 2**63 - 1


def put(rig: Rig, *keys: str, topic: str = "T") -> None:
    for key in keys:
        rig.store.writer.append(
            draft(key.encode(), topic=topic, properties={"KEYS": key}), rig.now_ms
        )
        rig.now_ms += 500
    rig.commit()


def index_all(store: MessageStore) -> None:
    while (left := store.index_step()) is not IndexStep.IDLE:
        if left is IndexStep.BLOCKED:
            store.index_upkeep(1_000_000)


def found(rig: Rig, key: str, topic: str = "T") -> int:
    query = KeyQuery(topic, key, KeyKind.KEY, 64, 0, LONG_MAX)
    return len(rig.store.find_messages(query).records)


def index_of(rig: Rig) -> KeyIndex:
    assert rig.store.index is not None
    return rig.store.index


def check(rig: Rig) -> None:
    """Stop cleanly, and assert that the index is complete and agrees with the log."""
    end = rig.store.reader.written_position
    rig.store.close(rig.now_ms)
    layout = IndexLayout(CONFIG.index_slots, CONFIG.index_entries)
    assert (
        check_index(rig.disk, layout, CONFIG.commitlog_segment_bytes, end, is_complete=True) == []
    )


def test_a_clean_stop_leaves_the_whole_log_indexed() -> None:
    rig = Rig()
    put(rig, *(f"k-{number}" for number in range(80)))
    check(rig)
    store = rig.open()
    assert store.index_lag_bytes < 4096  # only the last record is read again
    assert index_of(rig).durable_at_ms == rig.now_ms - 500
    assert [found(rig, f"k-{number}") for number in (0, 40, 79, 80)] == [1, 1, 1, 0]
    check(rig)


@pytest.mark.parametrize("is_power_lost", [False, True])
@pytest.mark.parametrize("is_saved", [False, True])
def test_after_a_crash_the_index_is_completed_from_the_log(
    *, is_power_lost: bool, is_saved: bool
) -> None:
    rig = Rig()
    for first in range(0, 60, 20):
        put(rig, *(f"k-{number}" for number in range(first, first + 20)))
        index_all(rig.store)
        if is_saved:
            rig.store.index_save()
            rig.tick()
        if is_power_lost:
            rig.crash()
        else:
            rig.kill()
    assert [found(rig, f"k-{number}") for number in range(60)] == [1] * 60
    index_all(rig.store)
    assert [found(rig, f"k-{number}") for number in range(60)] == [1] * 60
    check(rig)


def test_messages_of_a_deleted_topic_are_not_found_in_a_new_topic_of_the_name() -> None:
    rig = Rig()
    put(rig, "a", "b")
    put(rig, "a", topic="Other")
    index_all(rig.store)
    delete_topic(rig.store, "T")
    assert (found(rig, "a"), found(rig, "a", "Other")) == (0, 1)
    put(rig, "a")
    assert (found(rig, "a"), found(rig, "b")) == (1, 0)
    rig.reopen()
    assert (found(rig, "a"), found(rig, "b")) == (1, 0)
    check(rig)


def test_messages_that_are_not_dispatched_are_not_found() -> None:
    rig = Rig()
    rig.store.writer.append(draft(properties={"KEYS": "a"}), rig.now_ms)
    rig.store.writer.write()
    assert found(rig, "a") == 0
    rig.commit()
    assert found(rig, "a") == 1


def test_index_files_newer_than_the_checkpoint_are_rebuilt_after_a_killed_java() -> None:
    rig = Rig()
    put(rig, *(f"k-{number}" for number in range(80)))
    rig.store.close(rig.now_ms)
    names = rig.disk.list(INDEX)
    rig.disk.write("checkpoint", 16, [(0).to_bytes(8)])  # Java's index time, not advanced
    rig.disk.write(ABORT, 0, [b"4711"])
    rig.open()
    assert index_of(rig).files == ()
    index_all(rig.store)
    assert len(rig.disk.list(INDEX)) == len(names)
    check(rig)


def test_index_gap_before_messages_written_by_java_is_filled() -> None:
    rig = Rig()
    put(rig, *(f"k-{number}" for number in range(80)))
    index_all(rig.store)
    half = index_of(rig).files[1].header.begin_offset
    rig.store.close(rig.now_ms)
    # The index was not complete at the stop, and Java has run since.
    state_file = StoreStateFile(rig.disk)
    state = state_file.read()
    assert state is not None
    assert state.index_position is None
    state_file.save(msgspec.structs.replace(state, index_position=half))
    rig.disk.truncate("abort.bak", 0)
    rig.open()
    assert len(index_of(rig).files) == 1
    check(rig)


def test_incomplete_index_at_a_stop_is_recorded_in_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kourou.store.index.key_index.CLOSE_BYTES_MAX", 1_000)
    rig = Rig()
    put(rig, *(f"k-{number}" for number in range(80)))
    rig.store.close(rig.now_ms)
    state = StoreStateFile(rig.disk).read()
    assert state is not None
    assert (state.index_position, rig.disk.list(INDEX)) == (0, [])
    rig.open()
    index_all(rig.store)
    check(rig)


def test_store_without_an_index_finds_nothing_and_creates_no_file() -> None:
    rig = Rig(config=replace(CONFIG, message_index_enable=False))
    put(rig, "a")
    assert (rig.store.index_step(), rig.store.index_lag_bytes) == (IndexStep.IDLE, 0)
    rig.store.index_upkeep(1)
    rig.store.index_save()
    assert found(rig, "a") == 0
    assert rig.problems() == []
    assert rig.disk.list(INDEX) == []


def test_read_only_store_does_not_change_its_index() -> None:
    rig = Rig()
    put(rig, "a")
    rig.store.writer.set_read_only("a test says so")
    assert rig.store.index_step() is IndexStep.IDLE
    assert found(rig, "a") == 1


@pytest.mark.parametrize("damage", ["none", "lost", "zeroed"])
def test_queries_find_the_same_after_the_index_was_rebuilt(damage: str) -> None:
    rig = Rig()
    for number in range(40):
        properties = {"KEYS": f"k-{number % 7} all", "UNIQ_KEY": f"u-{number}", "TAGS": "a"}
        rig.store.writer.append(draft(b"%d" % number, properties=properties), rig.now_ms)
        rig.now_ms += 500
    rig.commit()
    index_all(rig.store)
    queries = [
        KeyQuery("T", key, kind, 64, begin_ms, end_ms)
        for key, kind in (
            ("k-3", KeyKind.KEY), ("all", KeyKind.KEY), ("u-17", KeyKind.UNIQUE_ID),
            ("a", KeyKind.TAG), ("k-9", KeyKind.KEY),
        )
        for begin_ms, end_ms in ((0, LONG_MAX), (rig.now_ms - 9_000, rig.now_ms - 4_000))
    ]  # fmt: skip
    before = [rig.store.find_messages(query).records for query in queries]
    assert [len(records) for records in before] == [6, 2, 40, 11, 1, 0, 40, 11, 0, 0]
    rig.store.close(rig.now_ms)
    for name in rig.disk.list(INDEX) if damage != "none" else []:
        if damage == "lost":
            rig.disk.unlink(f"{INDEX}/{name}")
        else:
            rig.disk.write(f"{INDEX}/{name}", 40, [bytes(800)])

    rebuild(rig.disk, rig.now_ms, pid=1)

    rig.open()
    assert [rig.store.find_messages(query).records for query in queries] == before
