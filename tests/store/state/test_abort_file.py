"""The abort file identifies the last broker, and whether the page cache is suspect."""

from __future__ import annotations

import errno

import pytest

from kourou.store.paths import COMMITLOG
from kourou.store.state.abort_file import (
    LastRun,
    note_failed_sync,
    read_last_run,
    remove_abort,
    write_abort,
)
from kourou.testing.disk import SimDisk
from tests.store.rig import Rig


class Broken:
    """A disk that has failed for good."""

    def __call__(self, operation: str, name: str) -> None:
        if operation in ("read", "write", "sync"):
            raise OSError(errno.EIO, f"broken: {name}")


class BrokenFromSync(Broken):
    """A disk that fails in the first sync of a log file."""

    has_failed = False

    def __call__(self, operation: str, name: str) -> None:
        self.has_failed |= operation == "sync" and name.startswith(COMMITLOG)
        if self.has_failed:
            super().__call__(operation, name)


def test_a_new_store_and_a_clean_stop_count_as_clean() -> None:
    disk = SimDisk()
    assert read_last_run(disk) == LastRun(True, was_kourou=True, is_cache_suspect=False)
    write_abort(disk, 7)
    remove_abort(disk)
    assert read_last_run(disk) == LastRun(True, was_kourou=True, is_cache_suspect=False)


def test_kourou_is_recognized_after_a_kill_or_power_loss() -> None:
    disk = SimDisk()
    write_abort(disk, 7)
    killed = LastRun(False, was_kourou=True, is_cache_suspect=False)
    assert read_last_run(disk) == killed
    disk.crash()
    assert read_last_run(disk) == killed


def test_a_failed_sync_is_noted_once_and_removed_by_the_next_start() -> None:
    disk = SimDisk()
    write_abort(disk, 7)
    note_failed_sync(disk)
    note_failed_sync(disk)
    assert disk.read("abort", 0, 64) == b"7 kourou sync-failed"
    assert read_last_run(disk) == LastRun(False, was_kourou=True, is_cache_suspect=True)
    write_abort(disk, 8)
    assert not read_last_run(disk).is_cache_suspect


@pytest.mark.parametrize("text", [b"4711", b"", b"kourou", b"12 other", b"\xff \x00"])
def test_other_contents_are_attributed_to_java_or_to_no_broker(text: bytes) -> None:
    disk = SimDisk()
    disk.write("abort", 0, [text])
    expected = LastRun(False, False, is_cache_suspect=True, was_java_killed=text == b"4711")
    assert read_last_run(disk) == expected


def test_a_clean_stop_of_java_is_recognized_by_its_backup_file() -> None:
    disk = SimDisk()
    disk.write("abort.bak", 0, [b"12"])
    assert read_last_run(disk) == LastRun(True, was_kourou=False, is_cache_suspect=False)
    write_abort(disk, 7)
    assert not disk.exists("abort.bak")


def test_a_failed_sync_is_noted_before_it_is_reported(rig: Rig) -> None:
    rig.append()
    rig.store.writer.write()
    plan = rig.store.writer.sync_plan()
    assert plan is not None
    rig.disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
    with pytest.raises(OSError, match="broken"):
        rig.store.writer.run_sync(plan)

    assert read_last_run(rig.disk).is_cache_suspect
    assert rig.kill().recovery.last_run.is_cache_suspect


def test_a_note_that_cannot_be_written_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    write_abort(disk, 7)
    disk.on_operation = Broken()
    note_failed_sync(disk)

    assert "abort.write_failed" in caplog.text


def test_note_is_tried_again_on_a_disk_that_has_just_failed() -> None:
    disk = SimDisk()
    write_abort(disk, 7)
    for _ in range(2):
        disk.fail_after(0, OSError(errno.EIO, "broken"), ("write",))
    note_failed_sync(disk)

    assert read_last_run(disk).is_cache_suspect


def test_failed_sync_of_a_start_is_known_to_the_next_one_without_a_note_after_it(rig: Rig) -> None:
    rig.append()
    rig.store.writer.write()
    rig.store.abandon()
    rig.disk.on_operation = BrokenFromSync()
    with pytest.raises(OSError, match="broken"):
        rig.open()
    rig.disk.on_operation = None

    assert rig.open().recovery.last_run.is_cache_suspect


def test_start_that_makes_the_log_durable_leaves_no_note(rig: Rig) -> None:
    rig.append()
    rig.store.writer.write()
    rig.kill()

    assert not read_last_run(rig.disk).is_cache_suspect
    assert not rig.kill().recovery.last_run.is_cache_suspect
