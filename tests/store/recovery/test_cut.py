"""An interrupted truncation is finished before anything is appended."""

from __future__ import annotations

import pytest

from kourou.errors import CorruptRecordError
from kourou.store.paths import ABORT
from kourou.store.recovery.cut import CUT_MARK, Cut, mark_cut, read_cut
from kourou.store.state.ack_mark import AckMark, read_ack_mark, save_ack_mark
from kourou.store.tools.check import check_store
from kourou.store.tools.closed_store import record_change
from kourou.store.tools.truncate import plan_truncation, truncate_log, truncate_replica
from kourou.testing.disk import SimDisk
from tests.store.rig import Rig

CUT_AT = 8
RECORDS = 24


class Killed(Exception):  # noqa: N818 - not an error of the code
    """The process ends."""


def stored() -> tuple[Rig, list[int]]:
    """Return a closed store of several segments, and its records' positions."""
    rig = Rig()
    positions = [rig.put(b"%d" % n + b"x" * 400).physical_offset for n in range(RECORDS)]
    rig.store.close(rig.now_ms)
    return rig, positions


def numbers(rig: Rig) -> list[int]:
    return [int(body.rstrip(b"x")) for body in rig.bodies("T")]


def problems(disk: SimDisk) -> list[str]:
    return [f"{one.file} {one.problem}" for one in check_store(disk).findings]


@pytest.mark.parametrize("ends", ["kill", "power"])
def test_a_marked_cut_is_finished_after_a_crash_at_any_step(ends: str) -> None:
    for operations in range(ends == "power", 10_000, 2):
        rig, positions = stored()
        left = operations

        def count(operation: str, name: str) -> None:
            nonlocal left
            left -= operation not in ("exists", "read", "size", "list")
            if left < 0:
                raise Killed

        rig.disk.on_operation = count
        try:
            truncate_replica(rig.disk, positions[CUT_AT], rig.now_ms, pid=1)
        except Killed:
            rig.disk.on_operation = None
            rig.disk.release_locks()
            if ends == "power":
                rig.disk.crash()
        else:
            break
        is_marked = read_cut(rig.disk) is not None
        rig.open()
        if is_marked:
            assert rig.store.reader.written_position == positions[CUT_AT], operations
        assert numbers(rig) in (list(range(CUT_AT)), list(range(RECORDS))), operations
        assert read_cut(rig.disk) is None
        assert rig.problems() == [], operations
    else:
        pytest.fail("the truncation never ended")
    assert operations > 20


def test_a_stale_end_that_is_valid_again_is_cut_before_the_first_append() -> None:
    rig, positions = stored()
    names = [f"commitlog/{name}" for name in rig.disk.list("commitlog")]
    before = {name: rig.disk.read(name, 0, rig.disk.size(name)) for name in names}

    def end_before_the_sync(operation: str, name: str) -> None:
        if operation == "sync" and name.startswith("commitlog/"):
            raise Killed

    rig.disk.on_operation = end_before_the_sync
    with pytest.raises(Killed):
        truncate_replica(rig.disk, positions[CUT_AT], rig.now_ms, pid=1)
    rig.disk.on_operation = None
    rig.disk.release_locks()
    for name, data in before.items():  # the device never received the changes
        rig.disk.write(name, 0, [data])

    rig.open()
    assert rig.store.reader.written_position == positions[CUT_AT]
    assert rig.put(b"99").physical_offset == positions[CUT_AT]
    rig.crash()

    assert numbers(rig) == [*range(CUT_AT), 99]
    assert rig.problems() == []


def test_a_cut_is_forgotten_if_java_has_used_the_store_since() -> None:
    rig, positions = stored()
    record_change(rig.disk, 1)
    mark_cut(rig.disk, Cut(positions[CUT_AT]))
    rig.disk.truncate(ABORT, 0)
    rig.disk.write(ABORT, 0, [b"4711"])

    rig.open()

    assert (len(numbers(rig)), read_cut(rig.disk)) == (RECORDS, None)


def test_an_unfinished_cut_and_a_damaged_mark_are_findings() -> None:
    rig, positions = stored()
    record_change(rig.disk, 1)
    mark_cut(rig.disk, Cut(positions[CUT_AT]))
    assert any("a truncation at byte" in one for one in problems(rig.disk))

    rig.disk.write(CUT_MARK, 13, [b"9"])
    assert any("the mark of a truncation is bad" in one for one in problems(rig.disk))
    with pytest.raises(CorruptRecordError, match="kourou store truncate"):
        rig.open()


def test_a_truncation_by_an_operator_leaves_a_replica_behind_its_acks() -> None:
    rig, positions = stored()
    save_ack_mark(rig.disk, AckMark(position=positions[1]))  # less than the cut leaves
    plan = plan_truncation(rig.disk, positions[CUT_AT])
    assert plan is not None

    truncate_log(rig.disk, plan, rig.now_ms, pid=1)

    found = read_ack_mark(rig.disk)
    assert found is not None
    assert f"truncated at {positions[CUT_AT]}" in found.loss
    assert any("remove config/kourou-acks.json" in one for one in problems(rig.disk))


def test_a_truncation_to_the_masters_log_loses_nothing_acknowledged() -> None:
    rig, positions = stored()
    save_ack_mark(rig.disk, AckMark(position=positions[-1]))

    truncate_replica(rig.disk, positions[CUT_AT], rig.now_ms, pid=1)

    assert problems(rig.disk) == []
    assert read_ack_mark(rig.disk) == AckMark(position=positions[CUT_AT])
