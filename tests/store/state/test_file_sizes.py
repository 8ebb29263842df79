"""The file sizes of a store, Kourou's or Java's, are detected before it is opened."""

from __future__ import annotations

import pytest

from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.store.paths import STORE_STATE
from kourou.store.state.file_sizes import detect_sizes, index_sizes
from kourou.testing.disk import SimDisk
from tests.store.golden import NAMES, load
from tests.store.rig import CONFIG, Rig

SIZES = {
    "commitlog_segment_bytes": 8192,
    "consumequeue_file_bytes": 400,
    "batch_queue_file_bytes": 460,
}


def test_a_new_store_has_no_sizes() -> None:
    assert detect_sizes(SimDisk()) == {}


@pytest.mark.parametrize("is_clean", [True, False])
def test_sizes_of_a_kourou_store_are_read_from_its_state_file(*, is_clean: bool) -> None:
    disk = SimDisk()
    config = StoreConfig(
        commitlog_segment_bytes=8192, consumequeue_file_bytes=400, batch_queue_file_bytes=460
    )
    store = MessageStore.open(disk, config, 1, pid=1)
    if is_clean:
        store.close(2)
    else:
        store.abandon()

    sizes = SIZES | {"index_slots": config.index_slots, "index_entries": config.index_entries}
    assert detect_sizes(disk) == sizes


def test_sizes_of_a_java_store_are_read_from_its_files() -> None:
    disk = SimDisk()
    disk.make_directory("commitlog")
    disk.make_directory("consumequeue/orders/3")
    disk.truncate("commitlog/00000000000000008192", 8192)
    disk.truncate("consumequeue/orders/3/00000000000000000000", 400)
    disk.make_directory("batchconsumequeue/orders/3")
    disk.truncate("batchconsumequeue/orders/3/00000000000000000000", 460)

    assert detect_sizes(disk) == SIZES


def test_other_files_beside_the_log_are_ignored() -> None:
    disk = SimDisk()
    disk.make_directory("commitlog")
    disk.truncate("commitlog/backup.tar", 77)
    disk.truncate("commitlog/00000000000000000000", 0)

    assert detect_sizes(disk) == {}


def test_an_unreadable_state_file_gives_no_sizes() -> None:
    disk = SimDisk()
    disk.make_directory("config")
    disk.write(STORE_STATE, 0, [b"{"])

    assert detect_sizes(disk) == {}


@pytest.mark.parametrize("name", NAMES)
def test_javas_index_sizes_are_detected_from_its_files(name: str) -> None:
    golden = load(name)
    assert index_sizes(golden.disk) == {"index_slots": 200, "index_entries": 800}
    assert detect_sizes(golden.disk).items() >= index_sizes(golden.disk).items()


def test_recorded_index_sizes_take_precedence() -> None:
    rig = Rig()
    rig.store.close(rig.now_ms)
    found = detect_sizes(rig.disk)
    sizes = (found["index_slots"], found["index_entries"])
    assert sizes == (CONFIG.index_slots, CONFIG.index_entries)


def test_sizes_of_index_files_with_another_ratio_are_not_detected() -> None:
    disk = SimDisk()
    disk.make_directory("index")
    assert index_sizes(disk) == {}
    disk.truncate("index/20261121000000000", 40 + 84 * 10)
    disk.truncate("index/20261121000000001", 40 + 84 * 10 + 1)
    assert index_sizes(disk) == {}
