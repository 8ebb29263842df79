"""A check finds every kind of damage, and has no findings for a correct store."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import pytest

from kourou.store.formats import ENTRY
from kourou.store.tools.check import CheckReport, check_store
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, SEGMENT_BYTES, Rig

LOG = "commitlog/00000000000000000000"
SECOND_LOG = "commitlog/00000000000000004096"
THIRD_LOG = "commitlog/00000000000000008192"
QUEUE = "consumequeue/T/0/00000000000000000000"
SECOND_QUEUE = "consumequeue/T/0/00000000000000000160"


def closed_store() -> SimDisk:
    """Return a store of 12 messages in two segments and two queue files."""
    rig = Rig()
    for number in range(12):
        rig.put(b"%d" % number + b"x" * 300)
    rig.put(b"other", topic="U", queue_id=1)
    rig.store.close(rig.now_ms)
    return rig.disk


def test_a_correct_store_has_no_findings() -> None:
    report = check_store(closed_store())

    assert report.findings == []
    assert (report.records, report.queues) == (13, 2)
    assert report.bytes == 4096 + report.bytes % 4096


def test_a_large_offset_file_has_no_findings() -> None:
    disk = closed_store()
    offsets = ",".join(f'"Topic{number}@group":{{0:1,1:1}}' for number in range(10_000))
    disk.write("config/consumerOffset.json", 0, [f'{{"offsetTable":{{{offsets}}}}}'.encode()])

    assert check_store(disk).findings == []


def test_a_store_that_was_never_used_has_no_findings() -> None:
    rig = Rig()

    assert rig.problems() == []
    assert check_store(SimDisk()) == CheckReport([], 0, 0, 0)


def test_a_check_changes_nothing() -> None:
    disk = closed_store()
    seen: set[str] = set()
    disk.on_operation = lambda operation, _: seen.add(operation)
    check_store(disk)

    assert seen <= {"exists", "size", "read", "list", "next_data"}


def test_a_check_reports_progress() -> None:
    rig = Rig()
    for _ in range(5000):
        rig.append(b"")
    rig.commit()
    rig.store.close(0)
    reported: list[tuple[int, int]] = []
    check_store(rig.disk, progress=lambda *args: reported.append(args))

    assert reported
    assert all(0 < done <= total for done, total in reported)


def overwrite(name: str, at: int, data: bytes) -> Callable[[SimDisk], None]:
    return lambda disk: disk.write(name, at, [data])


def truncate(name: str, size: int) -> Callable[[SimDisk], None]:
    return lambda disk: disk.truncate(name, size)


def unlink(name: str) -> Callable[[SimDisk], None]:
    return lambda disk: disk.unlink(name)


def make(name: str) -> Callable[[SimDisk], None]:
    return lambda disk: disk.write(name, 0, [b"x"])


@pytest.mark.parametrize(
    ("damage", "file", "words"),
    [
        (overwrite(LOG, 150, b"?"), LOG, "checksum"),
        (overwrite(LOG, 0, bytes(8)), LOG, "no record: zeros: 420 bytes"),
        (overwrite(LOG, 31, b"\xff"), LOG, "checksum|claims"),
        (overwrite(SECOND_LOG, 4000, b"?"), SECOND_LOG, "zeros follow"),
        (overwrite(THIRD_LOG, 10, b"?"), THIRD_LOG, "the log ends before this file"),
        (truncate(LOG, 5000), LOG, "5000 bytes long"),
        (truncate(SECOND_LOG, 100), SECOND_LOG, "100 bytes long"),
        (overwrite(QUEUE, 0, ENTRY.pack(5, 400, 97)), QUEUE, "offset 0: the entry is"),
        (overwrite(QUEUE, 20, bytes(20)), QUEUE, "offset 1: the entry is"),
        (overwrite(QUEUE, 19, b"\x07"), QUEUE, "offset 0: the entry is"),
        (overwrite(SECOND_QUEUE, 100, b"?"), SECOND_QUEUE, "have no record"),
        (truncate(QUEUE, 100), QUEUE, "100 bytes long"),
        (unlink(QUEUE), QUEUE, "entry is"),
        (unlink(SECOND_QUEUE), SECOND_QUEUE, "entry is"),
        (make("consumequeue/T/name"), "consumequeue/T/name", "not a queue id"),
        (overwrite("checkpoint", 40, struct.pack(">q", 17)), "checkpoint", "position 17"),
        (overwrite("checkpoint", 40, struct.pack(">q", 1 << 40)), "checkpoint", "position 1099511"),
        (overwrite("checkpoint", 0, struct.pack(">q", 1 << 50)), "checkpoint", "time"),
        (overwrite("checkpoint", 8, struct.pack(">q", 1 << 50)), "checkpoint", "time"),
        (make("abort"), "abort", "not closed cleanly"),
        (make("config/topics.json"), "config/topics.json", "no backup"),
    ],
)
def test_damage_is_found(damage: Callable[[SimDisk], None], file: str, words: str) -> None:
    disk = closed_store()
    damage(disk)
    findings = check_store(disk).findings

    assert [f for f in findings if f.file == file and re.search(words, f.problem)], findings


def test_a_missing_segment_is_found() -> None:
    rig = Rig()
    for _ in range(12):
        rig.put(b"x" * 900)
    rig.store.close(0)
    rig.disk.unlink(SECOND_LOG)

    problems = [(f.file, f.problem) for f in check_store(rig.disk).findings]
    assert (SECOND_LOG, "the file is missing, and later ones exist") in problems


def test_a_lost_queue_is_found() -> None:
    disk = closed_store()
    disk.unlink("consumequeue/U/1/00000000000000000000")

    (finding,) = check_store(disk).findings
    assert finding.file == "consumequeue/U/1/00000000000000000000"


def test_a_queue_entry_of_a_prepared_record_is_found() -> None:
    disk = closed_store()
    record = disk.read(SECOND_LOG, 0, 40)
    flags = struct.unpack(">i", record[36:40])[0] | 0x4
    disk.write(SECOND_LOG, 36, [struct.pack(">i", flags)])

    assert check_store(disk).findings


def test_findings_of_one_queue_are_limited() -> None:
    rig = Rig(config=CONFIG)
    for _ in range(200):
        rig.append(b"")
    rig.commit()
    rig.store.close(0)
    for name in rig.disk.list("consumequeue/T/0"):
        rig.disk.write(f"consumequeue/T/0/{name}", 0, [b"\1" * 160])

    findings = check_store(rig.disk).findings
    assert len(findings) == 21
    assert "180 more" in findings[-1].problem


def test_a_lost_unsynced_page_is_found() -> None:
    disk = closed_store()
    disk.write(LOG, 1024, [bytes(512)])
    findings = check_store(disk).findings

    assert findings[0].file == LOG
    assert findings[0].offset < SEGMENT_BYTES
