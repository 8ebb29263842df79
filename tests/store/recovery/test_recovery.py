"""Recovery after a kill, a power cut or damage."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from kourou.errors import CorruptRecordError
from kourou.store.message_store import MessageStore
from kourou.store.state.checkpoint import load_checkpoint, save_checkpoint
from tests.store.recovery.rig import FIRST_SEGMENT, fill
from tests.store.rig import CONFIG, SEGMENT_BYTES, Rig, draft


def test_a_clean_start_scans_only_the_last_record(rig: Rig) -> None:
    bodies = fill(rig)
    rig.reopen()

    assert rig.store.recovery.was_clean
    assert rig.store.recovery.records_scanned == 1
    assert rig.bodies() == bodies


def test_a_new_store_is_clean_and_empty(rig: Rig) -> None:
    assert rig.store.recovery.was_clean
    assert rig.store.recovery.end == 0
    assert rig.store.reader.queues() == {}


def test_a_kill_loses_no_written_record(rig: Rig) -> None:
    rig.append(b"written")
    rig.store.writer.write()
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


def test_recovery_reports_progress() -> None:
    rig = Rig(config=replace(CONFIG, commitlog_segment_bytes=1 << 20))
    for _ in range(5000):
        rig.append(b"")
    rig.commit()
    rig.store.abandon()
    reported: list[tuple[int, int]] = []
    rig.store = MessageStore.open(
        rig.disk, rig.config, 0, pid=1, progress=lambda *args: reported.append(args)
    )

    assert reported
    assert all(0 < done <= total for done, total in reported)
    assert rig.problems() == []


@pytest.mark.parametrize(
    "tear",
    [
        lambda size: (size // 2, size),  # the second half was never written
        lambda size: (4, size),  # only the size was written
        lambda size: (0, 4),  # the first sector was not written
        lambda size: (size - 5, size),  # the end of the properties was not written
        lambda size: (size - 60, size - 55),  # a part of the properties was not written
    ],
    ids=["half", "all but the size", "beginning", "end", "properties"],
)
def test_a_torn_tail_is_truncated_at_the_last_whole_record(
    tear: Callable[[int], tuple[int, int]],
) -> None:
    rig = Rig()
    rig.put(b"whole")
    torn = rig.store.writer.append(draft(b"torn" * 20, properties={"NOTE": "n" * 60}), rig.now_ms)
    rig.commit()
    rig.store.abandon()
    start, end = tear(torn.size)
    rig.disk.write(FIRST_SEGMENT, torn.physical_offset + start, [bytes(end - start)])
    rig.open()

    assert rig.bodies() == [b"whole"]
    assert rig.store.reader.written_position == torn.physical_offset
    left = rig.disk.read(FIRST_SEGMENT, torn.physical_offset, SEGMENT_BYTES)
    assert left.strip(b"\0") == b""
    assert rig.store.recovery.truncated_bytes > 0
    assert rig.put(b"next").queue_offset == 1
    assert rig.problems() == []


def test_a_record_with_another_position_is_not_accepted() -> None:
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


def test_records_after_a_lost_one_are_removed_with_their_segments(rig: Rig) -> None:
    fill(rig, 2, 100)
    lost = rig.append(b"lost")
    for _ in range(10):
        rig.append(b"behind" * 200)
    rig.store.writer.write()
    rig.store.abandon()
    rig.disk.write(FIRST_SEGMENT, lost.physical_offset, [bytes(lost.size)])
    rig.open()

    assert len(rig.bodies()) == 2
    assert rig.disk.list("commitlog") == ["00000000000000000000"]


def test_segments_after_a_missing_one_are_removed(rig: Rig) -> None:
    for _ in range(12):
        rig.append(b"x" * 900)
    rig.store.writer.write()
    rig.store.abandon()
    rig.disk.unlink("commitlog/00000000000000004096")
    rig.open()

    assert rig.store.reader.written_position == SEGMENT_BYTES
    assert rig.disk.list("commitlog") == ["00000000000000000000"]


def test_an_incompletely_created_segment_is_extended(rig: Rig) -> None:
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
    end = rig.store.reader.written_position
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


def test_the_cache_is_not_trusted_after_a_failed_sync(rig: Rig) -> None:
    rig.put(b"durable")
    rig.append(b"shown by the cache only")
    rig.store.writer.write()
    plan = rig.store.writer.sync_plan()
    assert plan is not None
    rig.disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
    with pytest.raises(OSError, match="broken"):
        rig.store.writer.run_sync(plan)
    rig.store.writer.set_read_only("a sync failed")
    rig.reopen()

    assert rig.bodies() == [b"durable"]


# Queues


def test_a_store_without_its_log_is_refused_until_checkpoint_and_state_are_removed(
    rig: Rig,
) -> None:
    fill(rig)
    rig.store.close(0)
    for name in rig.disk.list("commitlog"):
        rig.disk.unlink(f"commitlog/{name}")
    with pytest.raises(CorruptRecordError, match="durable"):
        rig.open()
    for name in ("checkpoint", "config/kourou-store.json", "config/kourou-store.json.bak"):
        rig.disk.unlink(name)
    rig.open()

    assert rig.store.reader.queues() == {}
    assert rig.put(b"new").queue_offset == 0


# Stores that Java made
