"""Key index with concurrent queries and expiry, and with a full or failing disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from kourou.protocol.record.read import read_record
from kourou.store.index import key_index
from kourou.store.index.index_active import ActiveIndexFile
from kourou.store.index.index_keys import KeyEntries, KeyKind, key_hash
from kourou.store.index.key_index import IndexStep, KeyQuery, find_messages
from kourou.store.log.record_reader import read_record_at
from kourou.store.paths import INDEX
from tests.store.index.test_key_index import LONG_MAX, START_MS, Indexed

HASH = key_hash("T", "g-1", KeyKind.KEY)


def test_a_query_during_a_step_finds_all_records(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed = Indexed()
    indexed.append(20)
    indexed.follow()
    indexed.append(20)
    end = indexed.log.synced_position
    found: list[int] = []
    add = ActiveIndexFile.add

    def query_and_add(file: ActiveIndexFile, entries: KeyEntries) -> int:
        query = KeyQuery("T", "k-39", KeyKind.KEY, 10, 0, LONG_MAX)
        records = find_messages(
            query, indexed.index, indexed.log, end, lambda place: indexed.log.read(place, 4096)
        )
        found.append(len(records.records))
        return add(file, entries)

    monkeypatch.setattr(ActiveIndexFile, "add", query_and_add)
    indexed.follow()
    assert found == [1] * len(found) != []


def test_a_search_continues_behind_an_entry_added_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    indexed = Indexed()
    indexed.append(3)
    indexed.follow()
    file = indexed.index.files[-1]
    assert isinstance(file, ActiveIndexFile)
    slot = file.slot

    def put_and_slot(number: int) -> int:
        monkeypatch.undo()
        at_ms = START_MS + 9_000
        file.add(KeyEntries([HASH], [indexed.log.written_position], [at_ms], at_ms, at_ms))
        return slot(number)

    monkeypatch.setattr(file, "slot", put_and_slot)
    assert list(file.find(HASH, 0, LONG_MAX))[1:] == indexed.places["g-1"]


def test_files_expire_while_a_file_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed = Indexed()
    indexed.append(60)
    indexed.follow()
    files = indexed.index.files
    create = ActiveIndexFile.create

    def expire_and_create(*arguments: object) -> ActiveIndexFile:
        indexed.index.expire(files[2].header.end_offset)
        return create(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ActiveIndexFile, "create", expire_and_create)
    indexed.append(10)
    indexed.follow()
    names = [file.name for file in indexed.index.files]
    assert names == indexed.disk.list(INDEX)
    assert files[0].name not in names
    assert files[-1].name in names


def test_repeated_attempts_on_a_full_disk_leave_no_files() -> None:
    indexed = Indexed()
    indexed.append(5)

    def full(operation: str, name: str) -> None:
        if operation == "write" and name.startswith(INDEX):
            raise OSError(errno.ENOSPC, "full", name)

    indexed.disk.on_operation = full
    end = indexed.log.synced_position
    for second in range(3):
        assert indexed.index.step(end) is IndexStep.BLOCKED
        with pytest.raises(OSError, match="full"):
            indexed.index.upkeep(end, START_MS + 1000 * second)
    assert indexed.disk.list(INDEX) == []
    indexed.disk.on_operation = None
    indexed.assert_complete()


def test_a_sync_that_fails_with_enospc_is_not_retried() -> None:
    indexed = Indexed()
    indexed.append(5)
    indexed.follow()

    def full(operation: str, name: str) -> None:
        if operation == "sync":
            raise OSError(errno.ENOSPC, "full", name)

    indexed.disk.on_operation = full
    with pytest.raises(OSError, match="a sync failed") as caught:
        indexed.index.save()
    assert caught.value.errno == errno.EIO


def test_a_file_with_an_unreadable_header_is_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    indexed = Indexed()
    indexed.append(60)
    indexed.assert_complete()
    files, read = indexed.index.files, indexed.disk.read

    def broken(name: str, offset: int, size: int) -> bytes:
        if name == files[2].path:
            raise OSError(errno.EIO, "a bad block", name)
        return read(name, offset, size)

    monkeypatch.setattr(indexed.disk, "read", broken)
    indexed.open()
    assert [file.name for file in indexed.index.files] == [file.name for file in files[:2]]
    monkeypatch.undo()
    indexed.assert_complete()


def test_an_answer_has_the_newest_messages_that_fit_into_a_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    indexed = Indexed()
    indexed.append(30)
    indexed.follow()
    query = KeyQuery("T", "g-1", KeyKind.KEY, 10, 0, LONG_MAX)

    def places(bytes_max: int) -> list[int]:
        monkeypatch.setattr(key_index, "_ANSWER_BYTES_MAX", bytes_max)
        log = indexed.log
        found = find_messages(
            query,
            indexed.index,
            log,
            log.written_position,
            lambda at: read_record_at(log, at, LONG_MAX),
        )
        return [read_record(record, check_crc=True).physical_offset for record in found.records]

    assert places(10_000) == indexed.places["g-1"]
    assert places(500) == indexed.places["g-1"][-2:]
    assert places(1) == indexed.places["g-1"][-1:]


class WatchedSlots:
    """Slots that call `look` after each assignment."""

    def __init__(self, slots: memoryview, look: Callable[[], None]) -> None:
        self._slots = slots
        self._look = look

    def __getitem__(self, number: int) -> int:
        return int(self._slots[number])

    def __setitem__(self, number: int, entry: int) -> None:
        self._slots[number] = entry
        self._look()


def entries_of(hashes: list[int]) -> KeyEntries:
    at_ms, number = START_MS + 9_000, len(hashes)
    return KeyEntries(hashes, range(10_000, 10_000 + number), [at_ms] * number, at_ms, at_ms)


def test_a_search_while_entries_are_added_finds_all_older_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    indexed = Indexed()
    indexed.append(3)
    indexed.follow()
    file = indexed.index.files[-1]
    assert isinstance(file, ActiveIndexFile)
    found: list[list[int]] = []
    slots = WatchedSlots(file._slots, lambda: found.append([*file.find(HASH, 0, LONG_MAX)]))
    monkeypatch.setattr(file, "_slots", slots)
    others = [HASH + 8 * number for number in range(5)]  # of the same slot
    assert file.add(entries_of([HASH, *others])) == 6
    assert found == [indexed.places["g-1"]] * 6
    assert [*file.find(HASH, 0, LONG_MAX)] == [10_001, 10_000, *indexed.places["g-1"]]


def test_entries_that_fail_to_be_added_change_nothing() -> None:
    indexed = Indexed()
    indexed.append(3)
    indexed.follow()
    file = indexed.index.files[-1]
    assert isinstance(file, ActiveIndexFile)
    before = file.header
    with pytest.raises(OverflowError):
        file.add(entries_of([HASH] * 4)._replace(offsets=[1, 2, 3, 1 << 70]))
    assert file.header == before
    assert [*file.find(HASH, 0, LONG_MAX)] == indexed.places["g-1"]
    assert file.add(entries_of([HASH])) == 1
    assert [*file.find(HASH, 0, LONG_MAX)] == [10_000, *indexed.places["g-1"]]
