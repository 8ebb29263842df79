"""Tests of the pipeline `archive`: repeated runs, a killed run, and other readers of the files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from kourou.client.administration.admin import AdminClient
from kourou.errors import UsageError
from kourou.model.message import Message
from kourou.pipelines import archive
from kourou.pipelines.archive_files import Archive
from kourou.pipelines.report import Report
from kourou.pipelines.selection import Selection, read_messages
from kourou.pipelines.streams import Streaming

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


def test_streams_batch_runs_and_compactions_can_follow_each_other(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    directory = str(tmp_path / "archive")
    selection = Selection(name_server=namesrv, topics=("t-mixed", "t-mixed-too"))
    options = archive.Options(
        selection=replace(selection, options={"maxOffsetsPerTrigger": "20"}),
        directory=directory,
        compact_below_bytes=1 << 20,
    )

    def stream() -> Report:
        return archive.stream(spark, options, Streaming())

    def batch() -> Report:
        return archive.run(spark, replace(options, selection=selection))

    counts = []
    publish([Message("t-mixed-too", b"0")])
    for number, run in enumerate((stream, stream, batch, stream)):
        publish([Message("t-mixed", b"%d" % (30 * number + n)) for n in range(30)])
        counts.append(run().metrics["messages"])

    assert counts == [31, 30, 30, 30]
    rows = archive.read_archive(spark, directory).where("topic = 't-mixed'").collect()
    assert sorted(int(row.body) for row in rows) == list(range(120))
    assert stream().stream["read"] == 0


def test_a_topic_that_was_created_again_is_refused(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    options = archive.Options(
        selection=Selection(name_server=namesrv, topics=("t-again",)),
        directory=str(tmp_path / "archive"),
    )
    publish([Message("t-again", b"old") for _ in range(10)])
    archive.run(spark, options)

    asyncio.run(delete_topic(namesrv, "t-again"))
    publish([Message("t-again", b"new") for _ in range(4)])
    for number in range(2):
        with pytest.raises(UsageError, match=r"t-again.*created again.*another DIRECTORY"):
            archive.run(spark, options) if number else archive.stream(spark, options, Streaming())

    # Also when it has as many messages as before: the last archived one is another.
    publish([Message("t-again", b"new") for _ in range(30)])
    with pytest.raises(UsageError, match="created again"):
        archive.run(spark, options)


async def delete_topic(namesrv: str, topic: str) -> None:
    async with AdminClient(namesrv) as admin:
        await admin.delete_topic(topic)


def test_an_empty_archive_is_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    assert archive.read_archive(spark, str(tmp_path / "absent")).count() == 0
