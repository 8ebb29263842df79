"""The log's next segment is made beside the writes, and a crash or a failure of that harms none."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext

import pytest

from kourou.store.log.segment_ahead import SegmentAhead
from kourou.store.paths import COMMITLOG
from kourou.testing.disk import SimDisk
from tests.store.rig import SEGMENT_BYTES, Rig, draft

BODY = bytes(1_000)  # three fill a segment
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def half_full(disk: SimDisk | None = None) -> Rig:
    """Return a store whose first segment is half full."""
    rig = Rig(disk or SimDisk())
    needed = []
    for _ in range(2):
        rig.put(BODY)
        needed.append(rig.store.needs_segment_ahead)
    assert needed == [False, True]
    return rig


def begin(rig: Rig) -> SegmentAhead:
    return rig.store.begin_segment_ahead(nullcontext(), nullcontext())


def fill(rig: Rig) -> SegmentAhead:
    ahead = begin(rig)
    while ahead.fill_some():
        pass
    return ahead


def go_on(rig: Rig, count: int = 5) -> None:
    """Store more messages, and check that all are there and the store is in order."""
    before = len(rig.bodies())
    for _ in range(count):
        rig.put(BODY)
    assert len(rig.bodies()) == before + count
    assert rig.problems() == []


def test_the_log_goes_on_in_the_segment_that_was_made() -> None:
    rig = half_full()
    fill(rig)
    assert not rig.store.needs_segment_ahead
    names = rig.disk.list(COMMITLOG)
    assert names == [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]
    made: list[str] = []
    rig.disk.on_operation = lambda operation, name: (
        made.append(name) if operation == "truncate" else None
    )
    rig.put(BODY)
    rig.put(BODY)
    rig.disk.on_operation = None

    assert made == []
    assert rig.disk.list(COMMITLOG) == names
    go_on(rig)


def test_filling_ends_where_records_begin() -> None:
    rig = half_full()
    ahead = fill(rig)
    for _ in range(3):
        rig.put(BODY)
    assert not ahead.fill_some()
    ahead.discard()
    assert len(rig.bodies()) == 5
    go_on(rig)


def test_a_segment_that_was_not_begun_in_time_is_made_as_before() -> None:
    rig = half_full()
    ahead = begin(rig)
    for _ in range(3):
        rig.put(BODY)
    assert not ahead.fill_some()
    go_on(rig)


def test_a_segment_that_found_no_room_is_removed_and_made_when_it_is_needed() -> None:
    rig = half_full()
    ahead = begin(rig)
    rig.disk.fail_after(2, FULL, ("write",))
    with pytest.raises(OSError, match="space"):
        ahead.fill_some()
    ahead.discard()
    assert rig.disk.list(COMMITLOG) == [f"{0:020d}"]
    go_on(rig)


def test_room_for_a_whole_segment_must_be_left() -> None:
    rig = half_full()
    assert rig.store.has_room_ahead()
    rig.disk.free = SEGMENT_BYTES
    assert not rig.store.has_room_ahead()


def test_a_clean_stop_leaves_no_segment_ahead() -> None:
    rig = half_full()
    fill(rig)
    rig.reopen()
    assert rig.disk.list(COMMITLOG) == [f"{0:020d}"]
    go_on(rig)


def test_an_end_leaves_the_file_as_it_is() -> None:
    rig = half_full()
    ahead = begin(rig)
    ahead.fill_some()
    rig.store.end_segment_ahead()
    assert not ahead.fill_some()
    go_on(rig)


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_a_crash_at_any_step_loses_nothing(*, is_power_lost: bool) -> None:
    for seed in range(40):
        rig = half_full(SimDisk(seed))
        stop_at = rig.disk.operations + seed % 10

        def stop(_: str, name: str, rig: Rig = rig, stop_at: int = stop_at) -> None:
            if rig.disk.operations > stop_at:
                raise StoppedError(name)

        rig.disk.on_operation = stop
        try:
            fill(rig)
        except StoppedError:
            pass
        rig.disk.on_operation = None
        (rig.crash if is_power_lost else rig.kill)()
        assert len(rig.bodies()) == 2
        go_on(rig)


def test_a_crash_after_the_first_record_in_it_loses_nothing() -> None:
    for seed in range(20):
        rig = half_full(SimDisk(seed))
        fill(rig)
        rig.put(BODY)
        rig.put(BODY)
        rig.crash()
        assert len(rig.bodies()) == 4
        go_on(rig)


class StoppedError(Exception):
    """The process ends here."""


def test_records_count_as_lost_where_a_sync_of_zeros_was_told_that_they_are() -> None:
    rig = half_full()
    ahead = begin(rig)
    ahead.fill_some()
    store = rig.store
    sync = rig.disk.sync

    def claim_and_fail(name: str) -> None:
        rig.disk.sync = sync  # type: ignore[method-assign]
        for _ in range(2):
            store.append(draft(BODY), 0)
        store.write()
        raise OSError(errno.EIO, "the records of the next segment", name)

    rig.disk.sync = claim_and_fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="next segment"):
        ahead.fill_some()
    plan = store.sync_plan()
    assert plan is not None
    with pytest.raises(OSError, match="next segment"):
        store.run_sync(plan)
