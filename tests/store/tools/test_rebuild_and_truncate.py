"""Rebuilds and truncations leave a correct store; after a crash in between, it recovers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kourou.errors import StoreLockedError
from kourou.model.epochs import EpochEntry, EpochList
from kourou.store.log.log_walk import LogPiece
from kourou.store.state.epoch_file import read_epochs, replace_epochs
from kourou.store.tools.check import check_store
from kourou.store.tools.export import Selection, export_messages
from kourou.store.tools.rebuild import rebuild
from kourou.store.tools.truncate import plan_truncation, truncate_log, truncate_replica
from kourou.testing.disk import SimDisk
from tests.store import golden
from tests.store.rig import Rig, delete_topic

FIRST = "commitlog/00000000000000000000"


def stored(count: int = 40) -> tuple[Rig, list[int]]:
    """Return a closed store of two topics in several segments, and its records' positions."""
    rig = Rig()
    places = []
    for number in range(count):
        topic = "T" if number % 3 else "U"
        places.append(rig.put(b"%d" % number + b"x" * 300, topic=topic).physical_offset)
    rig.store.close(rig.now_ms)
    return rig, places


def numbers(rig: Rig, topic: str = "T") -> list[int]:
    return [int(body.rstrip(b"x")) for body in rig.bodies(topic)]


def problems(disk: SimDisk) -> list[str]:
    return [f"{f.file} {f.offset} {f.problem}" for f in check_store(disk).findings]


def contents(disk: SimDisk, directory: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        inner = contents(disk, path)
        found |= inner or {path: disk.read(path, 0, disk.size(path))}
    return found


@pytest.mark.parametrize(
    "lose",
    [
        lambda disk: [disk.unlink(name) for name in contents(disk, "consumequeue")],
        lambda disk: disk.write("consumequeue/T/0/00000000000000000000", 0, [b"\x55" * 160]),
        lambda disk: disk.truncate("consumequeue/U/0/00000000000000000000", 7),
        lambda disk: [disk.unlink(name) for name in contents(disk, "index")],
        lambda disk: disk.write("checkpoint", 0, [b"\x7f" * 600]),
        lambda disk: None,
    ],
)
def test_rebuilt_queues_are_identical_byte_for_byte(lose: Callable[[SimDisk], object]) -> None:
    rig, _ = stored()
    before = contents(rig.disk, "consumequeue")
    lose(rig.disk)

    rebuilt = rebuild(rig.disk, rig.now_ms, pid=1)

    assert (rebuilt.queues, rebuilt.records, rebuilt.damaged) == (2, 40, 0)
    assert contents(rig.disk, "consumequeue") == before
    assert problems(rig.disk) == []


def test_a_rebuild_reads_all_of_a_log_of_many_segments() -> None:
    rig = Rig()
    rig.put(b"first", topic="old")
    for _ in range(60):
        rig.put(b"x" * 1500)
    rig.store.close(rig.now_ms)
    assert len(rig.disk.list("commitlog")) > 20

    rebuild(rig.disk, rig.now_ms, pid=1)

    assert problems(rig.disk) == []
    rig.open()
    assert rig.bodies("old") == [b"first"]


def test_a_rebuild_keeps_the_next_offset_of_a_queue_without_records() -> None:
    rig = Rig()
    rig.put(b"gone", topic="old")
    for _ in range(12):
        rig.put(b"x" * 1500)
    rig.store.close(rig.now_ms)
    rig.disk.unlink(FIRST)

    rebuild(rig.disk, rig.now_ms, pid=1)

    rig.open()
    assert rig.put(b"next", topic="old").queue_offset == 1


def test_a_rebuild_does_not_restore_a_deleted_topic() -> None:
    rig, _ = stored()
    rig.open()
    delete_topic(rig.store, "U")
    rig.store.close(rig.now_ms)

    rebuild(rig.disk, rig.now_ms, pid=1)

    rig.open()
    assert (rig.bodies("U"), len(rig.bodies("T"))) == ([], 26)


def test_a_topic_deleted_by_java_stays_deleted() -> None:
    rig, _ = stored()
    for name in contents(rig.disk, "consumequeue/U"):
        rig.disk.unlink(name)
    rig.disk.remove_directory("consumequeue/U/0")
    rig.disk.remove_directory("consumequeue/U")
    rig.disk.write("config/topics.json", 0, [b'{"topicConfigTable":{"T":{"topicName":"T"}}}'])

    assert rebuild(rig.disk, rig.now_ms, pid=1).queues == 1


def test_a_rebuild_reports_damage_and_keeps_all_other_messages() -> None:
    rig, places = stored()
    rig.disk.write(FIRST, places[2] + 150, [b"?"])

    assert rebuild(rig.disk, rig.now_ms, pid=1).damaged == 1
    rig.open()
    assert len(rig.bodies("U")) == 14
    rig.store.close(rig.now_ms)
    assert [line.partition(" ")[0] for line in problems(rig.disk)] == [
        FIRST,
        "consumequeue/T/0/00000000000000000000",
    ]


def test_a_log_is_truncated_at_a_record() -> None:
    rig, places = stored()
    plan = plan_truncation(rig.disk, places[20] + 5)
    assert plan is not None
    assert (plan.position, plan.records, plan.problem) == (places[20], 20, "")
    assert plan.messages == {"T": 13, "U": 7}

    truncate_log(rig.disk, plan, rig.now_ms, pid=1)

    assert problems(rig.disk) == []
    rig.open()
    assert numbers(rig) == [n for n in range(20) if n % 3]
    assert numbers(rig, "U") == [n for n in range(20) if not n % 3]
    assert rig.put(b"new").physical_offset == places[20]
    assert rig.problems() == []


def test_a_log_is_truncated_at_its_first_damage() -> None:
    rig, places = stored()
    rig.disk.write(FIRST, places[5] + 150, [b"?"])
    plan = plan_truncation(rig.disk, None)
    assert plan is not None
    assert plan.position == places[5]
    assert "checksum" in plan.problem
    assert plan.damaged_bytes == places[6] - places[5]

    truncate_log(rig.disk, plan, rig.now_ms, pid=1)

    assert problems(rig.disk) == []
    rig.open()
    assert numbers(rig) == [1, 2, 4]


def test_a_log_that_recovery_refuses_opens_after_a_truncation() -> None:
    rig, places = stored()
    for name in rig.disk.list("commitlog")[1:]:
        rig.disk.unlink(f"commitlog/{name}")
    rig.disk.truncate(FIRST, places[4])
    rig.disk.truncate(FIRST, 4096)
    plan = plan_truncation(rig.disk, places[3])
    assert plan is not None

    truncate_log(rig.disk, plan, rig.now_ms, pid=1)

    assert problems(rig.disk) == []
    rig.open()
    assert numbers(rig) == [1, 2]


def test_an_undamaged_log_has_no_truncation_plan() -> None:
    rig, places = stored()

    assert plan_truncation(rig.disk, None) is None
    assert plan_truncation(rig.disk, places[-1] + 4096) is None


def test_a_log_can_be_truncated_to_zero_records() -> None:
    rig, _ = stored()
    plan = plan_truncation(rig.disk, 0)
    assert plan is not None

    truncate_log(rig.disk, plan, rig.now_ms, pid=1)

    assert problems(rig.disk) == []
    rig.open()
    assert rig.put(b"new").queue_offset == 0


def test_a_store_in_use_is_not_changed() -> None:
    rig, _ = stored()
    plan = plan_truncation(rig.disk, 0)
    rig.open()
    before = contents(rig.disk, "consumequeue")

    with pytest.raises(StoreLockedError):
        rebuild(rig.disk, rig.now_ms, pid=1)
    assert plan is not None
    with pytest.raises(StoreLockedError):
        truncate_log(rig.disk, plan, rig.now_ms, pid=1)
    assert contents(rig.disk, "consumequeue") == before


class _Crash(Exception):  # noqa: N818 - not an error of the code
    """Power is lost."""


def crash_after(disk: SimDisk, operations: int) -> None:
    left = operations

    def count(operation: str, name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Crash

    disk.on_operation = count


@pytest.mark.parametrize("seed", range(3))
def test_the_next_start_recovers_from_a_crash_in_a_rebuild(seed: int) -> None:
    for operations in range(seed, 2000, 37):
        rig, _ = stored(15)
        crash_after(rig.disk, operations)
        try:
            rebuild(rig.disk, rig.now_ms, pid=1)
        except _Crash:
            rig.disk.on_operation = None
            rig.disk.crash()
        else:
            break
        rig.open()
        assert numbers(rig) == [n for n in range(15) if n % 3], operations
        assert rig.problems() == [], operations
    else:
        pytest.fail("the rebuild never ended")


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_in_a_truncation_loses_no_earlier_message(seed: int) -> None:
    for operations in range(seed, 2000, 23):
        rig, places = stored(24)
        plan = plan_truncation(rig.disk, places[8])
        assert plan is not None
        crash_after(rig.disk, operations)
        try:
            truncate_log(rig.disk, plan, rig.now_ms, pid=1)
        except _Crash:
            rig.disk.on_operation = None
            rig.disk.crash()
        else:
            break
        rig.open()
        everything = [n for n in range(24) if n % 3]
        assert numbers(rig)[:5] == everything[:5], operations
        assert numbers(rig) == everything[: len(numbers(rig))], operations
        assert rig.problems() == [], operations
    else:
        pytest.fail("the truncation never ended")


@pytest.mark.parametrize("ends", ["kill", "power"])
@pytest.mark.parametrize("seed", range(2))
def test_epochs_beyond_the_end_remain_until_nothing_of_the_old_end_is_left(
    seed: int, ends: str
) -> None:
    for operations in range(seed, 2000, 7):
        rig, places = stored(24)
        own = EpochList([EpochEntry(1, 0), EpochEntry(2, places[8])])
        replace_epochs(rig.disk, own)
        crash_after(rig.disk, operations)
        try:
            truncate_replica(rig.disk, places[8], rig.now_ms, pid=1)
        except _Crash:
            rig.disk.on_operation = None
            rig.disk.release_locks()
            if ends == "power":
                rig.disk.crash()
        else:
            break
        rig.open()
        end = rig.store.reader.written_position
        left = read_epochs(rig.disk).cut(end)
        assert left.last_epoch == (2 if end > places[8] else 1), operations
        assert numbers(rig)[:5] == [n for n in range(8) if n % 3][:5], operations

        rig.store.close(rig.now_ms)  # the replica truncates again
        truncate_replica(rig.disk, places[8], rig.now_ms, pid=1)
        rig.open()
        assert rig.store.reader.written_position == places[8], operations
        assert list(read_epochs(rig.disk).cut(places[8])) == [EpochEntry(1, 0)]
        rig.put(b"99" + b"x" * 300)
        assert rig.problems() == [], operations
    else:
        pytest.fail("the truncation never ended")
    assert list(read_epochs(rig.disk)) == [EpochEntry(1, 0)]


def test_a_truncation_removes_cut_epochs_from_the_backup_too() -> None:
    rig, places = stored()
    replace_epochs(rig.disk, EpochList([EpochEntry(1, 0), EpochEntry(2, places[30])]))

    truncate_replica(rig.disk, places[30], rig.now_ms, pid=1)
    rig.disk.write("epochFileCheckpoint", 0, [b"?"])

    assert list(read_epochs(rig.disk)) == [EpochEntry(1, 0)]


def test_a_replica_that_is_not_longer_is_not_truncated() -> None:
    rig, places = stored()
    before = contents(rig.disk, "commitlog")

    truncate_replica(rig.disk, places[-1] + 4096, rig.now_ms, pid=1)

    assert contents(rig.disk, "commitlog") == before


@pytest.mark.parametrize("name", golden.NAMES)
def test_a_store_of_java_is_rebuilt(name: str) -> None:
    recorded = golden.load(name)
    before = list(export_messages(recorded.disk, Selection(with_system=True)))

    rebuild(recorded.disk, 1, pid=1)

    assert problems(recorded.disk) == []
    assert list(export_messages(recorded.disk, Selection(with_system=True)))[: len(before)] == [
        row for row in before if not isinstance(row, LogPiece)
    ]
