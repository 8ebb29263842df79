"""The key index is complete and correct after crashes, damage and expiry."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from kourou.protocol.record.encode import encode_record
from kourou.store.index import index_log
from kourou.store.index.index_file import IndexLayout, index_file_name
from kourou.store.index.index_keys import KeyKind, key_hash
from kourou.store.index.key_index import IndexStep, KeyIndex
from kourou.store.log.commitlog import CommitLog
from kourou.store.paths import INDEX
from kourou.store.tools.check_index import check_index
from kourou.store.tools.findings import Finding
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, draft

LAYOUT = IndexLayout(8, 32)
SEGMENT_BYTES = 4096
LONG_MAX = 2**63 - 1
START_MS = 1_700_000_000_000


class PowerLostError(Exception):
    """Raised by the disk at the operation at which power is lost."""


@dataclass
class Indexed:
    """A durable commit log, and an index that follows it through crashes."""

    disk: SimDisk = field(default_factory=SimDisk)
    layout: IndexLayout = LAYOUT
    places: dict[str, list[int]] = field(default_factory=dict)
    records: int = 0

    def __post_init__(self) -> None:
        self.disk.make_directory("commitlog")
        self.disk.sync_directory("")
        self.log = CommitLog(self.disk, SEGMENT_BYTES)
        self.open()

    def append(self, records: int = 1) -> None:
        """Append `count` durable records, most with a few keys, some without."""
        for _ in range(records):
            number = self.records
            self.records += 1
            keys = {"UNIQ_KEY": f"C0A80001-{number:08}", "KEYS": f"k-{number} g-{number % 5}"}
            properties = keys | {"TAGS": f"t-{number % 3}"} if number % 7 else {"note": "none"}
            message = draft(b"x" * 40, properties=properties)
            size = len(encode_record(message, number, 0, 0))
            position = self.log.position_for(size)
            at_ms = START_MS + number * 333
            self.log.add(position, encode_record(message, number, position, at_ms))
            if number % 7:
                for key in (keys["UNIQ_KEY"], *keys["KEYS"].split(), f"T#t-{number % 3}"):
                    self.places.setdefault(key, []).append(position)
        self.log.write()
        for name in self.log.unsynced_files():
            self.disk.sync(name)
        self.disk.sync_directory("commitlog")
        self.log.synced(self.log.written_position)

    def open(self, *, durable_to_ms: int | None = None, complete_to: int | None = None) -> None:
        self.index = KeyIndex(self.disk, self.log, self.layout)
        self.index.open(durable_to_ms=durable_to_ms, complete_to=complete_to)

    def follow(self) -> None:
        end = self.log.synced_position
        while (left := self.index.step(end)) is not IndexStep.IDLE:
            if left is IndexStep.BLOCKED:
                self.index.upkeep(end, START_MS)

    def power_cut(self) -> None:
        """Lose power and open the index again; the log's files are durable."""
        self.disk.on_operation = None
        self.disk.crash()
        self.open()

    def findings(self) -> list[Finding]:
        end = self.log.written_position
        return check_index(self.disk, self.layout, SEGMENT_BYTES, end, is_complete=True)

    def assert_complete(self) -> None:
        """Index to the end of the log; assert that each key finds exactly its records."""
        self.follow()
        self.index.save()
        assert self.findings() == []
        for key, places in self.places.items():
            found = list(self.index.find(key_hash("T", key, KeyKind.KEY), 0, LONG_MAX))
            own = [place for place in found if place in places]
            assert own == places[::-1], key
            assert len(found) - len(own) <= 1, "collisions of hashes are rare"


@pytest.fixture(params=[0, 1])
def indexed(request: pytest.FixtureRequest) -> Indexed:
    made = Indexed(SimDisk(request.param))
    made.append(60)
    return made


def test_every_key_finds_its_records_newest_first(indexed: Indexed) -> None:
    indexed.assert_complete()
    assert len(indexed.index.files) > 5


def test_later_records_are_indexed_once(indexed: Indexed) -> None:
    for _ in range(10):
        indexed.append(3)
        indexed.follow()
    indexed.assert_complete()
    indexed.open()
    indexed.append(5)
    indexed.assert_complete()


def test_one_step_takes_large_records_from_several_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_log, "CHUNK_BYTES", 600)
    indexed = Indexed(layout=IndexLayout(8, 200))
    indexed.append(14)
    end = indexed.log.synced_position
    assert 2400 < end < SEGMENT_BYTES
    indexed.index.upkeep(end, START_MS)
    assert indexed.index.step(end) is IndexStep.MORE
    assert 1200 < indexed.index.position <= 2400
    indexed.assert_complete()


def test_records_behind_the_synced_position_are_not_indexed() -> None:
    indexed = Indexed()
    indexed.append(5)
    end = indexed.log.synced_position
    indexed.follow()
    assert (indexed.index.position, indexed.index.lag_bytes(end + 100)) == (end, 100)
    assert indexed.index.step(end) is IndexStep.IDLE


def crashed_somewhere(seed: int) -> Indexed:
    """Append, index and save; lose power at a random operation, three times; open the index."""
    dice = random.Random(seed)
    indexed = Indexed(SimDisk(seed))
    indexed.append(dice.randrange(1, 30))
    left = [dice.randrange(1, 60)]

    def count(_operation: str, name: str) -> None:
        if name.startswith(INDEX):
            left[0] -= 1
            if left[0] <= 0:
                raise PowerLostError

    for _ in range(3):
        indexed.disk.on_operation = count
        try:
            for _ in range(dice.randrange(1, 8)):
                indexed.follow()
                if dice.random() < 0.6:
                    indexed.index.save()
                indexed.disk.on_operation = None
                indexed.append(dice.randrange(1, 9))
                indexed.disk.on_operation = count
        except PowerLostError:
            left[0] = dice.randrange(1, 60)
        indexed.power_cut()
    return indexed


@pytest.mark.parametrize("block", range(4))
def test_the_index_is_completed_after_a_power_loss_at_any_operation(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        indexed = crashed_somewhere(seed)
        indexed.assert_complete()
        indexed.append(9)
        indexed.open()
        indexed.assert_complete()


def test_the_next_save_completes_a_failed_save(indexed: Indexed) -> None:
    indexed.follow()
    for number in range(12):
        indexed.append(4)
        countdown = [number]

        def fail(operation: str, _name: str, countdown: list[int] = countdown) -> None:
            countdown[0] -= operation in ("write", "truncate", "sync", "sync_directory")
            if countdown[0] < 0:
                raise OSError(errno.ENOSPC, "full")

        indexed.disk.on_operation = fail
        for _ in range(3):
            with suppress(OSError):
                indexed.follow()
                indexed.index.save()
        indexed.disk.on_operation = None
    indexed.assert_complete()


def test_a_missing_file_is_rebuilt_with_all_later_ones(indexed: Indexed) -> None:
    indexed.assert_complete()
    names = indexed.disk.list(INDEX)
    for number in range(len(names)):
        indexed.disk.unlink(f"{INDEX}/{indexed.disk.list(INDEX)[number]}")
        kept = indexed.disk.list(INDEX)[:number]
        indexed.open()
        assert indexed.disk.list(INDEX) == kept
        indexed.assert_complete()


def test_files_with_damaged_headers_or_sizes_are_rebuilt(indexed: Indexed) -> None:
    indexed.assert_complete()
    dice = random.Random(3)
    for _ in range(60):
        path = f"{INDEX}/{dice.choice(indexed.disk.list(INDEX))}"
        at = dice.choice([*range(32), *range(36, 40)])  # everything except the number of used slots
        byte = indexed.disk.read(path, at, 1)[0] ^ 1 << dice.randrange(8)
        indexed.disk.write(path, at, [bytes([byte])])
        indexed.open()
        indexed.assert_complete()
    indexed.disk.truncate(indexed.index.files[1].path, 100)
    indexed.open()
    indexed.assert_complete()


def test_an_index_without_files_is_built_from_the_whole_log(indexed: Indexed) -> None:
    indexed.assert_complete()
    for name in indexed.disk.list(INDEX):
        indexed.disk.unlink(f"{INDEX}/{name}")
    indexed.open()
    assert indexed.index.position == 0
    indexed.assert_complete()


def test_files_that_java_did_not_record_as_durable_are_rebuilt(indexed: Indexed) -> None:
    indexed.assert_complete()
    files = indexed.index.files
    indexed.open(durable_to_ms=files[1].header.end_at_ms)
    assert [file.name for file in indexed.index.files] == [file.name for file in files[:2]]
    indexed.assert_complete()


def test_files_written_behind_a_hole_are_rebuilt(indexed: Indexed) -> None:
    indexed.assert_complete()
    files = indexed.index.files
    indexed.open(complete_to=files[2].header.end_offset)
    assert [file.name for file in indexed.index.files] == [file.name for file in files[:2]]
    indexed.assert_complete()


def test_files_of_expired_records_are_removed_except_the_newest(indexed: Indexed) -> None:
    indexed.assert_complete()
    files = indexed.index.files
    assert indexed.index.expire(files[2].header.end_offset) == 2
    assert indexed.index.expire(files[2].header.end_offset) == 0
    assert indexed.disk.list(INDEX) == [file.name for file in files[2:]]
    assert indexed.index.expire(LONG_MAX) == len(files) - 3
    assert indexed.disk.list(INDEX) == [files[-1].name]
    indexed.append(4)
    indexed.follow()
    found = list(indexed.index.find(key_hash("T", "k-62", KeyKind.KEY), 0, LONG_MAX))
    assert found == indexed.places["k-62"]


def test_keys_of_the_next_record_are_indexed_after_an_indexed_record_expired() -> None:
    indexed = Indexed()
    indexed.append(60)
    indexed.follow()
    indexed.index.save()
    last = indexed.index.last_header.end_offset
    indexed.append(60)

    indexed.open()
    segments = indexed.log.segments
    segments.hide_first(last // SEGMENT_BYTES + 1)
    indexed.follow()

    for key, places in indexed.places.items():
        found = list(indexed.index.find(key_hash("T", key, KeyKind.KEY), 0, LONG_MAX))
        assert {place for place in places if place >= indexed.log.min_position} <= set(found), key


def test_a_search_by_time_is_exact_to_a_second(indexed: Indexed) -> None:
    indexed.assert_complete()
    hash_ = key_hash("T", "T#t-1", KeyKind.KEY)
    for first, last in ((0, 59), (10, 20), (30, 30), (59, 59)):
        begin_ms, end_ms = START_MS + first * 333, START_MS + last * 333
        found = list(indexed.index.find(hash_, begin_ms, end_ms))
        asked = {
            indexed.places[f"k-{number}"][0]
            for number in range(first, last + 1)
            if number % 7 and number % 3 == 1
        }
        assert asked <= set(found)
        assert len(found) <= len(asked) + 3


def test_damage_in_the_log_is_skipped() -> None:
    for at in (0, 4, 30, 86, 600, 700, 4090):
        indexed = Indexed()
        indexed.append(60)
        indexed.disk.write("commitlog/00000000000000000000", at, [b"\xff" * 5])
        indexed.follow()
        missing = [
            key
            for key, places in indexed.places.items()
            if set(places) - set(indexed.index.find(key_hash("T", key, KeyKind.KEY), 0, LONG_MAX))
        ]
        assert len([key for key in missing if key.startswith("k-")]) <= 2


def test_unreadable_parts_of_the_log_are_skipped() -> None:
    indexed = Indexed()
    indexed.append(60)
    reads = indexed.disk.read

    def broken(name: str, offset: int, size: int) -> bytes:
        if name.endswith("4096") and offset + size > 0 and offset < 2000:
            raise OSError(errno.EIO, "a bad block")
        return reads(name, offset, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed.disk, "read", broken)
        patch.setattr(indexed.disk, "read_resident", broken)
        indexed.follow()
        hash_ = key_hash("T", "k-58", KeyKind.KEY)
        assert list(indexed.index.find(hash_, 0, LONG_MAX)) == indexed.places["k-58"]


def test_file_names_ascend_even_if_the_clock_is_set_back() -> None:
    first = index_file_name(START_MS, "")
    assert first.startswith("2023111")
    assert len(first) == 17
    assert index_file_name(START_MS, first) == str(int(first) + 1)
    assert index_file_name(START_MS - 3_600_000, first) == str(int(first) + 1)
    assert index_file_name(START_MS + 5, first) == str(int(first) + 5)


def test_the_rigs_layout_is_a_valid_one() -> None:
    assert IndexLayout(CONFIG.index_slots, CONFIG.index_entries).file_bytes == 40 + 32 + 640
