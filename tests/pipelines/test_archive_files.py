"""Tests of the files of an archive: crashes at each step, damage, compaction."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kourou.errors import UsageError
from kourou.pipelines import archive_files
from kourou.pipelines.archive_files import Archive, Manifest, placed, stage

HOUR_US = 3_600_000_000
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("body", pa.binary()),
        ("storeTimestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def batch(
    offsets: Sequence[int], *, topic: str = "orders", queue_id: int = 0, hour: int = 0
) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": topic,
                "brokerName": "broker-a",
                "queueId": queue_id,
                "queueOffset": offset,
                "body": b"%d" % offset,
                "storeTimestamp": hour * HOUR_US + offset,
            }
            for offset in offsets
        ],
        schema=SCHEMA,
    )


def staged(archive: Archive, number: int, *batches: pa.RecordBatch, attempt: int = 0) -> Manifest:
    files = stage(batches, archive.staging, f"{number}-{attempt}", archive.offsets())
    return Manifest(number, placed(files))


def stored(archive: Archive) -> list[int]:
    """Return the offsets in all files that any reader of Parquet sees, sorted."""
    offsets: list[int] = []
    for path in archive.root.rglob("*.parquet"):
        if not any(part.startswith("_") for part in path.relative_to(archive.root).parts):
            offsets += pq.read_table(path, partitioning=None).column("queueOffset").to_pylist()
    return sorted(offsets)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "archive"))


def test_files_are_divided_by_topic_hour_and_queue(archive: Archive) -> None:
    manifest = staged(
        archive,
        0,
        batch([5, 6]),
        batch([0], queue_id=1),
        batch([7, 9], hour=1),
        batch([3], topic="%RETRY%g"),
    )
    archive.commit(manifest)

    assert [file.path for file in manifest.files] == [
        "topic=%25RETRY%25g/hour=1970010100/broker-a-0-3-4.parquet",
        "topic=orders/hour=1970010100/broker-a-0-5-7.parquet",
        "topic=orders/hour=1970010100/broker-a-1-0-1.parquet",
        "topic=orders/hour=1970010101/broker-a-0-7-10.parquet",
    ]
    assert stored(archive) == [0, 3, 5, 6, 7, 9]
    assert archive.offsets() == {
        ("orders", "broker-a", 0): 10,
        ("orders", "broker-a", 1): 1,
        ("%RETRY%g", "broker-a", 0): 4,
    }
    assert archive.next_batch() == 1


def test_a_batch_with_mixed_queues_is_divided(archive: Archive) -> None:
    mixed = pa.Table.from_batches([batch([1]), batch([8], queue_id=1), batch([2])])

    manifest = staged(archive, 0, mixed.combine_chunks().to_batches()[0])

    assert [(file.queueId, file.start, file.until, file.rows) for file in manifest.files] == [
        (0, 1, 3, 2),
        (1, 8, 9, 1),
    ]


def test_more_queues_than_open_files_are_all_written(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "_OPEN_FILES_MAX", 2)
    batches = [batch([offset], queue_id=queue) for offset in range(3) for queue in range(4)]

    archive.commit(staged(archive, 0, *batches))

    assert stored(archive) == sorted(list(range(3)) * 4)


def test_a_crash_before_the_journal_leaves_no_message(archive: Archive) -> None:
    staged(archive, 0, batch([1, 2]))

    archive.recover()

    assert stored(archive) == []
    assert not archive.staging.exists()
    assert archive.next_batch() == 0


@pytest.mark.parametrize("moves", range(4))
def test_a_crash_after_the_journal_is_completed(
    archive: Archive, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    manifest = staged(archive, 0, batch([1]), batch([2], hour=1), batch([3], hour=2))
    move, done = archive_files._move, 0

    def crash(source: Path, target: Path) -> None:
        nonlocal done
        if done == moves:
            raise KeyboardInterrupt
        done += 1
        move(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(archive_files, "_move", crash)
        if moves < len(manifest.files):
            with pytest.raises(KeyboardInterrupt):
                archive.commit(manifest)
        else:
            archive.commit(manifest)

    restarted = Archive(str(archive.root))
    restarted.recover()
    assert stored(restarted) == [1, 2, 3]
    assert restarted.next_batch() == 1
    assert not restarted.staging.exists()


def test_a_repeated_batch_adds_only_what_is_not_archived(archive: Archive) -> None:
    archive.commit(staged(archive, 0, batch([3, 4, 7]), batch([1], queue_id=1)))
    archive.compact(below_bytes=1 << 20)
    number = archive.next_batch()

    assert not staged(archive, number, batch([3, 4, 7]), batch([0, 1], queue_id=1)).files
    repeated = staged(
        archive, number, batch([4, 7, 8, 9]), batch([2], queue_id=1), batch([1], topic="b")
    )
    archive.commit(repeated)

    assert [(file.topic, file.queueId, file.start, file.until) for file in repeated.files] == [
        ("b", 0, 1, 2),
        ("orders", 0, 8, 10),
        ("orders", 1, 2, 3),
    ]
    assert stored(archive) == [1, 1, 2, 3, 4, 7, 8, 9]


def test_a_file_has_the_store_time_of_its_last_message(archive: Archive) -> None:
    archive.commit(staged(archive, 0, batch([5_000, 9_000]), batch([7_000])))

    [file] = archive.last_files().values()

    assert (file.until, file.lastStoredMs) == (9_001, 9)


def test_recovery_repeats_without_effect(archive: Archive) -> None:
    archive.commit(staged(archive, 0, batch([1])))

    archive.recover()
    archive.recover()

    assert stored(archive) == [1]


def test_compaction_joins_small_files_of_an_hour(archive: Archive) -> None:
    for number in range(3):
        archive.commit(staged(archive, number, batch([2 * number, 2 * number + 1])))
    archive.commit(staged(archive, 3, batch([6], hour=1)))

    manifest = archive.compact(below_bytes=1 << 20)

    assert manifest is not None
    assert len(manifest.replaces) == 3
    assert [file.rows for file in archive.files()] == [1, 6]
    assert stored(archive) == list(range(7))
    assert archive.offsets() == {("orders", "broker-a", 0): 7}
    assert archive.compact(below_bytes=1 << 20) is None
    assert archive.next_batch() == 5


def test_compaction_leaves_large_files_and_respects_the_target_size(archive: Archive) -> None:
    for number in range(4):
        archive.commit(staged(archive, number, batch([number])))
    size = archive.files()[0].bytes

    assert archive.compact(below_bytes=size) is None
    joined = archive.compact(below_bytes=10 * size, target_bytes=2 * size)

    assert joined is not None
    assert [file.rows for file in joined.files] == [2, 2]
    assert stored(archive) == [0, 1, 2, 3]


def test_a_crash_in_the_middle_of_a_compaction_is_completed(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        archive.commit(staged(archive, number, batch([number])))
    move = archive_files._move

    def crash(source: Path, target: Path) -> None:
        if "compact" in target.name:
            raise KeyboardInterrupt
        move(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(archive_files, "_move", crash)
        with pytest.raises(KeyboardInterrupt):
            archive.compact(below_bytes=1 << 20)
    archive.recover()

    assert stored(archive) == [0, 1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "damaged"), ("[]", "damaged"), ('{"version": 2}', "version 2"), ("{}", "damaged")],
)
def test_a_manifest_that_does_not_parse_is_named(archive: Archive, text: str, reason: str) -> None:
    archive.commit(staged(archive, 0, batch([1])))
    path = archive.root / "_manifests" / "00000000.json"
    path.write_text(text)

    with pytest.raises(UsageError, match=reason) as caught:
        archive.files()
    assert str(path) in str(caught.value)


def test_a_second_run_at_the_same_time_is_refused(archive: Archive) -> None:
    with archive.locked(), pytest.raises(UsageError, match="another run"):
        Archive(str(archive.root)).locked().__enter__()

    with archive.locked():
        pass


def test_an_archive_on_another_file_system_is_refused() -> None:
    with pytest.raises(UsageError, match="hdfs://"):
        Archive("hdfs://server/archive")


def test_a_directory_that_was_moved_stays_readable(archive: Archive, tmp_path: Path) -> None:
    archive.commit(staged(archive, 0, batch([1])))

    shutil.move(archive.root, tmp_path / "moved")

    moved = Archive(str(tmp_path / "moved"))
    assert stored(moved) == [1]
    assert moved.offsets() == {("orders", "broker-a", 0): 2}
