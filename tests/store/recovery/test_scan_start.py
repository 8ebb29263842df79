"""The recovery scan begins at the checkpoint if the last run allows trusting it."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from kourou.store.formats import COPY_AT, encode_checkpoint
from kourou.store.state.abort_file import read_last_run
from kourou.store.state.checkpoint import load_checkpoint
from tests.store.rig import CONFIG, SEGMENT_BYTES, Rig

FEW_PER_ROUND = replace(CONFIG, queue_sync_interval_ms=5_000)


def killed_store(messages: int = 40) -> Rig:
    """Return a killed store whose checkpoint's record is inside a segment, near the end.

    The messages are stored a second apart.
    """
    rig = Rig(config=FEW_PER_ROUND)
    for number in range(messages):
        rig.put(b"%03d" % number + b"x" * 600)
        rig.tick()
    at = load_checkpoint(rig.disk).queues_offset
    assert at % SEGMENT_BYTES
    rig.store.abandon()
    return rig


def dropped_caches(rig: Rig) -> list[str]:
    """Open the store; return the files whose cache was dropped."""
    forgotten: list[str] = []
    rig.disk.on_operation = lambda op, name: forgotten.append(name) if op == "drop_cache" else None
    rig.open()
    rig.disk.on_operation = None
    return forgotten


def test_after_a_kill_the_scan_begins_at_the_checkpoints_record() -> None:
    rig = killed_store()
    at = load_checkpoint(rig.disk).queues_offset

    assert len(dropped_caches(rig)) == 1, "the cache is trusted, except for the last segment"
    assert rig.store.recovery.scanned_from == at
    assert 1 <= rig.store.recovery.records_scanned <= 8
    assert len(rig.bodies()) == 40
    assert rig.problems() == []


def test_a_kill_just_after_a_failed_sync_shows_no_record_that_the_device_lacks() -> None:
    rig = killed_store()
    rig.open()
    rig.append(b"lost")
    rig.store.writer.write()
    plan = rig.store.writer.sync_plan()
    assert plan is not None
    rig.disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
    with pytest.raises(OSError, match="broken"):
        plan.run(rig.disk)  # without a note in `abort`

    rig.kill()

    assert len(rig.bodies()) == 40
    assert rig.problems() == []


def test_after_a_failed_sync_the_scan_reads_the_device() -> None:
    rig = killed_store()
    rig.disk.write("abort", 0, [b"42 kourou sync-failed"])
    at = load_checkpoint(rig.disk).queues_offset

    assert len(dropped_caches(rig)) > 1
    assert rig.store.recovery.scanned_from == at
    assert not read_last_run(rig.disk).is_cache_suspect


def test_a_sync_that_fails_during_recovery_is_recorded_for_the_next_start() -> None:
    rig = killed_store()
    rig.disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
    with pytest.raises(OSError, match="broken"):
        rig.open()

    assert read_last_run(rig.disk).is_cache_suspect
    assert dropped_caches(rig)


def test_after_java_the_scan_begins_at_a_segment_and_reads_the_device() -> None:
    rig = killed_store()
    rig.disk.write("abort", 0, [b"4711     "])
    at = load_checkpoint(rig.disk).queues_offset

    assert dropped_caches(rig)
    assert rig.store.recovery.scanned_from == at - at % SEGMENT_BYTES
    assert len(rig.bodies()) == 40


def test_after_java_the_scan_begins_at_most_ten_segments_back() -> None:
    rig = killed_store(80)
    rig.disk.write("abort", 0, [b"4711     "])
    numbers = load_checkpoint(rig.disk)._replace(queues_offset=0, log_at_ms=1, queues_at_ms=1)
    rig.disk.write("checkpoint", 0, [encode_checkpoint(numbers)])
    end = len(rig.disk.list("commitlog")) * SEGMENT_BYTES
    rig.open()

    assert rig.store.recovery.scanned_from == end - 10 * SEGMENT_BYTES > 0
    assert len(rig.bodies()) == 80


def test_a_damaged_checkpoint_is_logged_and_the_whole_log_is_scanned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = killed_store()
    rig.disk.write("checkpoint", COPY_AT + 3, [b"?"])
    rig.open()

    assert "checkpoint.damaged" in caplog.text
    assert rig.store.recovery.scanned_from == 0
    assert rig.store.recovery.records_scanned == 40
    assert load_checkpoint(rig.disk).queues_offset == 0


def test_a_flipped_bit_in_javas_values_is_logged_and_harmless(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = killed_store()
    at = load_checkpoint(rig.disk).queues_offset
    rig.disk.write("checkpoint", 40, [b"\x7f"])
    rig.open()

    assert "checkpoint.differed" in caplog.text
    assert rig.store.recovery.scanned_from == at


def test_the_checkpoints_record_itself_may_be_damaged() -> None:
    rig = killed_store()
    at = load_checkpoint(rig.disk).queues_offset
    rig.disk.write(f"commitlog/{at - at % SEGMENT_BYTES:020d}", at % SEGMENT_BYTES + 150, [b"?"])
    rig.open()

    assert [span.position for span in rig.store.recovery.damaged] == [at]
    assert rig.store.recovery.scanned_from == at
    assert rig.store.reader.max_offset("T", 0) == 40


def test_a_flipped_queue_entry_below_the_scan_cuts_no_queue() -> None:
    rig = Rig(config=FEW_PER_ROUND)
    for number in range(7):
        rig.put(b"%d" % number, topic="Quiet")
    for _ in range(40):
        rig.put(b"x" * 600)
        rig.tick()
    rig.store.abandon()
    for index in range(7):
        rig.disk.write("consumequeue/Quiet/0/00000000000000000000", 20 * index, [b"\xff"])
        rig.open()
        assert rig.store.reader.max_offset("Quiet", 0) == 7
        # Otherwise the begin or end of the queue is uncertain.
        assert (rig.store.recovery.scanned_from > 0) is (0 < index < 6)
        rig.store.abandon()
        rig.disk.write("consumequeue/Quiet/0/00000000000000000000", 20 * index, [b"\0"])
