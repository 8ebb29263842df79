"""Tests of the directories of streams: one run at a time, with the options of the first one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.errors import UsageError
from kourou.pipelines.directories import StreamDirectory, exclusive

RATES = {"pipeline": "throughput", "TOPIC": "orders", "--window": "60000 ms"}


def directory(root: Path, **changes: str) -> StreamDirectory:
    definition = {**RATES, **{name.replace("_", "--"): text for name, text in changes.items()}}
    return StreamDirectory(str(root), definition, ("windows",))


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    with directory(tmp_path).held(overwrite=False):
        with pytest.raises(UsageError, match="used by another run"):
            directory(tmp_path).check(overwrite=False)
        with pytest.raises(UsageError, match="used by another run"):
            directory(tmp_path).held(overwrite=True).__enter__()

    with directory(tmp_path).held(overwrite=False):
        pass


def test_a_later_run_with_other_options_is_refused_by_the_name_of_the_option(
    tmp_path: Path,
) -> None:
    with directory(tmp_path).held(overwrite=False):
        pass

    directory(tmp_path).check(overwrite=False)
    for changes, text in (
        ({"_window": "1000 ms"}, "--window is 1000 ms, but the stream in .* has 60000 ms"),
        ({"TOPIC": "orders payments"}, "TOPIC is orders payments"),
        ({"pipeline": "dedup"}, "pipeline is dedup"),
        ({"_tag": "eu"}, "--tag is eu, but .* has absent"),
    ):
        with pytest.raises(UsageError, match=text) as caught:
            directory(tmp_path, **changes).check(overwrite=False)
        assert "--overwrite" in str(caught.value)


def test_overwrite_deletes_the_tables_and_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    old = directory(tmp_path)
    with old.held(overwrite=False):
        old.table("windows").mkdir()
        old.checkpoint("windows").mkdir()
    (tmp_path / "notes").mkdir()

    new = directory(tmp_path, _window="1000 ms")
    new.check(overwrite=True)
    with new.held(overwrite=True):
        assert not new.table("windows").exists()
        assert not new.checkpoint("windows").exists()

    assert (tmp_path / "notes").exists()
    new.check(overwrite=False)


def test_a_table_without_checkpoint_is_refused(tmp_path: Path) -> None:
    # Spark's file sink would skip the batches whose numbers the table's log has.
    directory(tmp_path).table("windows").mkdir()

    with pytest.raises(UsageError, match=r"windows is not of a stream.*--overwrite"):
        directory(tmp_path).check(overwrite=False)


@pytest.mark.parametrize(
    ("text", "reason"), [("{", "damaged"), ('{"version": 2, "options": {}}', "2")]
)
def test_options_that_do_not_parse_are_named(tmp_path: Path, text: str, reason: str) -> None:
    with directory(tmp_path).held(overwrite=False):
        pass
    (tmp_path / "_stream" / "options.json").write_text(text)

    with pytest.raises(UsageError, match=rf"options\.json .*{reason}"):
        directory(tmp_path).check(overwrite=False)


def test_another_file_system_is_refused() -> None:
    with pytest.raises(UsageError, match="hdfs://"):
        StreamDirectory("hdfs://server/rates", RATES, ())


def test_the_lock_of_an_archive_is_released_after_a_failure(tmp_path: Path) -> None:
    def fail() -> None:
        with exclusive(tmp_path, tmp_path / "_lock"):
            raise ValueError("failed")

    for _ in range(2):
        with pytest.raises(ValueError, match="failed"):
            fail()
