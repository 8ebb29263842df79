"""Expiry removes segments, then queue files, and is safe for readers and against crashes."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable

import pytest

from kourou.store.message_store import GetRequest, MessageStore
from kourou.store.paths import COMMITLOG, queue_directory
from kourou.store.reading.get_plan import GetStatus
from kourou.store.retention import RetentionConfig
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from tests.store.rig import SEGMENT_BYTES, Rig, delete_topic

HOUR_MS = 3_600_000
CONFIG = RetentionConfig(file_reserved_hours=1, delete_files_max=100)
QUEUE = queue_directory("T", 0)


def with_disk_clock(rig: Rig) -> Rig:
    """Let the rig's disk use the rig's clock."""
    rig.disk.now_ms = lambda: rig.now_ms
    return rig


def fill(rig: Rig, count: int, topic: str = "T") -> None:
    """Store messages of which three fill a segment, a second apart."""
    for number in range(count):
        rig.put(b"%03d" % number + bytes(1_000), topic)
    rig.settle()


def expired_rig(*, disk: SimDisk | None = None) -> Rig:
    """Return a store of ten segments, of which all but the last two expired an hour ago."""
    rig = with_disk_clock(Rig(disk or SimDisk()))
    fill(rig, 24)
    fill(rig, 1, "once")
    rig.now_ms += HOUR_MS
    fill(rig, 3)
    return rig


def expire_log(store: MessageStore, now_ms: int, config: RetentionConfig = CONFIG) -> int:
    """Remove the expired segments with the broker's steps; return how many."""
    count = store.expiry.count_expired(config, now_ms)
    for _ in range(count):
        store.expiry.remove([store.expiry.hide_segment()])
    store.expiry.sync_log()
    return count


def expire_queues(store: MessageStore) -> int:
    """Remove the expired queue files; return how many."""
    hidden = store.expiry.hide_files(store.expiry.find_expired(store.expiry.queues()))
    count = sum(len(files.starts) for files in hidden)
    store.expiry.remove(hidden)
    return count


def expire(rig: Rig) -> None:
    expire_log(rig.store, rig.now_ms)
    expire_queues(rig.store)


def numbers(rig: Rig) -> list[int]:
    return [int(body[:3]) for body in rig.bodies()]


def test_expired_segments_are_removed_and_then_their_queue_files() -> None:
    rig = expired_rig()
    assert numbers(rig) == [*range(24), *range(3)]

    assert expire_log(rig.store, rig.now_ms) == 8
    assert rig.store.reader.min_position == 8 * SEGMENT_BYTES
    assert expire_queues(rig.store) == 3  # files of 8 entries each

    assert rig.disk.list(COMMITLOG)[0] == f"{8 * SEGMENT_BYTES:020d}"
    assert rig.disk.list(QUEUE) == [f"{3 * 8 * 20:020d}"]
    assert rig.store.reader.min_offset("T", 0) == 24
    assert numbers(rig) == [0, 1, 2]
    assert rig.problems() == []


def test_nothing_is_removed_before_it_expires() -> None:
    rig = with_disk_clock(Rig())
    fill(rig, 24)
    rig.now_ms += HOUR_MS - 60_000

    assert expire_log(rig.store, rig.now_ms) == 0
    assert len(numbers(rig)) == 24


def test_the_last_segment_is_never_removed() -> None:
    rig = with_disk_clock(Rig())
    fill(rig, 24)
    rig.now_ms += 1_000 * HOUR_MS

    assert expire_log(rig.store, rig.now_ms) == 7
    expire_queues(rig.store)
    assert len(rig.disk.list(COMMITLOG)) == 1
    assert len(rig.disk.list(QUEUE)) == 1
    assert numbers(rig) == [21, 22, 23]


def test_segment_without_durable_queue_entries_is_not_removed() -> None:
    rig = with_disk_clock(Rig())
    for number in range(12):
        rig.append(b"%03d" % number + bytes(1_000))
    rig.store.writer.write()
    rig.now_ms += 1_000 * HOUR_MS
    assert expire_log(rig.store, rig.now_ms) == 0

    rig.commit()
    assert expire_log(rig.store, rig.now_ms) == 0, "a power cut would lose its entries"

    rig.settle()
    assert expire_log(rig.store, rig.now_ms) == 3


def test_queue_whose_messages_all_expired_keeps_its_offsets() -> None:
    rig = expired_rig()
    fill(rig, 3)
    rig.now_ms += HOUR_MS
    fill(rig, 3)
    expire(rig)
    assert (rig.store.reader.min_offset("once", 0), rig.store.reader.max_offset("once", 0)) == (
        1,
        1,
    )

    for again in (rig.reopen, rig.kill, rig.crash):
        again()
        assert (rig.store.reader.min_offset("once", 0), rig.store.reader.max_offset("once", 0)) == (
            1,
            1,
        )
    assert rig.put(topic="once").queue_offset == 1
    assert rig.problems() == []


def test_read_below_minimum_offset_returns_minimum_offset() -> None:
    rig = expired_rig()
    plan = rig.store.reader.get("T", 0, GetRequest(3, 8, 1 << 20, None)).plan
    expire(rig)

    late = rig.store.reader.get("T", 0, GetRequest(3, 8, 1 << 20, None)).plan
    assert (late.status, late.next_offset) == (GetStatus.OFFSET_TOO_SMALL, 24)
    assert rig.store.reader.entry("T", 0, 3) is None
    assert rig.store.reader.offset_by_time("T", 0, 0) == 24
    assert rig.store.reader.store_time("T", 0, 24) == rig.now_ms - 1_000
    assert rig.store.reader.read_record(plan.ranges[0][0]) is None


def test_reads_between_the_steps_report_removed_messages() -> None:
    rig = expired_rig()
    expire_log(rig.store, rig.now_ms)

    plan = rig.store.reader.get("T", 0, GetRequest(3, 8, 1 << 20, None)).plan
    assert plan.status is GetStatus.MESSAGE_WAS_REMOVING
    assert plan.next_offset > 3

    hidden = rig.store.expiry.hide_files(rig.store.expiry.find_expired(rig.store.expiry.queues()))
    assert rig.store.reader.get("T", 0, GetRequest(3, 8, 1 << 20, None)).plan.next_offset == 24
    rig.store.expiry.remove(hidden)
    assert numbers(rig) == [0, 1, 2]


def test_a_segment_that_cannot_be_removed_is_shown_again() -> None:
    rig = expired_rig()
    files = rig.store.expiry.hide_segment()
    rig.disk.fail_after(0, OSError(errno.EBUSY, os.strerror(errno.EBUSY)), ("unlink",))
    with pytest.raises(OSError, match="busy"):
        rig.store.expiry.remove([files])
    rig.store.expiry.show_remaining([files])

    assert rig.store.reader.min_position == 0
    assert len(numbers(rig)) == 27
    expire(rig)
    assert numbers(rig) == [0, 1, 2]


def test_a_queues_files_that_cannot_be_removed_are_shown_again() -> None:
    rig = expired_rig()
    expire_log(rig.store, rig.now_ms)
    expiry = rig.store.expiry
    hidden = expiry.hide_files(expiry.find_expired(expiry.queues()))
    expiry.remove([type(hidden[0])(hidden[0].segments, [hidden[0].starts.pop(0)])])
    rig.disk.fail_after(0, OSError(errno.EBUSY, os.strerror(errno.EBUSY)), ("unlink",))
    with pytest.raises(OSError, match="busy"):
        expiry.remove(hidden)
    expiry.show_remaining(hidden)
    assert len(rig.disk.list(QUEUE)) == 3

    assert expire_queues(rig.store) == 2
    assert rig.problems() == []


def test_unreadable_queue_does_not_stop_expiry_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = expired_rig()
    fill(rig, 20, "U")
    rig.now_ms += HOUR_MS
    fill(rig, 20, "U")
    expire_log(rig.store, rig.now_ms)
    rig.disk.fail_after(0, OSError(errno.EIO, os.strerror(errno.EIO)), ("read",))

    with caplog.at_level(logging.WARNING):
        expire_queues(rig.store)
    assert f"consumequeue.look_failed directory={QUEUE}" in caplog.text
    assert (
        rig.store.reader.min_offset("U", 0) == 17
    )  # its segment also contains the last three messages
    assert rig.store.reader.min_offset("T", 0) == 0
    expire_queues(rig.store)
    assert rig.store.reader.min_offset("T", 0) == 27


def test_a_topic_may_be_deleted_between_two_runs() -> None:
    rig = expired_rig()
    expire_log(rig.store, rig.now_ms)
    delete_topic(rig.store, "T")
    assert expire_queues(rig.store) == 0
    assert rig.put(b"%03d" % 7).queue_offset == 0

    assert numbers(rig) == [7]
    assert rig.problems() == []


def count_operations(act: Callable[[Rig], None]) -> int:
    rig = expired_rig()
    before = rig.disk.operations
    act(rig)
    return rig.disk.operations - before


class StoppedError(Exception):
    """Simulates the end of the process."""


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_a_crash_at_any_step_leaves_a_consistent_store_with_all_unexpired_messages(
    *, is_power_lost: bool
) -> None:
    for at in range(count_operations(expire) + 1):
        rig = expired_rig(disk=SimDisk(at))
        left = [rig.disk.operations + at]

        def crash(_: str, name: str, left: list[int] = left, disk: SimDisk = rig.disk) -> None:
            if disk.operations > left[0]:
                raise StoppedError(name)

        rig.disk.on_operation = crash
        try:
            expire(rig)
        except StoppedError:
            pass
        rig.disk.on_operation = None
        (rig.crash if is_power_lost else rig.kill)()

        found = numbers(rig)
        assert found[-3:] == [0, 1, 2], f"crash at {at}"
        assert found[:-3] == list(range(24))[24 - len(found[:-3]) :], f"crash at {at}"
        expire(rig)
        assert numbers(rig) == [0, 1, 2]
        assert rig.problems() == []


def test_store_with_expired_segments_works_after_every_kind_of_stop() -> None:
    rig = expired_rig()
    expire(rig)
    for again in (rig.reopen, rig.kill, rig.crash):
        again()
        assert rig.store.reader.min_position == 8 * SEGMENT_BYTES
        assert numbers(rig)[:3] == [0, 1, 2]
        fill(rig, 4)
    assert rig.store.reader.max_offset("T", 0) == 24 + 3 + 12
    assert rig.problems() == []


def test_lost_queues_are_rebuilt_from_the_logs_begin() -> None:
    rig = expired_rig()
    expire(rig)
    rig.store.abandon()
    for name in rig.disk.list(QUEUE):
        rig.disk.unlink(f"{QUEUE}/{name}")
    rig.open()

    assert rig.store.reader.min_offset("T", 0) == 24
    assert numbers(rig) == [0, 1, 2]
    assert rig.problems() == []


def test_check_accepts_a_store_with_expired_segments() -> None:
    rig = expired_rig()
    expire_log(rig.store, rig.now_ms)
    rig.store.close(rig.now_ms)

    report = check_store(rig.disk)
    assert report.findings == []
    assert report.records == 4
