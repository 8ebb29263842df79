"""Pipeline `archive`: topics as partitioned Parquet files, each message exactly once.

Each run archives one batch: the messages after the offsets of the batches before. A run that was
killed is repeated without a message that is missing or twice (`archive_files`). `add_batch` is
also the function for `foreachBatch` of a stream.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.model.queue import MessageQueue
from kourou.pipelines.archive_files import (
    STAGED_SCHEMA,
    Archive,
    ArchivedFile,
    Manifest,
    placed,
    stage,
)
from kourou.pipelines.charts import Bars
from kourou.pipelines.report import Report, Table
from kourou.pipelines.selection import Selection, read_messages
from kourou.pipelines.tables import Tables
from kourou.spark.connection import ConnectionOptions
from kourou.spark.schema import COLUMNS, ddl

EARLIEST: Final = -2
"""The earliest offset, in offsets as JSON."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the pipeline.

    Attributes:
        selection: the topics.
        directory: the archive; created if it does not exist.
        compact_below_bytes: then join smaller files of each topic and hour; 0: do not.
        rows: maximum number of printed rows.
    """

    selection: Selection
    directory: str
    compact_below_bytes: int = 0
    rows: int = 20


def staged(messages: DataFrame, staging: Path) -> DataFrame:
    """Return a row for each file that the tasks write into the staging directory.

    Args:
        messages: rows with all columns of the source.
        staging: the directory, on each machine.
    """
    return messages.select(*COLUMNS).mapInArrow(_stager(staging), STAGED_SCHEMA)


def add_batch(messages: DataFrame, archive: Archive, batch: int) -> Manifest | None:
    """Archive the messages as one batch.

    Returns:
        The manifest; None if there are no messages, or if the batch is archived already.
    """
    archive.recover()
    if archive.has(batch):
        return None
    files = placed(row.asDict() for row in staged(messages, archive.staging).collect())
    if not files:
        return None
    manifest = Manifest(batch, files)
    archive.commit(manifest)
    return manifest


def read_archive(spark: SparkSession, directory: str) -> DataFrame:
    """Return the messages of an archive, exactly those of complete batches.

    Any reader of Parquet can read the directory too; while a batch or a compaction is put in place,
    it may see a part of a batch, or messages twice.
    """
    archive = Archive(directory)
    schema = f"{ddl(COLUMNS)}, hour STRING"
    files = [str(archive.root / file.path) for file in archive.files()]
    reader = spark.read.schema(schema).option("basePath", str(archive.root))
    if not files:
        return spark.createDataFrame([], schema)
    return reader.parquet(*files).select(*COLUMNS, "hour")


def tables(spark: SparkSession, options: Options, output: Tables) -> DataFrame:
    """Build the table of the files to be written."""
    archive = Archive(options.directory)
    messages = read_messages(spark, options.selection)
    return output.add("files", staged(messages, archive.staging))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:  # noqa: ARG001
    """Archive the messages after those of the last run, and return the new files by hour."""
    archive = Archive(options.directory)
    with archive.locked():
        files, joined = _extend(spark, options, archive)
    shown = _by_hour(files, options.rows)
    return Report(
        tables=(shown,),
        metrics={
            "messages": sum(file.rows for file in files),
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
            "joined_files": joined,
        },
        charts=(
            Bars(
                title="Archived messages by topic and hour",
                unit="messages",
                bars={f"{row[0]} {row[1]}": float(str(row[2])) for row in shown.rows},
            ),
        ),
    )


def _extend(
    spark: SparkSession, options: Options, archive: Archive
) -> tuple[tuple[ArchivedFile, ...], int]:
    """Add one batch, and join small files; return the new files and the number of joined ones."""
    archive.recover()
    starts = asyncio.run(_starting_offsets(options.selection, archive.offsets()))
    messages = [
        read_messages(spark, replace(options.selection, topics=(topic,), options=more))
        for topic, more in starts.items()
    ]
    whole = reduce(DataFrame.unionByName, messages)
    manifest = add_batch(whole, archive, archive.next_batch())
    files = () if manifest is None else manifest.files
    compacted = (
        archive.compact(options.compact_below_bytes) if options.compact_below_bytes else None
    )
    return files, 0 if compacted is None else len(compacted.replaces)


def _by_hour(files: tuple[ArchivedFile, ...], limit: int) -> Table:
    totals: dict[tuple[str, str], tuple[int, int, int]] = {}
    for file in files:
        messages, size, count = totals.get((file.topic, file.hour), (0, 0, 0))
        totals[file.topic, file.hour] = (messages + file.rows, size + file.bytes, count + 1)
    rows = [(*key, *totals[key]) for key in sorted(totals)]
    columns = ("topic", "hour", "messages", "bytes", "files")
    return Table("files", columns, rows[-limit:], len(rows))


async def _starting_offsets(
    selection: Selection, archived: Mapping[tuple[str, str, int], int]
) -> dict[str, dict[str, str]]:
    """Return for each topic the options of a read that continues the archive."""
    connection = ConnectionOptions(credentials_file=selection.options.get("credentialsFile"))
    config = PullConsumerConfig(**connection.settings())
    found: dict[str, dict[str, str]] = {}
    async with PullConsumer("kourou_spark", selection.name_server, config=config) as consumer:
        for topic in selection.topics:
            queues = await consumer.fetch_subscribe_message_queues(topic)
            starting = json.dumps({topic: _by_broker(queues, archived)})
            found[topic] = {**selection.options, "startingOffsets": starting}
    return found


def _by_broker(
    queues: list[MessageQueue], archived: Mapping[tuple[str, str, int], int]
) -> dict[str, dict[str, int]]:
    by_broker: dict[str, dict[str, int]] = {}
    for queue in queues:
        key = (queue.topic, queue.broker_name, queue.queue_id)
        offset = archived.get(key, EARLIEST)
        by_broker.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return by_broker


def _stager(staging: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        unique = "0" if task is None else str(task.taskAttemptId())
        rows = list(stage(batches, staging, unique))
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_STAGED)

    return write


_STAGED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("staged", "topic", "hour", "brokerName")),
        ("queueId", pa.int32()),
        *((name, pa.int64()) for name in ("start", "until", "rows", "bytes")),
    ]
)
