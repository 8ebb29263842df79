"""Slots and entries of Java's index files are detected from the files."""

from __future__ import annotations

import pytest

from kourou.store.index.index_sizes import index_sizes
from kourou.store.state.detected_sizes import detect_sizes
from kourou.testing.disk import SimDisk
from tests.store.golden import NAMES, load
from tests.store.rig import CONFIG, Rig


@pytest.mark.parametrize("name", NAMES)
def test_javas_sizes_are_detected_from_its_files(name: str) -> None:
    golden = load(name)
    assert index_sizes(golden.disk) == {"index_slots": 200, "index_entries": 800}
    assert detect_sizes(golden.disk).items() >= index_sizes(golden.disk).items()


def test_recorded_sizes_take_precedence() -> None:
    rig = Rig()
    rig.store.close(rig.now_ms)
    found = detect_sizes(rig.disk)
    sizes = (found["index_slots"], found["index_entries"])
    assert sizes == (CONFIG.index_slots, CONFIG.index_entries)


def test_sizes_of_files_with_another_ratio_are_not_detected() -> None:
    disk = SimDisk()
    disk.make_directory("index")
    assert index_sizes(disk) == {}
    disk.truncate("index/20261121000000000", 40 + 84 * 10)
    disk.truncate("index/20261121000000001", 40 + 84 * 10 + 1)
    assert index_sizes(disk) == {}
