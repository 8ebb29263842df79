"""MessageStore: order, atomic batches, refusals without side effects, restarts."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from kourou.errors import (
    ClosedError,
    InvalidMessageError,
    StoreConfigError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreReadOnlyError,
)
from kourou.model.sysflag import (
    INNER_BATCH,
    NEED_UNWRAP,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from kourou.protocol.record.decode import decode_message
from kourou.protocol.record.layout import MAGIC_V2
from kourou.protocol.record.read import read_record
from kourou.store.config import StoreConfig
from kourou.store.message_store import GetRequest, MessageStore
from kourou.store.reading.get_plan import GetStatus
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, SEGMENT_BYTES, Rig, delete_topic, draft

NO_SPACE = OSError(errno.ENOSPC, "no space left")
BROKEN = OSError(errno.EIO, "input/output error")


def test_a_message_is_read_back_as_it_was_appended(rig: Rig) -> None:
    appended = rig.put(b"hello")

    record = rig.store.reader.read_record(appended.physical_offset)
    assert record is not None
    message = decode_message(record)
    assert (message.topic, message.queue_id, message.body) == ("T", 0, b"hello")
    assert (message.queue_offset, message.physical_offset) == (0, 0)
    assert message.store_at_ms == rig.now_ms
    assert message.tags == "a"
    assert appended.end == len(record) == rig.store.reader.written_position


def test_offsets_count_up_in_each_queue_alone(rig: Rig) -> None:
    places = [("T", 0), ("T", 1), ("U", 0), ("T", 0), ("T", 0), ("U", 0)]
    offsets = [rig.put(topic=topic, queue_id=id_).queue_offset for topic, id_ in places]

    assert offsets == [0, 0, 0, 1, 2, 1]
    assert rig.store.reader.queues() == {"T": [0, 1], "U": [0]}
    assert rig.store.reader.next_queue_offset("T", 0) == 3
    assert rig.store.reader.next_queue_offset("absent", 0) == 0


def test_first_position_of_a_topic_is_that_of_its_first_message_after_its_deletion(
    rig: Rig,
) -> None:
    reader = rig.store.reader
    rig.put(topic="U")
    rig.put(queue_id=1)
    assert reader.first_position("V") == reader.written_position
    delete_topic(rig.store, "T")
    assert reader.first_position("T") == reader.written_position
    again = rig.put(queue_id=2)
    rig.put(queue_id=1)
    assert reader.first_position("T") == again.physical_offset


def test_message_is_not_visible_before_dispatch(rig: Rig) -> None:
    appended = rig.append()
    assert rig.store.reader.next_queue_offset("T", 0) == 1
    assert rig.store.reader.max_offset("T", 0) == 0
    rig.store.writer.write()
    assert rig.store.reader.read_record(appended.physical_offset) is None
    assert rig.store.reader.queues() == {}

    assert rig.store.writer.dispatch(rig.store.reader.written_position) == [appended]
    assert rig.store.reader.max_offset("T", 0) == 1
    assert rig.store.reader.read_record(appended.physical_offset) is not None


def test_dispatch_shows_records_that_end_at_or_below_the_position(rig: Rig) -> None:
    first, second = rig.append(b"1"), rig.append(b"2")
    rig.store.writer.write()

    assert rig.store.writer.dispatch(second.end - 1) == [first]
    assert rig.store.writer.dispatch(second.end) == [second]


def test_dispatch_never_shows_unwritten_records(rig: Rig) -> None:
    rig.append()

    assert rig.store.writer.dispatch(1 << 40) == []


def test_appends_take_one_write_per_segment(rig: Rig) -> None:
    writes: list[str] = []
    for _ in range(5):
        rig.append(b"x" * 1000)
    rig.disk.on_operation = lambda op, name: writes.append(name) if op == "write" else None
    rig.store.writer.write()
    rig.disk.on_operation = None

    assert writes == [
        "commitlog/00000000000000000000",
        "commitlog/00000000000000004096",
    ]


def test_write_without_appends_touches_no_file(rig: Rig) -> None:
    rig.put()
    before = rig.disk.operations

    assert rig.store.writer.write() == rig.store.reader.written_position
    assert rig.disk.operations == before
    assert rig.store.writer.sync_plan() is None


def test_store_times_never_go_backwards(rig: Rig) -> None:
    assert rig.put().store_at_ms == 1_000_000
    rig.now_ms = 900_000
    assert rig.put().store_at_ms == 1_000_000
    rig.reopen()
    assert rig.put().store_at_ms == 1_000_000
    rig.now_ms = 1_000_001
    assert rig.put().store_at_ms == 1_000_001


def test_a_roll_is_synced_with_both_files_and_the_directory(rig: Rig) -> None:
    rig.put(b"x" * 3000)
    rig.append(b"y" * 3000)
    rig.store.writer.write()

    plan = rig.store.writer.sync_plan()
    assert plan is not None
    assert plan.files == ("commitlog/00000000000000000000", "commitlog/00000000000000004096")
    assert plan.directories == ("commitlog",)
    rig.commit()
    rig.append(b"z")
    rig.store.writer.write()
    plan = rig.store.writer.sync_plan()
    assert plan is not None
    assert plan.files == ("commitlog/00000000000000004096",)
    assert plan.directories == ()
    rig.commit()


def test_appends_work_while_a_sync_runs(rig: Rig) -> None:
    first = rig.append(b"1")
    rig.store.writer.write()
    plan = rig.store.writer.sync_plan()
    assert plan is not None
    second = rig.append(b"2")
    rig.store.writer.write()
    rig.store.writer.run_sync(plan)
    rig.store.writer.synced(plan)

    assert rig.store.reader.synced_position == first.end
    assert rig.store.writer.dispatch(rig.store.reader.synced_position) == [first]
    rig.commit()
    assert rig.store.reader.synced_position == second.end


# Batches


def test_a_batch_is_contiguous_in_one_segment(rig: Rig) -> None:
    rig.put(b"x" * 3000)
    drafts = [draft(b"%d" % number * 300) for number in range(4)]

    appended = rig.store.writer.append_batch(drafts, rig.now_ms)
    rig.commit()

    assert [a.queue_offset for a in appended] == [1, 2, 3, 4]
    assert appended[0].physical_offset == SEGMENT_BYTES
    assert [a.physical_offset for a in appended[1:]] == [a.end for a in appended[:-1]]
    assert len(rig.bodies()) == 5


def test_a_batch_with_one_bad_message_is_refused_whole(rig: Rig) -> None:
    rig.put(b"x" * 3000)
    waiting = rig.append(b"before")
    position = rig.store.writer.appended_position
    bad = draft(b"", topic="x" * 128)
    with pytest.raises(InvalidMessageError, match="topic"):
        rig.store.writer.append_batch([draft(b"y" * 900), draft(), bad], rig.now_ms)

    assert rig.store.writer.appended_position == position == waiting.end
    assert rig.store.reader.next_queue_offset("T", 0) == 2
    rig.put(b"after")
    assert rig.bodies() == [b"x" * 3000, b"before", b"after"]


def test_a_batch_larger_than_a_segment_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidMessageError, match="segment"):
        rig.store.writer.append_batch([draft(b"x" * 1500) for _ in range(3)], rig.now_ms)


def test_a_long_retry_topic_is_stored_and_read_back(rig: Rig) -> None:
    topic = "%RETRY%" + "g" * 248
    stored = rig.put(b"retried", topic=topic)
    rig.kill()

    assert rig.bodies(topic) == [b"retried"]
    record = rig.store.reader.read_record(stored.physical_offset)
    assert record is not None
    assert read_record(record, check_crc=True).magic == MAGIC_V2
    assert decode_message(record).topic == topic


# Refusals


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (draft(b"x" * SEGMENT_BYTES), "segment"),
        (draft(topic="x" * 128), "the topic has 128 bytes; the limit is 127"),
        (draft(topic="%DLQ%" + "x" * 123), "the topic has 128 bytes; the limit is 127"),
        (draft(topic="%RETRY%" + "x" * 249), "the topic has 256 bytes; the limit is 255"),
        (draft(topic="../escape"), "topic"),
        (draft(topic=".."), "topic"),
        (draft(topic=""), "topic"),
        (draft(queue_id=-1), "negative"),
        (draft(queue_id=1 << 31), "number"),
        (draft(sys_flag=INNER_BATCH | NEED_UNWRAP), "batches"),
    ],
)
def test_a_message_that_cannot_be_stored_leaves_nothing(rig: Rig, bad: object, words: str) -> None:
    rig.append(b"before")
    with pytest.raises(InvalidMessageError, match=words):
        rig.store.writer.append(bad, rig.now_ms)  # type: ignore[arg-type]
    rig.put(b"after")

    assert rig.bodies() == [b"before", b"after"]


def test_a_topic_that_is_not_utf8_is_refused(rig: Rig) -> None:
    bad = draft()
    bad.topic = b"\xff"
    with pytest.raises(InvalidMessageError, match="UTF-8"):
        rig.store.writer.append(bad, rig.now_ms)


@pytest.mark.parametrize("operation", ["write", "truncate"])
def test_a_full_disk_refuses_appends_until_there_is_space(rig: Rig, operation: str) -> None:
    rig.put(b"before")
    for number in range(6):
        rig.append(b"%d" % number * 1000)
    rig.disk.fail_after(0, NO_SPACE, (operation,))
    with pytest.raises(StoreFullError) as caught:
        rig.store.writer.write()
    assert caught.value.path == rig.disk.root
    assert rig.store.reader.next_queue_offset("T", 0) == 1

    rig.put(b"after")
    assert rig.bodies() == [b"before", b"after"]


def test_a_failed_write_is_removed_from_the_files(rig: Rig) -> None:
    rig.put(b"before")
    end = rig.store.reader.written_position
    for _ in range(6):
        rig.append(b"x" * 1000)
    rig.disk.fail_after(3, NO_SPACE, ("write",))
    with pytest.raises(StoreFullError):
        rig.store.writer.write()

    assert rig.disk.list("commitlog") == ["00000000000000000000"]
    left = rig.disk.read("commitlog/00000000000000000000", end, SEGMENT_BYTES)
    assert left == bytes(SEGMENT_BYTES - end)


def test_appends_are_refused_below_the_minimum_free_space() -> None:
    rig = Rig(SimDisk(free=49_152), replace(CONFIG, free_bytes_min=30_000))
    rig.put(b"taken")
    rig.disk.free = 29_000
    rig.tick()
    with pytest.raises(StoreFullError) as caught:
        rig.append()
    assert (caught.value.free_bytes, caught.value.needed_bytes) == (rig.disk.free, 30_000)
    with pytest.raises(StoreFullError):
        rig.store.writer.check_writable()
    assert rig.bodies() == [b"taken"]

    rig.disk.free += 40_960
    rig.put(b"again")
    assert rig.bodies() == [b"taken", b"again"]
    assert rig.problems() == []


def test_free_space_is_checked_at_a_flush_and_not_at_each_write(rig: Rig) -> None:
    asked: list[str] = []
    rig.disk.on_operation = lambda op, _: asked.append(op) if op == "free_bytes" else None
    for _ in range(100):
        rig.put()

    assert asked == []
    rig.tick()
    assert asked == ["free_bytes"]


def test_the_default_minimum_free_space_is_two_segments_or_512_mib() -> None:
    gib = 1 << 30
    assert StoreConfig().free_bytes_needed == 512 << 20
    assert StoreConfig(commitlog_segment_bytes=gib).free_bytes_needed == 2 * gib
    assert StoreConfig(free_bytes_min=7).free_bytes_needed == 7


def test_a_failed_write_makes_the_store_read_only_and_reads_still_work(rig: Rig) -> None:
    rig.put(b"before")
    rig.append(b"lost")
    rig.disk.fail_after(0, BROKEN, ("write",))
    with pytest.raises(StoreReadOnlyError):
        rig.store.writer.write()
    with pytest.raises(StoreReadOnlyError, match="input/output error"):
        rig.append()
    with pytest.raises(StoreReadOnlyError):
        rig.store.writer.check_writable()

    assert rig.store.writer.read_only_reason is not None
    assert rig.bodies() == [b"before"]
    rig.reopen()
    assert rig.put(b"again").queue_offset == 1


def test_a_write_that_cannot_be_undone_makes_the_store_read_only(rig: Rig) -> None:
    rig.put(b"before")
    rig.append(b"lost")
    rig.disk.fail_after(0, NO_SPACE, ("write",))
    rig.disk.fail_after(0, BROKEN, ("truncate",))
    with pytest.raises(StoreReadOnlyError, match="undone"):
        rig.store.writer.write()

    rig.reopen()
    assert rig.bodies() == [b"before"]


def test_a_read_only_store_undoes_unwritten_appends(rig: Rig) -> None:
    rig.append(b"waits")
    rig.store.writer.set_read_only("a sync failed")
    with pytest.raises(StoreReadOnlyError, match="a sync failed"):
        rig.store.writer.write()
    assert rig.store.writer.appended_position == 0
    assert rig.store.writer.write() == 0

    rig.reopen()
    assert rig.put(b"again").queue_offset == 0


def test_the_first_read_only_reason_is_kept(rig: Rig) -> None:
    rig.store.writer.set_read_only("first")
    rig.store.writer.set_read_only("second")

    assert rig.store.writer.read_only_reason == "first"


def test_a_sync_that_ends_after_a_failed_one_is_ignored(rig: Rig) -> None:
    rig.append()
    rig.store.writer.write()
    plan = rig.store.writer.sync_plan()
    assert plan is not None
    rig.store.writer.set_read_only("another sync failed")
    rig.store.writer.synced(plan)

    assert rig.store.reader.synced_position == 0


def test_appends_are_refused_while_a_queue_file_does_not_fit_on_the_disk(rig: Rig) -> None:
    rig.put(b"one")
    rig.disk.fail_after(0, NO_SPACE, ("write",))
    rig.tick()
    rig.disk.fail_after(0, NO_SPACE, ("write",))
    with pytest.raises(StoreFullError):
        rig.append()
    rig.tick()
    rig.tick()

    rig.put(b"two")
    assert rig.bodies() == [b"one", b"two"]


def test_a_queue_file_that_cannot_be_written_makes_the_store_read_only(rig: Rig) -> None:
    rig.put(b"one")
    rig.disk.fail_after(0, BROKEN, ("write",))
    rig.tick()
    assert rig.store.writer.read_only_reason is not None
    assert rig.bodies() == [b"one"]

    rig.reopen()
    assert rig.bodies() == [b"one"]


# Transactions


@pytest.mark.parametrize("flag", [TRANSACTION_PREPARED, TRANSACTION_ROLLBACK])
def test_prepared_and_rolled_back_records_are_in_no_queue(rig: Rig, flag: int) -> None:
    rig.put(b"one")
    appended = rig.store.writer.append(draft(b"half", sys_flag=flag), rig.now_ms)
    rig.commit()
    rig.put(b"two")
    rig.kill()

    assert appended.queue_offset == 0
    assert rig.bodies() == [b"one", b"two"]
    assert rig.store.reader.read_record(appended.physical_offset) is not None


def test_a_committed_record_is_in_its_queue(rig: Rig) -> None:
    rig.store.writer.append(draft(b"done", sys_flag=TRANSACTION_COMMIT), rig.now_ms)
    rig.commit()

    assert rig.bodies() == [b"done"]


# Reads


def test_a_guessed_position_in_the_log_is_not_a_record(rig: Rig) -> None:
    rig.put(b"x" * 100)

    for place in (-1, 1, 7, 50, rig.store.reader.written_position, 1 << 50):
        assert rig.store.reader.read_record(place) is None


def test_a_record_inside_a_body_is_not_accepted_as_a_record(rig: Rig) -> None:
    first = rig.put(b"first")
    record = rig.store.reader.read_record(first.physical_offset)
    assert record is not None
    outer = rig.put(record)
    stored = rig.store.reader.read_record(outer.physical_offset)
    assert stored is not None

    inside = outer.physical_offset + read_record(stored, check_crc=True).body_start
    assert rig.store.reader.read_record(inside) is None


def test_store_times_and_searches_of_absent_queues(rig: Rig) -> None:
    rig.put()

    assert rig.store.reader.store_time("T", 0, 0) == rig.now_ms
    assert rig.store.reader.store_time("T", 0, 1) == -1
    assert rig.store.reader.store_time("absent", 0, 0) == -1
    assert rig.store.reader.offset_by_time("absent", 0, 5) == 0
    assert rig.store.reader.entry("absent", 0, 0) is None
    assert rig.store.reader.min_offset("absent", 0) == rig.store.reader.max_offset("absent", 0) == 0
    plan = rig.store.reader.get("absent", 0, GetRequest(0, 32, 1 << 20, None)).plan
    assert plan.status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_offsets_by_time(rig: Rig) -> None:
    for second in (10, 10, 20, 30, 30):
        rig.now_ms = second
        rig.put()
    rig.store.close(rig.now_ms)
    rig = Rig(rig.disk)
    start = rig.store.reader.store_time("T", 0, 0)

    def lower(at_ms: int) -> int:
        return rig.store.reader.offset_by_time("T", 0, start + at_ms)

    def upper(at_ms: int) -> int:
        return rig.store.reader.offset_by_time("T", 0, start + at_ms, upper=True)

    assert [lower(at) for at in (-5, 0, 5, 10, 20, 21)] == [0, 0, 2, 2, 3, 5]
    assert [upper(at) for at in (-5, 0, 5, 10, 20, 21)] == [0, 1, 1, 2, 4, 4]
    rig.store.close(0)


# Topics


def test_a_recreated_topic_starts_at_0_without_its_old_messages(rig: Rig) -> None:
    rig.put(b"old")
    rig.put(b"kept", topic="U")
    rig.append(b"old too")
    delete_topic(rig.store, "T")
    rig.commit()
    assert rig.store.reader.queues() == {"U": [0]}
    assert rig.put(b"new").queue_offset == 0

    for restart in (rig.kill, rig.crash, rig.reopen, rig.kill):
        restart()
        assert rig.bodies() == [b"new"]
        assert rig.bodies("U") == [b"kept"]


def test_a_deleted_topic_stays_deleted_when_all_queues_are_rebuilt(rig: Rig) -> None:
    rig.put(b"old")
    rig.put(b"kept", topic="U")
    rig.tick()
    delete_topic(rig.store, "T")
    rig.put(b"new")
    rig.tick()
    rig.store.close(0)
    for name in rig.disk.list("consumequeue/U/0"):
        rig.disk.unlink(f"consumequeue/U/0/{name}")
    rig.open()

    assert rig.bodies() == [b"new"]
    assert rig.bodies("U") == [b"kept"]


def test_deleting_an_absent_topic_does_nothing(rig: Rig) -> None:
    before = rig.disk.operations
    delete_topic(rig.store, "absent")

    assert rig.disk.operations == before


def test_a_topic_can_be_deleted_while_its_queue_files_are_unsynced(rig: Rig) -> None:
    for _ in range(9):
        rig.put()
    rig.tick()
    delete_topic(rig.store, "T")
    rig.put(b"other", topic="U")
    rig.tick()
    rig.put(b"other", topic="U")

    assert rig.store.writer.read_only_reason is None


# Opening and closing


def test_a_store_can_be_opened_only_once(rig: Rig) -> None:
    with pytest.raises(StoreLockedError):
        MessageStore.open(rig.disk, CONFIG, 0, pid=2)


def test_the_abort_file_names_the_process(rig: Rig) -> None:
    assert rig.disk.read("abort", 0, 20) == b"42 kourou"
    rig.store.close(0)
    assert not rig.disk.exists("abort")
    rig.open()


def test_a_closed_store_refuses_appends_and_a_second_close_does_nothing(rig: Rig) -> None:
    rig.store.close(0)
    rig.store.close(0)
    with pytest.raises(ClosedError):
        rig.append()
    rig.open()


def test_close_stores_appended_messages(rig: Rig) -> None:
    rig.append(b"last words")
    rig.reopen()

    assert rig.store.recovery.was_clean
    assert rig.bodies() == [b"last words"]


def test_a_close_that_cannot_sync_leaves_recovery_to_the_next_start(rig: Rig) -> None:
    rig.append(b"one")
    rig.disk.fail_after(0, BROKEN, ("sync",))
    with pytest.raises(StoreError, match="cleanly"):
        rig.store.close(0)
    rig.open()

    assert not rig.store.recovery.was_clean


def test_a_store_refuses_other_file_sizes_than_at_its_creation(rig: Rig) -> None:
    rig.store.close(0)
    for change in ({"commitlog_segment_bytes": 8192}, {"consumequeue_file_bytes": 400}):
        (name,) = change
        with pytest.raises(StoreConfigError, match=name) as caught:
            MessageStore.open(rig.disk, replace(CONFIG, **change), 0, pid=1)  # type: ignore[arg-type]
        assert str(change[name]) in str(caught.value)
        assert str(getattr(CONFIG, name)) in str(caught.value)
    rig.open()


def test_a_failed_open_releases_the_lock() -> None:
    disk = SimDisk()
    disk.fail_after(0, BROKEN, ("sync",))
    with pytest.raises(OSError, match="input/output"):
        Rig(disk)

    assert Rig(disk).problems() == []
