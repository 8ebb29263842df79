"""Tests of parallel reads of a log: parts yield each record once, damage too, and nothing later."""

from __future__ import annotations

import pytest

from kourou.disk import Disk
from kourou.errors import StoreLockedError
from kourou.protocol.record.encode import encode_record
from kourou.protocol.record.layout import HEAD_BYTES
from kourou.store.log.log_walk import LogPiece, PieceKind, walk_log, with_damage
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import find_sizes, log_files
from kourou.store.tools.log_parts import LogPlan, deleted_topics, plan_log, walk_part
from kourou.testing.disk import SimDisk
from tests.store import golden
from tests.store.rig import SEGMENT_BYTES, Rig, delete_topic, draft

FIRST = "commitlog/00000000000000000000"
SECOND = f"commitlog/{SEGMENT_BYTES:020d}"
WHOLE = 1 << 40
STORE_TIME_OFFSET = 56
"""Of the store time in a record with an IPv4 host."""


def pieces(disk: Disk, plan: LogPlan) -> list[LogPiece]:
    """Return all pieces without blanks, in the order of the parts."""
    found = [piece for part in plan.parts for piece in walk_part(disk, plan, part)]
    return [piece._replace(buffer=b"", header=None) for piece in found if piece.kind != "blank"]


def records(disk: Disk, plan: LogPlan) -> list[int]:
    return [one.position for one in pieces(disk, plan) if one.kind is PieceKind.RECORD]


def damage(disk: Disk, plan: LogPlan) -> list[tuple[int, int, str]]:
    found = pieces(disk, plan)
    return [(one.position, one.size, one.problem) for one in found if one.kind is PieceKind.DAMAGE]


def filled(count: int = 40) -> Rig:
    """Return an open store with some files of messages, one a second."""
    rig = Rig()
    for number in range(count):
        rig.put(b"x" * (number * 7 % 300), queue_id=number % 2)
        rig.tick()
    return rig


@pytest.mark.parametrize("part_bytes", [1, 1000, 5000, WHOLE])
@pytest.mark.parametrize("name", golden.NAMES)
def test_parts_of_a_java_store_yield_each_piece_of_its_log_once(name: str, part_bytes: int) -> None:
    disk = golden.load(name).disk
    files, segment_bytes = log_files(disk, COMMITLOG), find_sizes(disk).segment_bytes
    whole = [
        piece._replace(buffer=b"", header=None)
        for piece in with_damage(walk_log(disk, files, segment_bytes))
        if piece.kind in (PieceKind.RECORD, PieceKind.DAMAGE)
    ]
    plan = plan_log(disk, part_bytes=part_bytes)

    assert pieces(disk, plan) == whole
    assert (len(plan.parts) > len(files)) == (part_bytes < segment_bytes)


def test_a_record_inside_of_a_body_is_no_part() -> None:
    rig = filled(3)
    position = rig.store.reader.written_position
    inside = position + HEAD_BYTES
    forged = encode_record(draft(b"forged"), 0, inside, 5)
    rig.put(forged)
    after = rig.put(b"behind it").physical_offset
    rig.store.close(rig.now_ms)
    plan = plan_log(rig.disk, part_bytes=1)

    assert [part.begin for part in plan.parts][-2:] == [position, after]
    assert inside not in records(rig.disk, plan)


def test_a_store_in_use_is_read_up_to_its_durable_end() -> None:
    rig = filled()
    durable = records(rig.disk, plan_log(rig.disk, part_bytes=WHOLE))
    end = rig.store.reader.written_position
    rig.append(b"written, not synced")
    rig.store.writer.write()
    rig.disk.write(f"{COMMITLOG}/{end - end % SEGMENT_BYTES:020d}", end % SEGMENT_BYTES + 60, [b""])
    plan = plan_log(rig.disk, part_bytes=WHOLE)

    assert plan.durable_end == end
    assert pieces(rig.disk, plan)[-1].kind is PieceKind.RECORD
    assert records(rig.disk, plan) == durable


def test_damage_below_the_durable_end_of_a_store_in_use_is_reported() -> None:
    rig = filled(6)
    position = records(rig.disk, plan_log(rig.disk, part_bytes=WHOLE))[-1]
    end = rig.store.reader.written_position
    rig.append(b"written, not synced")
    rig.store.writer.write()
    rig.disk.write(FIRST, position + 30, [b"???"])
    plan = plan_log(rig.disk, part_bytes=WHOLE)

    [(begin, size, _)] = damage(rig.disk, plan)
    assert (begin, begin + size) == (position, end)


def test_a_store_that_is_not_in_use_is_read_to_its_end() -> None:
    rig = filled(5)
    rig.append(b"written, not synced")
    rig.store.writer.write()
    rig.store.abandon()
    plan = plan_log(rig.disk, part_bytes=WHOLE)

    assert plan.durable_end is None
    assert len(records(rig.disk, plan)) == 6


def test_a_java_store_in_use_without_a_durable_position_is_refused() -> None:
    disk = golden.load("killed").disk
    disk.truncate("checkpoint", 0)
    disk.write("abort", 0, [b"4711"])
    disk.lock("lock")

    with pytest.raises(StoreLockedError, match="which part is durable: stop that broker"):
        plan_log(disk, part_bytes=WHOLE)


def test_a_missing_file_is_reported_once() -> None:
    rig = filled()
    whole = records(rig.disk, plan_log(rig.disk, part_bytes=WHOLE))
    rig.store.abandon()
    rig.disk.unlink(SECOND)
    plan = plan_log(rig.disk, part_bytes=500)

    assert damage(rig.disk, plan) == [(SEGMENT_BYTES, SEGMENT_BYTES, "the file is missing")]
    assert records(rig.disk, plan) == [
        one for one in whole if not SEGMENT_BYTES <= one < 2 * SEGMENT_BYTES
    ]


def test_a_file_that_expires_after_the_planning_is_reported() -> None:
    rig = filled()
    plan = plan_log(rig.disk, part_bytes=WHOLE)
    rig.disk.unlink(FIRST)

    [(position, size, problem)] = damage(rig.disk, plan)
    assert (position, size) == (0, SEGMENT_BYTES)
    assert "removed after the read was planned" in problem


def test_zeros_are_damage_only_if_records_follow() -> None:
    rig = filled()
    rig.store.abandon()
    last = records(rig.disk, plan_log(rig.disk, part_bytes=WHOLE))
    in_first = [one for one in last if one < SEGMENT_BYTES]
    rig.disk.write(FIRST, in_first[-2], [bytes(SEGMENT_BYTES - in_first[-2])])
    plan = plan_log(rig.disk, part_bytes=WHOLE)

    assert damage(rig.disk, plan) == [
        (in_first[-2], SEGMENT_BYTES - in_first[-2], "zeros, and records follow")
    ]


def test_files_without_records_of_the_wanted_time_are_left_out() -> None:
    rig = Rig()
    for _ in range(60):
        rig.now_ms += 3_600_000
        rig.put(b"x" * 200)
    rig.store.abandon()
    hour = 3_600_000
    begin_ms, end_ms = 1_000_000 + 20 * hour, 1_000_000 + 40 * hour
    whole = plan_log(rig.disk, part_bytes=WHOLE)
    plan = plan_log(rig.disk, part_bytes=WHOLE, begin_ms=begin_ms, end_ms=end_ms)

    found = [
        piece.header.store_at_ms
        for part in plan.parts
        for piece in walk_part(rig.disk, plan, part)
        if piece.header is not None
    ]
    assert {1_000_000 + number * hour for number in range(20, 41)} <= set(found)
    assert 0 < len(plan.parts) < len(whole.parts) - 1


def test_a_damaged_time_leaves_no_file_out() -> None:
    rig = filled(60)
    rig.store.abandon()
    whole = plan_log(rig.disk, part_bytes=WHOLE).parts
    rig.disk.write(SECOND, STORE_TIME_OFFSET, [b"\x80"])  # far in the past

    assert plan_log(rig.disk, part_bytes=WHOLE).parts == whole
    assert len(whole) > 2


def test_records_of_a_deleted_topic_are_told_from_those_of_its_successor() -> None:
    rig = filled(4)
    delete_topic(rig.store, "T")
    end = rig.store.reader.written_position
    rig.put(b"again")
    deleted = deleted_topics(rig.disk)

    assert deleted.end_of("T") == end
    assert deleted.end_of("U") == 0


def test_a_topic_without_config_and_queues_is_deleted_in_a_java_store() -> None:
    disk = golden.load("clean").disk
    deleted = deleted_topics(disk)

    assert deleted.end_of(disk.list("consumequeue")[0]) == 0
    assert deleted.end_of("no-such-topic") is None


def test_unreadable_config_hides_no_topic() -> None:
    disk = SimDisk()
    disk.make_directory("config")
    disk.write("config/topics.json", 0, [b"{"])

    assert deleted_topics(disk).end_of("T") == 0
