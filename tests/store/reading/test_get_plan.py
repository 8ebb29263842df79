"""A read plan has Java's status and next offset in every case, and keeps its limits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kourou.store.formats import ENTRY
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.simple_queue import SimpleQueue
from kourou.store.reading.get_plan import Accepts, GetPlan, GetStatus, LogView, plan_get
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG

TABLES = Path(__file__).parents[2] / "golden" / "vectors" / "tables.json"
MIB = 1 << 20
SEGMENT = 1 << 16
PER_FILE = 1000
BIG_FILES = replace(CONFIG, consumequeue_file_bytes=20 * PER_FILE, scan_bytes_max=16_000)


def record(position: int, size: int, code: int) -> AppendedRecord:
    return AppendedRecord(position, 0, size, "T", 0, code, 0)


def queue_of(
    sizes: list[int], *, first: int = 0, gap: int = 0, disk: SimDisk | None = None
) -> SimpleQueue:
    """Return a queue of records, `gap` bytes apart; the code of each is its offset."""
    queue = SimpleQueue(disk or SimDisk(), "T", 0, BIG_FILES.consumequeue_file_bytes)
    at = 0
    for code, size in enumerate(sizes):
        queue.put(record(at, size, code))
        at += size + gap
    queue.min_offset = first
    return queue


def get(
    queue: SimpleQueue | None,
    offset: int,
    max_messages: int = 32,
    max_bytes: int = MIB,
    *,
    accepts: Accepts | None = None,
    log_min: int = 0,
) -> GetPlan:
    view = LogView(log_min, 1 << 30, SEGMENT)
    return plan_get(queue, view, BIG_FILES, offset, (max_messages, max_bytes), accepts=accepts)


def test_statuses_have_javas_names() -> None:
    assert [status.name for status in GetStatus] == json.loads(TABLES.read_text())["enums"][
        "GetMessageStatus"
    ]


@pytest.mark.parametrize(
    ("queue", "offset", "status", "next_offset"),
    [
        (None, 7, GetStatus.NO_MATCHED_LOGIC_QUEUE, 0),
        (queue_of([]), 7, GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        (queue_of([10] * 9, first=3), 2, GetStatus.OFFSET_TOO_SMALL, 3),
        (queue_of([10] * 9), -1, GetStatus.OFFSET_TOO_SMALL, 0),
        (queue_of([10] * 9), 9, GetStatus.OFFSET_OVERFLOW_ONE, 9),
        (queue_of([10] * 9), 10, GetStatus.OFFSET_OVERFLOW_BADLY, 9),
        (queue_of([10] * 9), 4, GetStatus.FOUND, 9),
    ],
)
def test_status_and_next_offset(
    queue: SimpleQueue | None, offset: int, status: GetStatus, next_offset: int
) -> None:
    plan = get(queue, offset)

    assert (plan.status, plan.next_offset) == (status, next_offset)
    assert bool(plan.ranges) is (status is GetStatus.FOUND)


def test_adjacent_records_are_one_range() -> None:
    assert get(queue_of([10, 20, 30]), 0).ranges == [(0, 60)]
    assert get(queue_of([10, 20, 30], gap=1), 0).ranges == [(0, 10), (11, 20), (32, 30)]


def test_a_plan_keeps_the_message_limit() -> None:
    plan = get(queue_of([10] * 50), 5, 32)

    assert (plan.count, plan.next_offset) == (32, 37)
    assert get(queue_of([10] * 200), 0, 150).count == 150


def test_a_plan_keeps_the_byte_limit_but_has_at_least_one_message() -> None:
    queue = queue_of([100, 400, 500, 10])

    assert get(queue, 0, max_bytes=500).count == 2
    assert get(queue, 0, max_bytes=499).count == 1
    assert get(queue, 2, max_bytes=1).count == 1
    assert get(queue, 2, max_messages=0).count == 1


def test_at_least_a_hundred_bytes_are_allowed() -> None:
    assert get(queue_of([30] * 9), 0, max_bytes=1).count == 3


def test_filtered_entries_are_skipped() -> None:
    plan = get(queue_of([10] * 9), 0, accepts=lambda code: code % 2 == 1)

    assert (plan.status, plan.count, plan.next_offset) == (GetStatus.FOUND, 4, 9)
    assert plan.ranges == [(10, 10), (30, 10), (50, 10), (70, 10)]


def test_status_if_no_entry_passes_the_filter() -> None:
    plan = get(queue_of([10] * 9), 0, accepts=lambda _: False)

    assert (plan.status, plan.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 9)


def test_a_full_plan_ends_at_its_last_message() -> None:
    plan = get(queue_of([10] * 9), 0, 2, accepts=lambda code: code in (1, 3, 5))

    assert (plan.count, plan.next_offset) == (2, 4)


def test_a_filter_examines_at_most_800_entries() -> None:
    queue = queue_of([10] * 950)

    assert get(queue, 0, accepts=lambda _: False).next_offset == 800
    assert get(queue, 0, 900, accepts=lambda _: False).next_offset == 900


def test_a_read_ends_with_the_queue_file() -> None:
    plan = get(queue_of([10] * (PER_FILE + 50)), PER_FILE - 3)

    assert (plan.status, plan.count, plan.next_offset) == (GetStatus.FOUND, 3, PER_FILE)


@pytest.mark.parametrize("flushed", [0, 5, 20])
def test_entries_in_files_and_in_memory_are_one_queue(flushed: int) -> None:
    queue = queue_of([10] * flushed)
    queue.flush()
    for code in range(flushed, 20):
        queue.put(record(code * 10, 10, code))

    assert get(queue, 0).ranges == [(0, 200)]
    assert get(queue, 3).count == 17


def test_a_missing_queue_file_is_skipped() -> None:
    disk = SimDisk()
    queue = queue_of([10] * (PER_FILE + 50), disk=disk)
    queue.flush()
    disk.unlink("consumequeue/T/0/00000000000000000000")
    plan = get(queue, 3)

    assert (plan.status, plan.next_offset) == (GetStatus.OFFSET_FOUND_NULL, PER_FILE)


def test_removed_records_are_skipped() -> None:
    queue = queue_of([100] * 9)

    gone = get(queue, 0, log_min=10_000)
    assert (gone.status, gone.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 9)
    # All entries of the removed segment are skipped at once, as in Java.
    assert get(queue_of([SEGMENT // 2] * 6), 0, log_min=SEGMENT).ranges == [(SEGMENT, SEGMENT * 2)]


def test_a_blank_entry_is_skipped() -> None:
    queue = queue_of([10] * 3)
    queue.fill_to(6)
    queue.put(record(30, 10, 6))
    plan = get(queue, 3)

    assert (plan.status, plan.count, plan.next_offset) == (GetStatus.FOUND, 1, 7)
    assert plan.ranges == [(30, 10)]


def test_a_filtered_entry_after_a_removed_one_decides_the_status() -> None:
    queue = queue_of([SEGMENT, 10])
    plan = get(queue, 0, accepts=lambda code: code == 0, log_min=SEGMENT)

    assert plan.status is GetStatus.NO_MATCHED_MESSAGE


def test_older_messages_have_the_cold_limits() -> None:
    config = replace(
        BIG_FILES, resident_bytes=1000, cold_get_bytes_max=450, cold_get_messages_max=8
    )
    queue = queue_of([100] * 40)

    def count(offset: int, size: int = MIB) -> int:
        view = LogView(0, 4000, SEGMENT)
        return plan_get(queue, view, config, offset, (32, size), accepts=None).count

    assert count(0) == 4
    assert count(32) == 8
    small = queue_of([10] * 400)
    plan = plan_get(small, LogView(0, 4000, SEGMENT), config, 0, (32, MIB), accepts=None)
    assert plan.count == 8


def test_entries_have_the_documented_layout() -> None:
    queue = queue_of([])
    queue.put(record(1, 2, -3))

    assert queue.read(0, 9) == ENTRY.pack(1, 2, -3)
    assert queue.read(0, 9).hex() == "0000000000000001" + "00000002" + "fffffffffffffffd"
