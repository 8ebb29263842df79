"""Tests of the pipeline `archive`: repeated runs, a killed run, and other readers of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from kourou.model.message import Message
from kourou.pipelines import archive
from kourou.pipelines.archive_files import Archive
from kourou.pipelines.selection import Selection, read_messages

Publish = Callable[[Sequence[Message]], list[str]]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_each_run_archives_the_messages_since_the_last_and_a_killed_run_none_twice(
    spark: SparkSession,
    namesrv: str,
    publish: Publish,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = str(tmp_path / "archive")
    selection = Selection(name_server=namesrv, topics=("t-archived",))
    options = archive.Options(selection=selection, directory=directory)
    publish([Message("t-archived", b"%d" % n, keys=[f"k-{n}"], tags="a") for n in range(30)])

    assert archive.run(spark, options).metrics["messages"] == 30
    assert archive.run(spark, options).metrics["messages"] == 0
    publish([Message("t-archived", b"%d" % n) for n in range(30, 40)])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        # The journal is written, and no file is in place yet.
        patched.setattr(Archive, "_put_in_place", killed)
        with pytest.raises(KeyboardInterrupt):
            archive.run(spark, options)
    report = archive.run(
        spark,
        archive.Options(selection=selection, directory=directory, compact_below_bytes=1 << 20),
    )

    # The interrupted batch was completed at the start of this run, which had nothing to add.
    assert report.metrics["messages"] == 0
    rows = archive.read_archive(spark, directory).collect()
    assert sorted(int(row.body) for row in rows) == list(range(40))
    first = next(row for row in rows if row.body == b"7")
    assert (first.topic, first.tags, first["keys"]) == ("t-archived", "a", ["k-7"])
    assert first.properties["UNIQ_KEY"] == first.msgId
    stored = {row.msgId: row for row in read_messages(spark, selection).collect()}
    assert {row.msgId: row.storeTimestamp for row in rows} == {
        msg_id: row.storeTimestamp for msg_id, row in stored.items()
    }
    table = ds.dataset(directory, format="parquet", partitioning="hive").to_table()
    assert sorted(map(int, table.column("body").to_pylist())) == list(range(40))


def test_an_empty_archive_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    assert archive.read_archive(spark, str(tmp_path / "absent")).count() == 0
