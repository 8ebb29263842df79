"""The key index is checked entry by entry against the log; each flipped bit is found."""

from __future__ import annotations

import random

import pytest

from kourou.store.index.index_file import IndexLayout
from kourou.store.paths import INDEX
from kourou.store.tools.check_index import check_index
from kourou.store.tools.findings import Finding
from kourou.testing.disk import SimDisk
from tests.store.golden import NAMES, load
from tests.store.rig import CONFIG, Rig, draft

LAYOUT = IndexLayout(CONFIG.index_slots, CONFIG.index_entries)


def closed_store(messages: int = 40) -> tuple[SimDisk, int]:
    """Return the disk of a closed store with several index files, and its log's end."""
    rig = Rig()
    for number in range(messages):
        properties = {"UNIQ_KEY": f"id-{number}", "KEYS": f"k-{number} k", "TAGS": "t"}
        rig.store.writer.append(draft(b"x", properties=properties), rig.now_ms + 700 * number)
        rig.commit()
    end = rig.store.reader.written_position
    rig.store.close(rig.now_ms)
    return rig.disk, end


def findings(disk: SimDisk, end: int, *, is_complete: bool = True) -> list[Finding]:
    return check_index(disk, LAYOUT, CONFIG.commitlog_segment_bytes, end, is_complete=is_complete)


def test_an_index_of_kourou_is_complete_and_has_no_findings() -> None:
    disk, end = closed_store()
    assert len(disk.list(INDEX)) > 3
    assert findings(disk, end) == []


@pytest.mark.parametrize("name", NAMES)
def test_an_index_of_java_has_no_findings(name: str) -> None:
    golden = load(name)
    layout = IndexLayout(golden.config.index_slots, golden.config.index_entries)
    log_end = golden.manifest["commit_log"]["max_offset"]
    if name in ("killed", "torn"):  # Java removes the last file, which was not durable
        last = golden.disk.list(INDEX)[-1]
        golden.disk.unlink(f"{INDEX}/{last}")
    assert check_index(golden.disk, layout, golden.config.commitlog_segment_bytes, log_end) == []


def test_a_store_without_an_index_has_no_findings() -> None:
    assert findings(SimDisk(), 0) == []


def test_each_flipped_bit_is_found_except_in_unused_bytes() -> None:
    disk, end = closed_store()
    dice = random.Random(5)
    names = disk.list(INDEX)
    for _ in range(150):
        path = f"{INDEX}/{dice.choice(names)}"
        at = dice.randrange(LAYOUT.file_bytes)
        byte = disk.read(path, at, 1)
        disk.write(path, at, [bytes([byte[0] ^ 1 << dice.randrange(8)])])
        entry = (at - LAYOUT.entries_at) // 20
        count = int.from_bytes(disk.read(path, 36, 4))
        is_unused = at - LAYOUT.entries_at >= 0 and not 0 < entry < count
        is_first_time = entry == 1 and 12 <= (at - LAYOUT.entries_at) % 20 < 16
        is_part_of_second = at in (6, 7, 14, 15)
        if not (is_unused or is_first_time or is_part_of_second):
            assert findings(disk, end), (path, at)
        disk.write(path, at, [byte])
    assert findings(disk, end) == []


def test_a_missing_key_is_found_in_an_index_known_to_be_complete() -> None:
    disk, end = closed_store(8)
    names = disk.list(INDEX)
    disk.unlink(f"{INDEX}/{names[0]}")
    assert len(names) == 2
    assert findings(disk, end) == []  # earlier records count as expired
    disk, end = closed_store(30)
    names = disk.list(INDEX)
    disk.unlink(f"{INDEX}/{names[1]}")
    assert {finding.file for finding in findings(disk, end)} == {f"{INDEX}/{names[2]}"}
    assert findings(disk, end, is_complete=False) == []


def test_files_of_a_wrong_name_or_size_and_entries_beyond_the_log_are_found() -> None:
    disk, end = closed_store(8)
    name = disk.list(INDEX)[0]
    assert findings(disk, end // 3, is_complete=False)
    disk.truncate(f"{INDEX}/{name}", LAYOUT.file_bytes - 1)
    disk.truncate(f"{INDEX}/notes.txt", 5)
    assert {finding.file for finding in findings(disk, end, is_complete=False)} == {
        f"{INDEX}/{name}",
        f"{INDEX}/notes.txt",
    }
