"""Zeros are written ahead of the log's records, never over one, and their failures are harmless."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from random import Random

import pytest

from kourou.errors import StoreError
from kourou.store.log.commitlog import SMALL_BYTES, ZEROS, ZerosAhead
from kourou.store.paths import COMMITLOG
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, Rig

SEGMENT_BYTES = 64 * 1024
FIRST = f"{COMMITLOG}/{0:020d}"
BODY = bytes(range(256)) * 20


def new_rig(disk: SimDisk | None = None) -> Rig:
    config = replace(CONFIG, commitlog_segment_bytes=SEGMENT_BYTES)
    return Rig(disk or SimDisk(), config)


def put(rig: Rig, count: int = 1) -> None:
    """Store messages with the same calls as a broker with SYNC_FLUSH."""
    for _ in range(count):
        rig.append(BODY)
        rig.store.writer.write()
        rig.store.writer.fill_ahead()
        plan = rig.store.writer.sync_plan()
        assert plan is not None
        rig.store.writer.run_sync(plan)
        rig.store.writer.synced(plan)
        rig.store.writer.dispatch(rig.store.reader.synced_position)


def check(rig: Rig, count: int) -> None:
    assert rig.bodies() == [BODY] * count
    assert rig.problems() == []


def test_zeros_stay_ahead_of_the_written_records_within_a_segment() -> None:
    random = Random(6)
    step = 2 * len(ZEROS) + 4096
    zeros, written, zeros_end = ZerosAhead(step), 0, 0
    for _ in range(2_000):
        written += random.randrange(1, 40_000)
        segment_end = (written - 1) // step * step + step
        start, size = zeros.next_zeros(written)
        if size:
            assert start == max(written, zeros_end)
            assert size <= len(ZEROS)
            zeros_end = start + size
        assert zeros_end <= segment_end
        assert zeros_end >= min(written + len(ZEROS) // 2, segment_end)


def test_no_zeros_are_written_while_syncs_are_large() -> None:
    zeros = ZerosAhead(1 << 30)
    zeros.synced(SMALL_BYTES + 1)
    assert zeros.next_zeros(1000) == (1000, 0)
    zeros.synced(SMALL_BYTES)
    assert zeros.next_zeros(1000) == (1000, len(ZEROS))
    assert zeros.next_zeros(1000) == (1000, 0)


def test_a_log_of_several_segments_with_zeros_ahead_is_intact() -> None:
    rig = new_rig()
    put(rig)
    assert rig.disk.next_data(FIRST, 32_768) == 32_768
    put(rig, 29)
    assert len(rig.disk.list(COMMITLOG)) == 3
    check(rig, 30)
    rig.reopen()
    check(rig, 30)


def test_without_zeros_the_rest_of_the_segment_is_a_hole() -> None:
    rig = new_rig()
    rig.put(BODY)
    assert rig.disk.next_data(FIRST, 32_768) == SEGMENT_BYTES


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_a_crash_at_any_step_loses_nothing(*, is_power_lost: bool) -> None:
    for seed in range(60):
        rig = new_rig(SimDisk(seed))
        put(rig, 10 + seed % 4)
        stop_at = rig.disk.operations + seed % 9

        def stop(_: str, name: str, rig: Rig = rig, stop_at: int = stop_at) -> None:
            if rig.disk.operations > stop_at:
                raise StoppedError(name)

        rig.disk.on_operation = stop
        try:
            put(rig, 4)
        except StoppedError:
            pass
        rig.disk.on_operation = None
        (rig.crash if is_power_lost else rig.kill)()
        assert len(rig.bodies()) >= 10 + seed % 4
        before = len(rig.bodies())
        put(rig, 15)
        check(rig, before + 15)


class StoppedError(Exception):
    """Simulates the end of the process."""


def test_a_disk_without_space_for_zeros_accepts_messages() -> None:
    rig = new_rig()
    refused = []

    def refuse_zeros(operation: str, name: str) -> None:
        if operation == "write" and name == FIRST and rig.store.reader.written_position > 0:
            refused.append(name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    rig.append(BODY)
    rig.store.writer.write()
    rig.disk.on_operation = refuse_zeros
    rig.store.writer.fill_ahead()
    rig.disk.on_operation = None
    assert refused == [FIRST]
    assert rig.store.writer.read_only_reason is None
    put(rig)
    check(rig, 2)


def test_a_device_error_while_writing_zeros_makes_the_store_read_only() -> None:
    rig = new_rig()
    rig.append(BODY)
    rig.store.writer.write()
    rig.disk.fail_after(0, OSError(errno.EIO, "gone"), ("write",))
    rig.store.writer.fill_ahead()
    assert "gone" in (rig.store.writer.read_only_reason or "")
    operations = rig.disk.operations
    rig.store.writer.fill_ahead()
    assert rig.disk.operations == operations


def test_zeros_are_written_again_after_an_undone_write() -> None:
    rig = new_rig()
    put(rig)
    rig.append(BODY)
    rig.disk.fail_after(0, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), ("write",))
    with pytest.raises(StoreError):
        rig.store.writer.write()
    assert rig.disk.next_data(FIRST, 32_768) == SEGMENT_BYTES
    rig.disk.free = 1 << 40
    rig.store.writer.flush(rig.now_ms)
    put(rig, 3)
    assert rig.disk.next_data(FIRST, 32_768) == 32_768
    check(rig, 4)


def test_a_segment_of_zeros_after_the_end_is_removed() -> None:
    rig = new_rig()
    put(rig)
    ahead = f"{COMMITLOG}/{SEGMENT_BYTES:020d}"
    rig.disk.truncate(ahead, SEGMENT_BYTES)
    rig.disk.write(ahead, 0, [bytes(8192)])
    rig.kill()
    assert rig.disk.list(COMMITLOG) == [f"{0:020d}"]
    put(rig, 14)
    check(rig, 15)
