"""What opening a store finds after a kill, a power cut, or damage, and what it makes of it."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from kourou.errors import CorruptRecordError, StoreConfigError
from kourou.store.config import StoreConfig
from kourou.store.message_store import Asked, MessageStore
from kourou.store.state.checkpoint import load_checkpoint, save_checkpoint
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG, SEGMENT_BYTES, Rig, delete_topic, draft

FIRST_SEGMENT = "commitlog/00000000000000000000"


def fill(rig: Rig, count: int = 20, size: int = 700) -> list[bytes]:
    """Store so many messages in queue 0 of T, over several segments; return their bodies."""
    bodies = [b"%03d" % number + b"x" * size for number in range(count)]
    for body in bodies:
        rig.put(body)
    return bodies


def remove_queues(disk: SimDisk, directory: str = "consumequeue") -> None:
    for name in disk.list(directory):
        if name.isdecimal() and len(name) == 20:
            disk.unlink(f"{directory}/{name}")
        else:
            remove_queues(disk, f"{directory}/{name}")


def test_a_clean_start_reads_the_last_record_only(rig: Rig) -> None:
    bodies = fill(rig)
    rig.reopen()

    assert rig.store.recovery.was_clean
    assert rig.store.recovery.records_scanned == 1
    assert rig.bodies() == bodies


def test_a_new_store_is_clean_and_empty(rig: Rig) -> None:
    assert rig.store.recovery.was_clean
    assert rig.store.recovery.end == 0
    assert rig.store.queues() == {}


def test_a_kill_takes_nothing_that_was_written(rig: Rig) -> None:
    rig.append(b"written")
    rig.store.write()
    rig.append(b"not written")
    rig.kill()

    assert not rig.store.recovery.was_clean
    assert rig.bodies() == [b"written"]
    assert rig.put(b"next").queue_offset == 1


def test_recovery_starts_below_the_checkpoint_and_not_at_the_beginning(rig: Rig) -> None:
    bodies = fill(rig)
    for _ in range(20):
        rig.tick()
        bodies.append(b"%d" % len(bodies))
        rig.put(bodies[-1])
    rig.tick()
    rig.crash()

    assert not rig.store.recovery.was_clean
    assert rig.store.recovery.records_scanned < 30
    assert rig.bodies() == bodies


def test_recovery_tells_how_far_it_is() -> None:
    rig = Rig(config=replace(CONFIG, commitlog_segment_bytes=1 << 20))
    for _ in range(5000):
        rig.append(b"")
    rig.commit()
    rig.store.abandon()
    told: list[tuple[int, int]] = []
    rig.store = MessageStore.open(
        rig.disk, rig.config, 0, pid=1, progress=lambda *args: told.append(args)
    )

    assert told
    assert all(0 < done <= total for done, total in told)
    assert rig.problems() == []


@pytest.mark.parametrize(
    "tear",
    [
        lambda size: (size // 2, size),  # the second half was never written
        lambda size: (4, size),  # nor anything but the size
        lambda size: (0, 4),  # the first sector was not
        lambda size: (size - 5, size),  # the end of the properties was not
        lambda size: (size - 60, size - 55),  # a piece of the properties was not
    ],
    ids=["half", "all but the size", "beginning", "end", "properties"],
)
def test_a_torn_tail_is_truncated_at_the_last_whole_record(
    tear: Callable[[int], tuple[int, int]],
) -> None:
    rig = Rig()
    rig.put(b"whole")
    torn = rig.store.append(draft(b"torn" * 20, properties={"NOTE": "n" * 60}), rig.now_ms)
    rig.commit()
    rig.store.abandon()
    start, end = tear(torn.size)
    rig.disk.write(FIRST_SEGMENT, torn.physical_offset + start, [bytes(end - start)])
    rig.open()

    assert rig.bodies() == [b"whole"]
    assert rig.store.written_position == torn.physical_offset
    left = rig.disk.read(FIRST_SEGMENT, torn.physical_offset, SEGMENT_BYTES)
    assert left.strip(b"\0") == b""
    assert rig.store.recovery.truncated_bytes > 0
    assert rig.put(b"next").queue_offset == 1
    assert rig.problems() == []


def test_a_record_with_another_places_offset_is_none() -> None:
    rig = Rig()
    rig.put(b"one")
    second = rig.put(b"two")
    rig.store.abandon()
    record = rig.disk.read(FIRST_SEGMENT, second.physical_offset, second.size)
    rig.disk.write(FIRST_SEGMENT, second.end, [record])
    rig.open()

    assert rig.bodies() == [b"one", b"two"]
    assert rig.store.recovery.truncated_bytes == second.size
    assert rig.problems() == []


def test_records_behind_a_lost_one_are_removed_with_their_segments(rig: Rig) -> None:
    fill(rig, 2, 100)
    lost = rig.append(b"lost")
    for _ in range(10):
        rig.append(b"behind" * 200)
    rig.store.write()
    rig.store.abandon()
    rig.disk.write(FIRST_SEGMENT, lost.physical_offset, [bytes(lost.size)])
    rig.open()

    assert len(rig.bodies()) == 2
    assert rig.disk.list("commitlog") == ["00000000000000000000"]


def test_segments_behind_a_missing_one_are_removed(rig: Rig) -> None:
    for _ in range(12):
        rig.append(b"x" * 900)
    rig.store.write()
    rig.store.abandon()
    rig.disk.unlink("commitlog/00000000000000004096")
    rig.open()

    assert rig.store.written_position == SEGMENT_BYTES
    assert rig.disk.list("commitlog") == ["00000000000000000000"]


def test_a_segment_whose_creation_was_cut_short_is_extended(rig: Rig) -> None:
    fill(rig, 3, 10)
    rig.store.abandon()
    rig.disk.truncate("commitlog/00000000000000004096", 0)
    rig.open()

    assert len(rig.bodies()) == 3


def test_a_log_that_lost_its_durable_end_is_refused_and_nothing_is_cut(rig: Rig) -> None:
    bodies = fill(rig)
    rig.tick()
    rig.put(b"moves the checkpoint")
    rig.tick()
    rig.store.abandon()
    end = rig.store.written_position
    save_checkpoint(rig.disk, load_checkpoint(rig.disk)._replace(synced_position=end + 1))
    log_before = [rig.disk.read(f"commitlog/{n}", 0, 4096) for n in rig.disk.list("commitlog")]
    with pytest.raises(CorruptRecordError, match=f"durable to byte {end + 1}") as caught:
        rig.open()

    assert caught.value.file == f"commitlog/{rig.disk.list('commitlog')[-1]}"
    assert caught.value.offset == end % SEGMENT_BYTES
    assert "kourou store truncate" in caught.value.reason
    log_after = [rig.disk.read(f"commitlog/{n}", 0, 4096) for n in rig.disk.list("commitlog")]
    assert log_after == log_before
    rig.disk.unlink("checkpoint")
    rig.open()
    assert rig.bodies() == [*bodies, b"moves the checkpoint"]


def test_a_log_that_lost_its_end_after_a_clean_stop_is_refused(rig: Rig) -> None:
    fill(rig)
    rig.store.close(0)
    last = f"commitlog/{rig.disk.list('commitlog')[-1]}"
    data = rig.disk.read(last, 0, SEGMENT_BYTES)
    rig.disk.truncate(last, 100)
    with pytest.raises(CorruptRecordError, match="ends here"):
        rig.open()
    rig.disk.truncate(last, SEGMENT_BYTES)
    with pytest.raises(CorruptRecordError, match="durable"):
        rig.open()

    rig.disk.write(last, 0, [data])
    rig.open()


def test_what_a_failed_sync_left_in_the_cache_is_not_trusted(rig: Rig) -> None:
    rig.put(b"durable")
    rig.append(b"shown by the cache only")
    rig.store.write()
    plan = rig.store.sync_plan()
    assert plan is not None
    rig.disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
    with pytest.raises(OSError, match="broken"):
        rig.store.run_sync(plan)
    rig.store.set_read_only("a sync failed")
    rig.reopen()

    assert rig.bodies() == [b"durable"]


# Queues


def test_all_queues_are_made_again_from_the_log(rig: Rig) -> None:
    bodies = fill(rig)
    rig.put(b"other", topic="U", queue_id=3)
    rig.store.close(0)
    remove_queues(rig.disk)
    rig.open()

    assert rig.bodies() == bodies
    assert rig.bodies("U", 3) == [b"other"]


@pytest.mark.parametrize("stop", ["close", "abandon"])
def test_one_lost_queue_is_made_again(rig: Rig, stop: str) -> None:
    bodies = fill(rig)
    for _ in range(3):
        rig.put(b"other", topic="U")
        rig.tick()
    rig.put(b"last", topic="U")
    rig.store.close(0) if stop == "close" else rig.store.abandon()
    remove_queues(rig.disk, "consumequeue/T" if stop == "close" else "consumequeue/U")
    rig.open()

    assert rig.bodies() == bodies
    assert rig.bodies("U") == [b"other"] * 3 + [b"last"]


@pytest.mark.parametrize("file", [0, 1, 2])
def test_a_queue_that_lost_a_file_is_made_again(rig: Rig, file: int) -> None:
    bodies = fill(rig)
    rig.store.close(0)
    names = rig.disk.list("consumequeue/T/0")
    assert len(names) == 3
    rig.disk.unlink(f"consumequeue/T/0/{names[file]}")
    rig.open()

    assert rig.bodies() == bodies


@pytest.mark.parametrize("size", [0, 10, 100])
def test_a_queue_with_a_short_file_is_made_again(rig: Rig, size: int) -> None:
    bodies = fill(rig)
    rig.store.close(0)
    rig.disk.truncate("consumequeue/T/0/00000000000000000160", size)
    rig.open()

    assert rig.bodies() == bodies
    assert rig.disk.size("consumequeue/T/0/00000000000000000160") == 160


def test_a_queue_entry_whose_record_was_lost_is_cut(rig: Rig) -> None:
    rig.put(b"kept")
    rig.put(b"kept too", queue_id=1)
    lost = rig.append(b"lost")
    rig.store.write()
    rig.store.dispatch(rig.store.written_position)  # as with asynchronous flush
    rig.tick()
    rig.store.abandon()
    rig.disk.write(FIRST_SEGMENT, lost.physical_offset, [bytes(lost.size)])
    rig.open()

    assert rig.bodies() == [b"kept"]
    assert rig.bodies(queue_id=1) == [b"kept too"]


def test_a_queue_all_of_whose_records_were_lost_is_gone(rig: Rig) -> None:
    rig.put(b"kept")
    lost = rig.append(b"lost", topic="U")
    rig.store.write()
    rig.store.dispatch(rig.store.written_position)
    rig.tick()
    rig.store.abandon()
    rig.disk.write(FIRST_SEGMENT, lost.physical_offset, [bytes(lost.size)])
    rig.open()

    assert rig.store.queues() == {"T": [0]}
    assert rig.put(b"again", topic="U").queue_offset == 0


def test_queues_whose_older_messages_expired_keep_their_offsets(rig: Rig) -> None:
    bodies = fill(rig)
    rig.put(b"only once", topic="U")
    rig.store.close(0)
    rig.disk.unlink(FIRST_SEGMENT)
    rig.open()
    first = rig.store.min_offset("T", 0)
    assert 0 < first < 8
    assert rig.bodies() == bodies[first:]

    rig.store.close(0)
    remove_queues(rig.disk)
    rig.open()
    assert rig.store.min_offset("T", 0) == first
    assert rig.bodies() == bodies[first:]
    assert rig.store.get("T", 0, Asked(0, 1, 100, None)).plan.next_offset == first


def test_a_queue_that_holds_nothing_any_more_keeps_its_next_offset(rig: Rig) -> None:
    rig.put(b"old", topic="U")
    fill(rig)
    rig.store.close(0)
    rig.disk.unlink(FIRST_SEGMENT)
    rig.open()

    assert rig.store.min_offset("U", 0) == rig.store.max_offset("U", 0) == 1
    assert rig.put(b"new", topic="U").queue_offset == 1


def test_a_store_whose_log_was_removed_is_refused_until_it_is_given_up(rig: Rig) -> None:
    fill(rig)
    rig.store.close(0)
    for name in rig.disk.list("commitlog"):
        rig.disk.unlink(f"commitlog/{name}")
    with pytest.raises(CorruptRecordError, match="durable"):
        rig.open()
    for name in ("checkpoint", "config/kourou-store.json", "config/kourou-store.json.bak"):
        rig.disk.unlink(name)
    rig.open()

    assert rig.store.queues() == {}
    assert rig.put(b"anew").queue_offset == 0


def test_a_topic_that_java_deleted_and_made_again_begins_anew() -> None:
    # Java leaves no note of it: only the queue offsets in the log tell.
    rig = Rig()
    fill(rig, 5, 10)
    delete_topic(rig.store, "T")
    for body in (b"new", b"newer"):
        rig.put(body)
    rig.store.abandon()
    for name in ("config/kourou-store.json", "config/kourou-store.json.bak"):
        rig.disk.unlink(name)
    rig.open()

    assert rig.bodies() == [b"new", b"newer"]
    assert rig.problems() == []


def test_files_made_again_and_removed_by_the_same_recovery_are_not_missed() -> None:
    # The old topic's queue is made again from the log, until the new one's first record comes.
    rig = Rig()
    for _ in range(20):
        rig.put()
    delete_topic(rig.store, "T")
    rig.put(b"new")
    rig.store.abandon()
    for name in ("config/kourou-store.json", "config/kourou-store.json.bak"):
        rig.disk.unlink(name)
    rig.open()

    rig.reopen()
    assert rig.store.recovery.was_clean
    assert rig.bodies() == [b"new"]
    assert rig.problems() == []


def test_what_java_did_meanwhile_is_no_loss(rig: Rig) -> None:
    # Java deleted a topic while it had the store; its clean stop leaves abort.bak.
    fill(rig, 3, 10)
    rig.put(b"deleted by Java", topic="U")
    rig.put(b"last")
    rig.store.close(0)
    remove_queues(rig.disk, "consumequeue/U")
    for directory in ("consumequeue/U/0", "consumequeue/U"):
        rig.disk.remove_directory(directory)
    rig.disk.write("abort.bak", 0, [])
    topics = b'{"topicConfigTable":{"T":{"topicName":"T"}}}'
    rig.disk.write("config/topics.json", 0, [topics])
    rig.open()

    assert rig.store.queues() == {"T": [0]}
    assert not rig.disk.exists("abort.bak")


# Stores that Java made


def java_store(**changes: int) -> tuple[SimDisk, StoreConfig]:
    """Return a closed store without our notes about it."""
    rig = Rig()
    fill(rig, 3, 10)
    rig.store.close(0)
    for name in ("config/kourou-store.json", "config/kourou-store.json.bak"):
        if rig.disk.exists(name):
            rig.disk.unlink(name)
    return rig.disk, replace(CONFIG, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"commitlog_segment_bytes": 8192},
        {"commitlog_segment_bytes": 4100},
        {"consumequeue_file_bytes": 320},
        {"consumequeue_file_bytes": 60},
    ],
)
def test_another_file_size_than_javas_is_refused(changes: dict[str, int]) -> None:
    disk, config = java_store(**changes)
    before = {name: disk.size(f"commitlog/{name}") for name in disk.list("commitlog")}
    with pytest.raises(StoreConfigError, match="made with"):
        MessageStore.open(disk, config, 0, pid=1)

    assert {name: disk.size(f"commitlog/{name}") for name in before} == before


def test_an_empty_last_segment_of_java_is_no_reason_to_refuse() -> None:
    disk, config = java_store()
    disk.write("commitlog/00000000000000004096", 0, [])
    disk.write("abort", 0, [b"1"])
    rig = Rig(disk, config)

    assert len(rig.bodies()) == 3
    assert rig.problems() == []


def test_a_checkpoint_older_than_5_5_starts_by_time() -> None:
    rig = Rig()
    for second in range(20):
        rig.now_ms = second * 1000
        rig.put(b"x" * 900)
    rig.store.close(0)
    at_ms = rig.store.store_time("T", 0, 19)
    rig.disk.write("checkpoint", 0, [struct.pack(">6q", at_ms, at_ms, 0, 0, 0, 0)])
    rig.disk.write("abort", 0, [b"1"])
    rig.open()

    assert 4 <= rig.store.recovery.records_scanned <= 8
    assert len(rig.bodies()) == 20
    assert rig.problems() == []


def test_a_record_whose_queue_offset_is_absurd_gets_no_entry() -> None:
    rig = Rig(config=replace(CONFIG, append_property_crc=False))
    rig.put(b"one")
    bad = rig.put(b"two")
    rig.store.abandon()
    rig.disk.write(FIRST_SEGMENT, bad.physical_offset + 20, [struct.pack(">q", 1 << 40)])
    rig.open()

    assert rig.bodies() == [b"one"]
    rig.store.abandon()


@pytest.mark.parametrize("byte", [0, 3, 8], ids=["offset", "low part of the offset", "size"])
def test_a_damaged_entry_that_ends_a_queue_below_the_scan_is_made_again(
    rig: Rig, byte: int
) -> None:
    rig.put(b"the only one", queue_id=1)
    bodies = fill(rig)
    for _ in range(20):
        rig.tick()
        rig.put(b"more")
        bodies.append(b"more")
    rig.store.abandon()
    name = f"consumequeue/T/1/{0:020d}"
    entry = bytearray(rig.disk.read(name, 0, 20))
    entry[byte] ^= 0x80
    rig.disk.write(name, 0, [bytes(entry)])
    rig.disk.sync(name)
    rig.open()

    assert rig.bodies(queue_id=1) == [b"the only one"]
    assert rig.bodies() == bodies
