"""The checkpoint never exceeds synced data; queue files are synced a few at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kourou.store.formats import (
    COPY_AT,
    COPY_BYTES,
    Checkpoint,
    decode_checkpoint,
    decode_checkpoint_copy,
    encode_checkpoint,
    encode_checkpoint_copy,
)
from kourou.store.queues.queue_tails import NEW_FILES_PER_FLUSH
from kourou.store.state.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from kourou.store.sync_plan import SyncPlan
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, Rig


def plan_of(rig: Rig) -> SyncPlan | None:
    """Run the next syncs of the log and of queue files; return the plan for the queue files."""
    rig.store.writer.write()
    plan = None
    for plan in (rig.store.writer.sync_plan(), rig.store.writer.queue_sync_plan()):
        if plan is not None:
            rig.store.writer.run_sync(plan)
            rig.store.writer.synced(plan)
    return plan


def test_the_layout_is_javas() -> None:
    checkpoint = Checkpoint(1, 2, 3, 4, 5, 6)
    data = encode_checkpoint(checkpoint._replace(synced_position=7))

    assert data == b"".join(number.to_bytes(8, "big") for number in (1, 2, 3, 4, 5, 6))
    assert decode_checkpoint(data + bytes(4048)) == checkpoint
    assert decode_checkpoint(b"") == Checkpoint()


def test_the_copy_decodes_to_the_written_values_or_none() -> None:
    checkpoint = Checkpoint(1, 2, 3, 4, 5, 6, 7, 8, 9)
    data = encode_checkpoint_copy(checkpoint)

    assert len(data) == COPY_BYTES
    assert decode_checkpoint_copy(data + b"more") == checkpoint
    assert decode_checkpoint_copy(bytes(COPY_BYTES)) is None
    assert decode_checkpoint_copy(data[:-1]) is None
    for bit in range(COPY_BYTES * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_checkpoint_copy(bytes(flipped)) is None


SAVED = Checkpoint(1, 2, 3, 4, 5, 6, 7, 8, 9)


@pytest.mark.parametrize(
    ("abort", "damage_at", "expected"),
    [
        (b"1 kourou", None, SAVED),
        (b"1 kourou", 40, SAVED),  # a bit of Java's fields: the copy is valid
        (b"1 kourou", COPY_AT + 20, Checkpoint()),
        (b"1", None, SAVED.java_values),
        (b"1", COPY_AT + 20, SAVED.java_values),
        (None, None, SAVED),
    ],
)
def test_the_last_broker_determines_the_valid_numbers(
    abort: bytes | None, damage_at: int | None, expected: Checkpoint
) -> None:
    disk = SimDisk()
    save_checkpoint(disk, SAVED)
    if abort is not None:
        disk.write("abort", 0, [abort])
    if damage_at is not None:
        disk.write("checkpoint", damage_at, [b"\x55"])

    assert load_checkpoint(disk) == expected


def test_a_checkpoint_without_a_copy_uses_javas_fields() -> None:
    disk = SimDisk()
    disk.write("checkpoint", 0, [encode_checkpoint(SAVED), bytes(4048)])
    disk.write("abort", 0, [b"1 kourou"])

    assert load_checkpoint(disk) == SAVED.java_values


def test_opening_a_store_after_java_renews_the_copy() -> None:
    rig = Rig()
    last = rig.put()
    rig.store.close(0)
    numbers = read_checkpoint(rig.disk).java_values._replace(log_at_ms=77)
    rig.disk.write("checkpoint", 0, [encode_checkpoint(numbers)])
    rig.disk.write("abort.bak", 0, [b"1"])
    rig.open()

    copy = read_checkpoint(rig.disk).copy
    assert copy is not None
    assert (copy.log_at_ms, copy.queues_offset) == (77, last.physical_offset)
    assert rig.problems() == []


def test_the_synced_position_is_written_each_second(rig: Rig) -> None:
    rig.put()
    rig.tick()
    end = rig.put().end
    rig.append()
    rig.store.writer.write()
    rig.tick()

    assert load_checkpoint(rig.disk).synced_position == end


def test_a_store_without_a_checkpoint_loads_zeros() -> None:
    assert load_checkpoint(SimDisk()) == Checkpoint()


def test_a_clean_stop_leaves_the_last_record_and_its_time(rig: Rig) -> None:
    rig.put()
    rig.now_ms += 5
    last = rig.put()
    rig.store.close(rig.now_ms)

    checkpoint = load_checkpoint(rig.disk)
    assert checkpoint == Checkpoint(
        log_at_ms=rig.now_ms,
        queues_at_ms=rig.now_ms,
        index_at_ms=rig.now_ms,
        queues_offset=last.physical_offset,
        synced_position=last.end,
        queue_files=1,
    )
    assert read_checkpoint(rig.disk).java_values == checkpoint.java_values
    assert rig.disk.size("checkpoint") == 4096
    rig.open()


def test_queue_files_are_synced_a_few_at_a_time_even_without_log_syncs() -> None:
    rig = Rig(config=replace(CONFIG, queue_files_per_sync=2))
    last = [rig.put(queue_id=queue_id) for queue_id in range(5)][-1]
    rig.tick()
    synced: list[str] = []
    for expected in (2, 2, 1):
        rig.append(queue_id=9)
        plan = rig.store.writer.queue_sync_plan()
        assert plan is not None
        assert len(plan.queue_files) == expected
        rig.store.writer.run_sync(plan)
        rig.store.writer.synced(plan)
        synced += plan.queue_files
    assert synced == [f"consumequeue/T/{id_}/00000000000000000000" for id_ in range(5)]
    rig.store.writer.flush(rig.now_ms)

    checkpoint = load_checkpoint(rig.disk)
    assert checkpoint.queues_offset == last.physical_offset
    assert rig.problems() == []


def test_files_of_many_new_queues_are_created_over_several_seconds_and_become_durable() -> None:
    rig = Rig(config=replace(CONFIG, queue_files_per_sync=10_000))
    last_queue = 2 * NEW_FILES_PER_FLUSH
    for queue_id in range(last_queue + 1):
        rig.append(queue_id=queue_id)
    rig.commit()

    for expected in (NEW_FILES_PER_FLUSH, 2 * NEW_FILES_PER_FLUSH, last_queue + 1):
        assert load_checkpoint(rig.disk).queues_offset == 0
        rig.tick()
        assert len(rig.disk.list("consumequeue/T")) == expected
        plan_of(rig)
    rig.tick()

    assert load_checkpoint(rig.disk).queues_offset > 0
    assert rig.crash().reader.max_offset("T", last_queue) == 1
    assert rig.problems() == []


def test_a_round_ends_even_without_new_messages(rig: Rig) -> None:
    rig.put()
    last = rig.put()
    rig.tick()
    plan = plan_of(rig)
    assert plan is not None
    assert plan.files == ()
    assert plan.queue_files == ("consumequeue/T/0/00000000000000000000",)
    assert plan.queue_directories == ("consumequeue/T/0", "consumequeue/T", "consumequeue")
    rig.store.writer.flush(rig.now_ms)

    assert load_checkpoint(rig.disk).queues_offset == last.physical_offset
    plan = plan_of(rig)
    assert plan is not None
    assert plan.queue_files == ("checkpoint",)
    assert plan_of(rig) is None


def test_the_checkpoint_waits_for_the_log() -> None:
    rig = Rig()
    first = rig.put()
    rig.tick()
    plan_of(rig)
    shown = rig.append()
    rig.store.writer.write()
    rig.store.writer.dispatch(rig.store.reader.written_position)  # as in async flush mode
    rig.tick()

    assert load_checkpoint(rig.disk).queues_offset < shown.physical_offset
    plan_of(rig)
    rig.tick()
    assert load_checkpoint(rig.disk).queues_offset == shown.physical_offset > first.physical_offset
    assert rig.problems() == []


def test_a_checkpoint_that_moved_is_synced(rig: Rig) -> None:
    rig.put()
    rig.put()
    rig.tick()
    rig.put()
    rig.tick()
    plan = plan_of(rig)

    assert plan is not None
    assert "checkpoint" in plan.queue_files


def test_rounds_keep_their_interval() -> None:
    rig = Rig(config=replace(CONFIG, queue_sync_interval_ms=60_000))
    rig.put()
    rig.put()
    for _ in range(59):
        rig.tick()
        assert plan_of(rig) is None
    rig.tick()

    plan = plan_of(rig)
    assert plan is not None
    assert plan.queue_files
    assert rig.problems() == []


def test_a_clock_that_is_set_back_delays_no_round() -> None:
    rig = Rig()
    rig.put()
    rig.now_ms -= 73 * 3_600_000
    rig.put()
    rig.tick()

    plan = plan_of(rig)
    assert plan is not None
    assert plan.queue_files


def test_a_log_that_grew_much_begins_a_round_early() -> None:
    rig = Rig(config=replace(CONFIG, queue_sync_interval_ms=60_000))
    rig.put()
    rig.tick()
    assert plan_of(rig) is None
    far = rig.put()._replace(physical_offset=300 << 20)
    queues = rig.store.files.queues
    queues.flush()
    rig.store.files.checkpoint.begin_round(far, rig.now_ms)

    assert rig.store.files.checkpoint.take_files()[0]


def test_an_unchanged_checkpoint_is_not_written_again(rig: Rig) -> None:
    rig.put()
    for _ in range(5):
        rig.tick()
        rig.commit()
    writes: list[str] = []
    rig.disk.on_operation = lambda op, _: writes.append(op) if op == "write" else None
    rig.tick()

    assert writes == []


def test_many_small_messages_begin_a_round_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kourou.store.state.checkpoint.ROUND_ENTRY_BYTES", 3 * 20)
    rig = Rig(config=replace(CONFIG, queue_sync_interval_ms=60_000))
    for _ in range(2):
        rig.put()
        rig.tick()
        assert plan_of(rig) is None
    rig.put()
    rig.tick()

    plan = plan_of(rig)
    assert plan is not None
    assert plan.queue_files
    assert rig.problems() == []
