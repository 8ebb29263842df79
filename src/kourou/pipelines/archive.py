"""Pipeline `archive`: topics as partitioned Parquet files, each message exactly once.

Each run archives the messages after the offsets of the batches before, as one batch or, as a
stream, as many. A run that was killed is repeated without a message that is missing or twice
(`archive_files`).
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from kourou.errors import TransportError, UsageError
from kourou.model.queue import MessageQueue
from kourou.pipelines.archive_files import (
    STAGED_SCHEMA,
    Archive,
    ArchivedFile,
    Manifest,
    Queue,
    placed,
    stage,
)
from kourou.pipelines.charts import Bars
from kourou.pipelines.report import Report, Table
from kourou.pipelines.selection import (
    Selection,
    read_message_stream,
    read_messages,
    read_options,
)
from kourou.pipelines.streams import QuerySink, Streaming, StreamRun
from kourou.pipelines.tables import Tables
from kourou.spark.cluster import started_client
from kourou.spark.planning import QueueBounds, name_of
from kourou.spark.schema import COLUMNS, ddl
from kourou.spark.stream_offsets import by_name


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


def staged(
    messages: DataFrame, staging: Path, archived: Mapping[Queue, int] = MappingProxyType({})
) -> DataFrame:
    """Return a row for each file that the tasks write into the staging directory.

    Args:
        messages: rows with all columns of the source.
        staging: the directory, on each machine.
        archived: offset after the last archived message of each queue: earlier ones are skipped.
    """
    return messages.select(*COLUMNS).mapInArrow(_stager(staging, dict(archived)), STAGED_SCHEMA)


def add_batch(messages: DataFrame, archive: Archive) -> Manifest | None:
    """Archive those of the messages that are not archived yet, as one batch.

    The archive must be locked. As a function for `foreachBatch` it may be repeated with any batch.

    Returns:
        The manifest; None if there are no such messages.
    """
    archive.recover()
    rows = staged(messages, archive.staging, archive.offsets()).collect()
    files = placed(row.asDict() for row in rows)
    if not files:
        return None
    manifest = Manifest(archive.next_batch(), files)
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


def queries(spark: SparkSession, options: Options, sink: QuerySink) -> None:
    """Add the query of the table of the files, from the earliest messages on."""
    staging = Archive(options.directory).staging
    sink.append("files", staged(read_message_stream(spark, options.selection), staging))


def run(spark: SparkSession, options: Options, output: Tables | None = None) -> Report:  # noqa: ARG001
    """Archive the messages after those of the last run, and return the new files by hour.

    Raises:
        UsageError: another run uses the archive, or a topic was deleted and created again.
        KourouError: the read failed.
    """
    archive = Archive(options.directory)
    with archive.locked():
        archive.recover()
        starts = asyncio.run(starting_offsets(options.selection, archive))
        messages = [
            read_messages(spark, _started(options.selection, topic, starts.of(topic)))
            for topic in options.selection.topics
        ]
        add_batch(reduce(DataFrame.unionByName, messages), archive)
        return _finished(options, archive, starts)


def check(options: Options, streaming: Streaming) -> None:
    """Refuse before Spark starts what `stream` would refuse.

    Raises:
        UsageError: as `stream`.
    """
    if streaming.directory or streaming.overwrite:
        raise UsageError(
            "--out and --overwrite are not options of archive: the archive is --into DIRECTORY"
        )
    with Archive(options.directory).locked():
        pass


def stream(spark: SparkSession, options: Options, streaming: Streaming) -> Report:
    """Archive the messages after those of the last run while they come, and return the new files.

    Each run starts at the offsets of the archive, with an empty checkpoint.

    Raises:
        UsageError: another run uses the archive, or a topic was deleted and created again.
        KourouError: the stream failed.
    """
    archive = Archive(options.directory)
    with archive.locked():
        archive.recover()
        starts = asyncio.run(starting_offsets(options.selection, archive))
        shutil.rmtree(archive.checkpoint, ignore_errors=True)
        selection = _started(options.selection, None, starts.offsets)

        def add(batch: DataFrame, _number: int) -> None:
            add_batch(batch, archive)

        with StreamRun(spark, streaming) as run_:
            writer = read_message_stream(spark, selection).writeStream.foreachBatch(add)
            run_.start(writer, archive.checkpoint)
            counts = run_.wait()
        return replace(_finished(options, archive, starts), stream=counts)


@dataclass(frozen=True, slots=True)
class Starts:
    """The positions at which a run continues the archive.

    Attributes:
        offsets: the next offset to archive of each queue.
        expired: number of messages that were deleted before they were archived.
        batch: number of the first batch of the run.
    """

    offsets: Mapping[MessageQueue, int]
    expired: int
    batch: int

    def of(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets of the queues of a topic."""
        return {queue: offset for queue, offset in self.offsets.items() if queue.topic == topic}


async def starting_offsets(selection: Selection, archive: Archive) -> Starts:
    """Return where a run continues the archive.

    Raises:
        UsageError: a queue ends before the archive, or has another message than the archive: the
            topic was deleted and created again, or the broker lost messages.
        TransportError: a server did not answer.
        RemoteError: a server refused.
    """
    read = read_options(selection)
    archived = archive.last_files()
    client = await started_client(read.client, read.consumer_group, read.pull_timeout_ms)
    try:
        view = await client.view(read.source)
        if view.silent:
            broker_name, reason = min(view.silent.items())
            raise TransportError(f"broker {broker_name!r} does not answer: {reason}")
        lasts = {
            queue: file
            for queue in view.bounds
            if (file := archived.get((queue.topic, queue.broker_name, queue.queue_id))) is not None
        }
        samples = await client.samples(
            {
                queue: file.until - 1
                for queue, file in lasts.items()
                if view.bounds[queue].min_offset < file.until <= view.bounds[queue].max_offset
            }
        )
    finally:
        await client.close()
    offsets, expired = {}, 0
    for queue, bounds in view.bounds.items():
        file = lasts.get(queue)
        if file is None:
            offsets[queue] = bounds.min_offset
            continue
        is_replica = queue.broker_name in view.replicas  # it may lack the newest messages
        sample = samples.get(queue)
        is_other = (
            sample is not None
            and file.lastStoredMs is not None
            and sample.store_time_ms != file.lastStoredMs
        )
        if is_other or (file.until > bounds.max_offset and not is_replica):
            raise UsageError(_other_queue(queue, file, bounds, archive))
        offsets[queue] = max(file.until, bounds.min_offset)
        expired += offsets[queue] - file.until
    return Starts(offsets, expired, archive.next_batch())


def _other_queue(
    queue: MessageQueue, file: ArchivedFile, bounds: QueueBounds, archive: Archive
) -> str:
    return (
        f"{name_of(queue)} is not the queue that {archive.root} has up to offset {file.until}: it "
        f"holds offsets {bounds.min_offset} to {bounds.max_offset} (exclusive), so the topic was "
        "deleted and created again, or the broker lost messages: archive it --into another "
        "DIRECTORY"
    )


def _started(
    selection: Selection, topic: str | None, offsets: Mapping[MessageQueue, int]
) -> Selection:
    """Return the selection, or one topic of it, with the offsets as its start."""
    starting = json.dumps(by_name(offsets))
    return replace(
        selection,
        topics=selection.topics if topic is None else (topic,),
        options={**selection.options, "startingOffsets": starting},
    )


def _finished(options: Options, archive: Archive, starts: Starts) -> Report:
    """Join small files, and return the report of the batches of this run."""
    manifests = [one for one in archive.manifests() if one.batch >= starts.batch]
    files = tuple(file for one in manifests for file in one.files)
    compacted = (
        archive.compact(options.compact_below_bytes) if options.compact_below_bytes else None
    )
    shown = _by_hour(files, options.rows)
    notes = []
    if starts.expired:
        notes.append(
            f"{starts.expired:,} messages were deleted by the retention of the broker before they "
            "were archived"
        )
    return Report(
        tables=(shown,),
        metrics={
            "messages": sum(file.rows for file in files),
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
            "joined_files": 0 if compacted is None else len(compacted.replaces),
            "expired": starts.expired,
        },
        notes=notes,
        charts=(
            Bars(
                title="Archived messages by topic and hour (UTC)",
                unit="messages",
                bars={f"{row[0]} {_hour(str(row[1]))}": float(str(row[2])) for row in shown.rows},
                more=shown.total - len(shown.rows),
            ),
        ),
    )


def _by_hour(files: tuple[ArchivedFile, ...], limit: int) -> Table:
    totals: dict[tuple[str, str], tuple[int, int, int]] = {}
    for file in files:
        messages, size, count = totals.get((file.topic, file.hour), (0, 0, 0))
        totals[file.topic, file.hour] = (messages + file.rows, size + file.bytes, count + 1)
    rows = [(*key, *totals[key]) for key in sorted(totals)]
    columns = ("topic", "hour", "messages", "bytes", "files")
    return Table("files", columns, rows[-limit:], len(rows))


def _hour(hour: str) -> str:
    """Return the text of an hour's partition: `2026112423` -> `2026-11-24 23:00`."""
    return f"{hour[:4]}-{hour[4:6]}-{hour[6:8]} {hour[8:]}:00"


def _stager(
    staging: Path, archived: Mapping[Queue, int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        unique = "0" if task is None else str(task.taskAttemptId())
        rows = list(stage(batches, staging, unique, archived))
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_STAGED)

    return write


_STAGED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("staged", "topic", "hour", "brokerName")),
        ("queueId", pa.int32()),
        *((name, pa.int64()) for name in ("start", "until", "rows", "bytes", "lastStoredMs")),
    ]
)
