"""Damage below the durable end is skipped and logged; above it, damage ends the log."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kourou.errors import CorruptRecordError
from kourou.store.formats import Checkpoint
from kourou.store.log.damage import DamagedSpan
from kourou.store.message_store import AppendedRecord
from kourou.store.state.checkpoint import load_checkpoint, save_checkpoint
from tests.store.rig import CONFIG, SEGMENT_BYTES, Rig

FEW_ROUNDS = replace(CONFIG, queue_sync_interval_ms=1_000_000, consumequeue_file_bytes=20 * 64)
"""The checkpoint's record stays at the log's start, so recovery scans the whole log."""


def synced_rig(count: int = 20, queues: int = 2) -> tuple[Rig, list[AppendedRecord]]:
    """Return a store whose messages are known to be durable, and the appended records."""
    rig = Rig(config=FEW_ROUNDS)
    appended = [
        rig.append(b"%03d" % number + b"x" * 400, queue_id=number % queues)
        for number in range(count)
    ]
    rig.commit()
    rig.tick()
    assert load_checkpoint(rig.disk).synced_position == appended[-1].end
    return rig, appended


def write_log(rig: Rig, position: int, data: bytes) -> None:
    name = f"commitlog/{position - position % SEGMENT_BYTES:020d}"
    rig.disk.write(name, position % SEGMENT_BYTES, [data])


def kill_and_damage(rig: Rig, position: int, data: bytes) -> None:
    """Kill the broker, overwrite bytes of the log, and reopen the store."""
    rig.store.abandon()
    write_log(rig, position, data)
    rig.open()


def spans(rig: Rig) -> list[tuple[int, int]]:
    return [(span.position, span.size) for span in rig.store.recovery.damaged]


def lost_queue_files(rig: Rig) -> None:
    for queue in rig.disk.list("consumequeue/T"):
        for name in rig.disk.list(f"consumequeue/T/{queue}"):
            rig.disk.unlink(f"consumequeue/T/{queue}/{name}")


@pytest.mark.parametrize(
    ("at", "data"),
    [(0, bytes(4)), (0, b"\x7f"), (2, b"\xff\xff"), (4, b"x"), (30, b"\x09"), (100, b"y")],
    ids=["no size", "huge size", "another size", "magic", "own position", "body"],
)
@pytest.mark.parametrize("are_queues_lost", [False, True])
def test_a_damaged_record_is_skipped_and_logged(
    at: int, data: bytes, are_queues_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rig, appended = synced_rig()
    bad = appended[5]
    if are_queues_lost:
        lost_queue_files(rig)
    kill_and_damage(rig, bad.physical_offset + at, data)

    assert spans(rig) == [(bad.physical_offset, bad.size)]
    assert rig.store.recovery.truncated_bytes == 0
    assert rig.store.reader.written_position == appended[-1].end
    assert "commitlog.damage_found file=commitlog/00000000000000000000" in caplog.text
    assert f"byte={bad.physical_offset}" in caplog.text
    for queue_id in (0, 1):
        assert rig.store.reader.max_offset("T", queue_id) == 10
    entry = rig.store.reader.entry("T", bad.queue_id, bad.queue_offset)
    assert entry is not None
    assert (entry.physical_offset, entry.size) == (bad.physical_offset, bad.size)
    assert rig.append(queue_id=1).queue_offset == 10


def test_damage_over_many_records_keeps_an_entry_for_each_record() -> None:
    rig, appended = synced_rig()
    first, last = appended[2], appended[5]
    lost_queue_files(rig)
    kill_and_damage(rig, first.physical_offset, b"\xa5" * (last.end - first.physical_offset))

    assert spans(rig) == [(first.physical_offset, last.end - first.physical_offset)]
    for queue_id in (0, 1):
        for queue_offset in (1, 2):
            entry = rig.store.reader.entry("T", queue_id, queue_offset)
            assert entry == (first.physical_offset, last.end - first.physical_offset, 0)
    assert rig.store.reader.max_offset("T", 0) == rig.store.reader.max_offset("T", 1) == 10


def test_two_damaged_records_are_two_spans_and_entries_point_at_them() -> None:
    rig, appended = synced_rig(queues=1)
    rig.store.abandon()
    lost_queue_files(rig)
    for number in (3, 6):
        write_log(rig, appended[number].physical_offset + 99, b"??")
    rig.open()

    assert spans(rig) == [(appended[n].physical_offset, appended[n].size) for n in (3, 6)]
    for number in (3, 6):
        entry = rig.store.reader.entry("T", 0, number)
        assert entry is not None
        assert entry.physical_offset == appended[number].physical_offset


def test_scan_continues_in_next_segment_after_damage_to_segment_end() -> None:
    rig, appended = synced_rig()
    next_segment = next(a for a in appended if a.physical_offset >= SEGMENT_BYTES)
    bad = appended[appended.index(next_segment) - 1]
    kill_and_damage(rig, bad.physical_offset, b"\x11" * (SEGMENT_BYTES - bad.physical_offset))

    assert spans(rig) == [(bad.physical_offset, SEGMENT_BYTES - bad.physical_offset)]
    assert rig.store.reader.max_offset("T", 0) == rig.store.reader.max_offset("T", 1) == 10


def test_a_wholly_damaged_segment_is_one_span() -> None:
    rig, appended = synced_rig(30)
    kill_and_damage(rig, SEGMENT_BYTES, b"\x11" * SEGMENT_BYTES)

    assert spans(rig) == [(SEGMENT_BYTES, SEGMENT_BYTES)]
    assert rig.store.reader.written_position == appended[-1].end
    assert rig.store.reader.max_offset("T", 0) == 15


def test_a_damaged_blank_loses_nothing() -> None:
    rig, appended = synced_rig()
    in_first = [a for a in appended if a.end <= SEGMENT_BYTES]
    kill_and_damage(rig, in_first[-1].end, b"\0\0")

    assert [span.position for span in rig.store.recovery.damaged] in ([], [in_first[-1].end])
    assert len(rig.bodies()) == len(rig.bodies(queue_id=1)) == 10


@pytest.mark.parametrize("is_clean", [False, True])
def test_damaged_last_record_keeps_its_offset(is_clean: bool) -> None:
    rig, appended = synced_rig()
    last = appended[-1]
    rig.store.close(0) if is_clean else rig.store.abandon()
    write_log(rig, last.physical_offset + 150, b"damage")
    rig.open()

    assert rig.store.recovery.was_clean is is_clean
    assert spans(rig) == [(last.physical_offset, last.size)]
    assert rig.store.reader.written_position == last.end
    assert rig.store.reader.max_offset("T", last.queue_id) == last.queue_offset + 1
    assert rig.append(queue_id=last.queue_id).queue_offset == last.queue_offset + 1


def test_damaged_last_record_without_queue_entry_keeps_its_offset() -> None:
    rig, appended = synced_rig()
    last = appended[-1]
    lost_queue_files(rig)
    kill_and_damage(rig, last.physical_offset + 150, b"damage")

    assert rig.append(queue_id=last.queue_id).queue_offset == last.queue_offset + 1


@pytest.mark.parametrize("are_queues_lost", [False, True])
@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("size", [b"\0\0\0\0", b"\0\0\0\x10", b"\x7f\0\0\0", b"\0\0\x05\0"])
def test_last_record_with_damaged_size_keeps_its_offset(
    size: bytes, is_clean: bool, are_queues_lost: bool
) -> None:
    rig, appended = synced_rig()
    last = appended[-1]
    rig.store.close(0) if is_clean else rig.store.abandon()
    if are_queues_lost:
        lost_queue_files(rig)
    write_log(rig, last.physical_offset, size)
    rig.open()

    assert spans(rig) == [(last.physical_offset, last.size)]
    assert rig.store.reader.written_position == last.end
    assert rig.append(queue_id=last.queue_id).queue_offset == last.queue_offset + 1


@pytest.mark.parametrize("kept", [0, 1, 100])
def test_durable_last_record_that_ends_in_zeros_is_refused(kept: int) -> None:
    rig, appended = synced_rig()
    last = appended[-1]
    rig.store.abandon()
    write_log(rig, last.physical_offset, b"\0\0\x05\0")
    write_log(rig, last.physical_offset + 4 + kept, bytes(last.size - 4 - kept))
    with pytest.raises(CorruptRecordError):
        rig.open()


def test_damage_up_to_an_uncertain_durable_end_is_refused() -> None:
    rig, appended = synced_rig()
    rig.store.abandon()
    named = appended[-1]
    lost_queue_files(rig)
    write_checkpoint(rig, Checkpoint(queues_offset=named.physical_offset))
    write_log(
        rig, appended[-3].physical_offset, b"\xa5" * (named.end - appended[-3].physical_offset)
    )
    with pytest.raises(CorruptRecordError):
        rig.open()


def write_checkpoint(rig: Rig, checkpoint: Checkpoint) -> None:
    save_checkpoint(rig.disk, checkpoint)
    rig.disk.sync("checkpoint")


def test_damage_above_the_durable_end_ends_the_log() -> None:
    rig, appended = synced_rig()
    bad = rig.append(b"z" * 100)
    rig.append(b"behind it")
    rig.store.writer.write()
    kill_and_damage(rig, bad.physical_offset + 100, b"!!")

    assert spans(rig) == []
    assert rig.store.reader.written_position == appended[-1].end
    assert rig.store.recovery.truncated_bytes > 0
    assert rig.problems() == []


def test_damage_that_covers_the_durable_end_is_refused() -> None:
    rig, appended = synced_rig()
    rig.append(b"not durable, and whole")
    rig.store.writer.write()
    bad = appended[-2]
    rig.store.abandon()
    write_log(rig, bad.physical_offset, bytes(appended[-1].end - bad.physical_offset))
    with pytest.raises(CorruptRecordError) as caught:
        rig.open()

    assert caught.value.offset == bad.physical_offset % SEGMENT_BYTES
    write_log(rig, bad.physical_offset, b"\x01")
    with pytest.raises(CorruptRecordError):
        rig.open()
    rig.disk.unlink("checkpoint")
    rig.open()


def test_record_of_another_position_inside_damage_is_not_accepted() -> None:
    rig, appended = synced_rig()
    first, bad = appended[0], appended[4]
    copy = rig.disk.read("commitlog/00000000000000000000", 0, first.size)
    kill_and_damage(rig, bad.physical_offset, b"\x07" * 20 + copy[:300])

    assert spans(rig) == [(bad.physical_offset, bad.size)]


def test_body_full_of_magics_does_not_stop_the_search() -> None:
    rig = Rig(config=replace(FEW_ROUNDS, commitlog_segment_bytes=1 << 20))
    bad = rig.append(b"\xda\xa3\x20\xa7" * 100_000)
    good = rig.append()
    rig.commit()
    rig.tick()
    rig.store.abandon()
    rig.disk.write("commitlog/00000000000000000000", 0, [b"\x7f"])
    before = rig.disk.operations
    rig.open()

    assert spans(rig) == [(0, bad.size)]
    assert rig.store.reader.written_position == good.end
    assert rig.disk.operations - before < 300


def test_a_damaged_span_has_the_reason() -> None:
    rig, appended = synced_rig()
    bad = appended[3]
    kill_and_damage(rig, bad.physical_offset + 30, b"\x01")

    (span,) = rig.store.recovery.damaged
    assert isinstance(span, DamagedSpan)
    assert "checksum" in span.reason or "claims" in span.reason


@pytest.mark.parametrize("seed", range(150))
def test_flipped_bit_in_killed_stores_log_moves_no_other_message(seed: int) -> None:
    dice = random.Random(seed)
    rig, appended = synced_rig()
    bit = dice.randrange(appended[-1].end * 8)
    rig.store.abandon()
    if dice.random() < 0.3:
        lost_queue_files(rig)
    name = f"commitlog/{bit // 8 - bit // 8 % SEGMENT_BYTES:020d}"
    at = bit // 8 % SEGMENT_BYTES
    old = rig.disk.read(name, at, 1)[0]
    rig.disk.write(name, at, [bytes((old ^ 1 << bit % 8,))])
    rig.open()

    hit = [a for a in appended if a.physical_offset <= bit // 8 < a.end]
    for message in appended:
        assert rig.store.reader.max_offset("T", message.queue_id) == 10
        if message not in hit:
            entry = rig.store.reader.entry("T", message.queue_id, message.queue_offset)
            assert entry is not None
            assert (entry.physical_offset, entry.size) == (message.physical_offset, message.size)
