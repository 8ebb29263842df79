"""Timer wheel, timer log, check file and choice of slots, compared with small models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CorruptRecordError, StoreConfigError
from kourou.store.timer.layouts import (
    SLOTS,
    TimerCheck,
    TimerUnit,
    decode_check,
    decode_unit,
    encode_check,
    encode_unit,
)
from kourou.store.timer.slot_choice import SlotChoice, choose_slot, exact_due_ms, out_ms
from kourou.store.timer.timer_files import TimerFiles
from kourou.store.timer.timer_log import TIMER_LOG, TimerLog
from kourou.store.timer.timer_rebuild import KeyedPositions, cut_timer_files
from kourou.store.timer.wheel_files import TIMER_CHECK, TIMER_WHEEL
from kourou.testing.disk import SimDisk

NOW_MS = 1_700_000_000_000
FILE_BYTES = 52 * 7 + 20


def unit(number: int, second: int = 0) -> TimerUnit:
    return TimerUnit(-1, 1, NOW_MS, second * 1000 - NOW_MS if second else 0, number, 1, 0, 0)


def opened(disk: SimDisk, *, was_clean: bool = False) -> TimerFiles:
    disk.make_directory("config")
    files = TimerFiles(disk, FILE_BYTES)
    assert files.rebuild_reason(0, 1_000, was_kourou=True) is None
    files.recover(NOW_MS, lambda _: None, was_clean=was_clean)
    return files


def flush(files: TimerFiles, scan_from: int = 0) -> None:
    files.log.write()
    plan = files.plan_flush(NOW_MS, scan_from, 0)
    assert plan is not None
    files.run_flush(plan)
    files.flush_succeeded(plan)


def chains(files: TimerFiles) -> dict[int, list[int]]:
    return {
        slot.second: [one.physical_offset for _, one in files.log.chain(slot.last)][::-1]
        for slot in files.wheel.slots()
    }


@given(
    st.lists(st.integers(0, 4), max_size=60),
    st.sets(st.integers(0, 60), max_size=4),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_recovery_after_a_crash_during_a_flush_matches_the_check_file(
    seconds: list[int], flushes: set[int], seed: int, is_killed: bool
) -> None:
    disk = SimDisk(seed)
    files = opened(disk)
    files.is_changed = True  # like a broker: without a check file the log would count as Java's
    flush(files)
    first = NOW_MS // 1000 + 10
    added: list[tuple[int, int, int]] = []
    for number, late in enumerate(seconds):
        position = files.add(SlotChoice(first + late, is_roll=False), unit(number, first + late))
        added.append((position, first + late, number))
        if number in flushes:
            flush(files)
    files.log.write()
    last_flush = files.plan_flush(NOW_MS, 0, 0)
    if last_flush is not None:
        disk.on_operation = cut_after(seed % 12)
        with suppress(KilledError):
            files.run_flush(last_flush)
    disk.on_operation = None
    if not is_killed:
        disk.crash()
    again = opened(disk)
    end = again.check.log_position
    model: dict[int, list[int]] = defaultdict(list)
    for position, second, number in added:
        if position < end:
            model[second].append(number)
    assert chains(again) == dict(model)
    assert again.wheel.count == sum(map(len, model.values()))
    assert end >= max((at + 52 for at, _, number in added if number in flushes), default=0)


class KilledError(Exception):
    """Raised between two operations of the disk to end the process."""


def cut_after(count: int) -> Callable[[str, str], None]:
    """Return a callback that lets `operations` operations of a disk pass, then raises."""
    left = count

    def on_operation(_operation: str, _name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError

    return on_operation


def test_a_missing_wheel_is_rebuilt_from_the_log() -> None:
    disk = SimDisk()
    files = opened(disk)
    first = NOW_MS // 1000 + 10
    for number in range(20):
        files.add(SlotChoice(first + number % 3, is_roll=False), unit(number, first + number % 3))
    flush(files)
    before = chains(files)
    disk.unlink(TIMER_WHEEL)
    assert chains(opened(disk, was_clean=True)) == before


def test_a_broken_chain_is_reported_and_its_units_are_found_by_a_scan() -> None:
    disk = SimDisk()
    log = TimerLog(disk, FILE_BYTES)
    previous, second = -1, NOW_MS // 1000
    for number in range(5):
        previous = log.append(unit(number, second)._replace(previous=previous))
    log.write()
    disk.write(log.segments.name(0), 2 * 52, [b"\xff" * 52])
    with pytest.raises(CorruptRecordError):
        list(log.chain(previous))
    assert [one.physical_offset for _, one in log.units_of(second)] == [0, 1, 3, 4]


def test_files_of_different_sizes_are_refused() -> None:
    disk = SimDisk()
    disk.make_directory("timerlog")
    disk.truncate("timerlog/00000000000000000000", 8_192)
    disk.truncate("timerlog/00000000000000008192", 4_096)
    with pytest.raises(StoreConfigError):
        TimerLog(disk, 8_192)


def test_files_of_expired_records_are_removed_oldest_first() -> None:
    log = TimerLog(SimDisk(), FILE_BYTES)
    for number in range(30):
        log.append(unit(number))
    log.write()
    assert log.remove_before(lambda offset: offset < 14) == 2
    assert log.segments.first == 2 * FILE_BYTES
    assert log.remove_before(lambda _: True) == 2


@given(st.integers(1, 10**14))
def test_a_time_maps_to_the_same_second_as_in_java(due_at_ms: int) -> None:
    second = out_ms(due_at_ms)
    assert second % 1000 == 0
    assert second < due_at_ms <= second + 1000
    assert exact_due_ms(second, due_at_ms) == due_at_ms
    assert exact_due_ms(second, 0) == exact_due_ms(second, due_at_ms + 1000) == second + 1000


@given(
    st.integers(0, 400 * 86_400),
    st.integers(0, 30 * 86_400),
    st.integers(2, 600_000),
)
def test_a_chosen_slot_is_never_done_and_never_in_use_by_another_second(
    wait_s: int, behind_s: int, window_s: int
) -> None:
    read_at_ms = NOW_MS - behind_s * 1000
    out_at_ms = NOW_MS + wait_s * 1000
    choice = choose_slot(out_at_ms, NOW_MS, read_at_ms, window_s * 1000)
    assert 0 <= choice.second - read_at_ms // 1000 < SLOTS
    assert choice.second * 1000 <= max(out_at_ms, read_at_ms)
    assert choice.is_roll or choice.second * 1000 == out_at_ms
    assert choice.roll_at_ms == (choice.second * 1000 if choice.is_roll else 0)


@given(st.integers(0, 4_000 * 86_400), st.integers(0, 400 * 86_400), st.integers(2, 600_000))
def test_no_message_is_rolled_past_its_time_after_the_clock_was_set_back(
    ahead_s: int, wait_s: int, window_s: int
) -> None:
    read_at_ms, out_at_ms = NOW_MS + ahead_s * 1000, NOW_MS + wait_s * 1000
    choice = choose_slot(out_at_ms, NOW_MS, read_at_ms, window_s * 1000)
    assert read_at_ms // 1000 <= choice.second < read_at_ms // 1000 + SLOTS
    assert choice.is_roll == (wait_s >= window_s)
    assert choice.roll_at_ms <= out_at_ms
    if choice.second > read_at_ms // 1000:
        assert choice.second * 1000 <= out_at_ms


@given(st.binary(max_size=300))
def test_arbitrary_bytes_decode_to_a_unit_or_none(data: bytes) -> None:
    found = decode_unit(data)
    assert found is None or encode_unit(found) == data[:52]


def test_a_check_file_rewritten_by_java_has_no_scan_position() -> None:
    ours = TimerCheck(NOW_MS, 104, 2, 2, 0, NOW_MS, 7, 4_000)
    data = encode_check(ours)
    assert decode_check(data) == ours
    javas = encode_check(ours._replace(queue_offset=3, scan_from=None)) + data[56:]
    assert decode_check(javas) == ours._replace(queue_offset=3, scan_from=None)
    assert decode_check(b"short") == TimerCheck()


def test_a_check_file_of_an_earlier_version_covers_no_known_log() -> None:
    ours = TimerCheck(NOW_MS, 104, 2, 2, 0, NOW_MS, 7, 4_000, 4_100, 172_800_000, NOW_MS + 1000)
    data = encode_check(ours)
    assert decode_check(data) == ours
    earlier = encode_check(ours._replace(covered_at=None, counter=8))
    mixed = decode_check(earlier + data[len(earlier) :])
    assert (mixed.scan_from, mixed.covered_at, mixed.counter) == (4_000, None, 8)


def test_an_empty_file_of_the_log_gets_its_size() -> None:
    disk = SimDisk()
    disk.make_directory(TIMER_LOG)
    disk.truncate(f"{TIMER_LOG}/{0:020}", 0)
    log = TimerLog(disk, FILE_BYTES)
    log.append(unit(1))
    log.write()
    assert disk.size(f"{TIMER_LOG}/{0:020}") == FILE_BYTES


def test_slot_follows_from_the_record_whenever_it_is_chosen() -> None:
    out_at_ms, window_ms = NOW_MS + 10_000_000, 1_000_000
    slots = {choose_slot(out_at_ms, NOW_MS, NOW_MS + later, window_ms) for later in (0, 1, 900_000)}
    assert slots == {SlotChoice((NOW_MS + window_ms) // 1000, True, NOW_MS + window_ms)}


def test_files_of_a_longer_log_are_rebuilt() -> None:
    disk = SimDisk()
    files = opened(disk)
    files.is_changed = True
    plan = files.plan_flush(NOW_MS, 600, 500)
    assert plan is not None
    files.run_flush(plan)
    again = TimerFiles(disk, FILE_BYTES)
    assert again.check.scan_from == 500  # what follows may be another log
    assert again.rebuild_reason(0, 500, was_kourou=True) is None
    assert "of a log up to 500" in (again.rebuild_reason(0, 499, was_kourou=True) or "")


def test_slots_are_exact_again_when_those_of_another_window_are_done() -> None:
    files = opened(SimDisk())
    files.note_window(5_000)
    assert files.exact_from_ms == 0
    second = NOW_MS // 1000
    files.add(SlotChoice(second + 60, is_roll=False), unit(1, second + 60))
    files.note_window(6_000)
    assert files.exact_from_ms == (second + 61) * 1000
    files.is_changed = False
    files.skip_to((second + 61) * 1000)
    assert files.is_changed  # slaves can follow from now on


@pytest.mark.parametrize(("position", "is_kept"), [(500, True), (499, False)])
def test_a_cut_keeps_the_files_if_they_depend_on_what_stays(position: int, is_kept: bool) -> None:
    disk = SimDisk()
    files = opened(disk)
    second = NOW_MS // 1000 + 60
    files.add(SlotChoice(second, is_roll=False), unit(1, second))
    files.log.write()
    plan = files.plan_flush(NOW_MS, 500, 500)
    assert plan is not None
    files.run_flush(plan)
    files.flush_succeeded(plan)
    files.add(SlotChoice(second, is_roll=False), unit(2, second))
    files.log.write()
    unfinished = files.plan_flush(NOW_MS, 700, 700)
    assert unfinished is not None
    for at, page in unfinished.pages:  # the wheel is written, and the check file is not
        disk.write(TIMER_WHEEL, at, [page])

    cut_timer_files(disk, position)

    assert disk.exists(TIMER_CHECK) == is_kept
    if is_kept:
        assert chains(opened(disk, was_clean=True)) == {second: [1]}
    else:
        assert disk.list(TIMER_LOG) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40))
def test_first_position_of_a_key_is_removed_first(steps: list[tuple[bool, int]]) -> None:
    positions, model = KeyedPositions(), defaultdict[bytes, list[int]](list)
    for number, (is_added, name) in enumerate(steps):
        key = b"%d" % name
        if is_added:
            positions.add(key, number)
            model[key].append(number)
        else:
            positions.remove_first(key)
            model[key] = model[key][1:]
    assert positions.sorted() == sorted(one for some in model.values() for one in some)
