"""Streaming queries of a pipeline: their start, tables, progress and end.

A pipeline adds its queries to a `QuerySink`: a `StreamRun` starts them, `StreamPlans` explains
them. A run ends when the messages that were there at its start are read or, if it follows, at
Ctrl-C or SIGTERM. The failure of one query ends the others. A run that was killed at any point is
continued by the next one from its checkpoints.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import StructType

from kourou.clock import elapsed_s
from kourou.errors import KourouError
from kourou.pipelines.directories import StreamDirectory
from kourou.pipelines.jobs import translated_errors
from kourou.pipelines.selection import Selection, read_range
from kourou.pipelines.stream_metrics import QueryMetrics, summary
from kourou.pipelines.tables import plan_texts

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
"""Interval at which a run checks its queries."""

STARTS_MAX: Final = 5
"""Maximum number of starts of a query, of which the first ones failed to start a worker."""

NO_WORKER: Final = "Python worker failed to connect back"
"""Text of Spark's error when a Python process took longer than 10 s to start. Spark has no option
for this time, which a busy machine exceeds."""

STOP_MAX_S: Final = 30.0
"""Maximum time for which a stopped run waits for the end of a batch."""

BATCH_PREFIX: Final = "batch="
"""Prefix of the directories of a table that is written batch by batch."""


@dataclass(frozen=True, kw_only=True)
class Streaming:
    """The directory, pace and end of a run.

    Attributes:
        directory: receives the tables and checkpoints; empty for archives, which have their own.
        follow: read on until Ctrl-C or SIGTERM; otherwise, only what is there at the start.
        every_ms: interval of the batches of a run that follows.
        overwrite: delete the tables and checkpoints of earlier runs.
        stop: ends a run that follows when it is set.
        on_progress: called after each poll with the metrics of the run so far.
    """

    directory: str = ""
    follow: bool = False
    every_ms: int = 10_000
    overwrite: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    on_progress: Callable[[Mapping[str, int | float]], None] | None = None


@dataclass(frozen=True, kw_only=True)
class LateRows:
    """Function that counts the messages that the watermark dropped before an aggregation.

    Spark counts groups of them, so the messages of a batch with late ones are read again.

    Attributes:
        selection: the messages of the stream.
        columns: the columns that `count` needs.
        count: function from (messages of a batch, watermark in epoch ms) to the number of those
            that were dropped.
    """

    selection: Selection
    columns: Sequence[str]
    count: Callable[[DataFrame, int], int]


class QuerySink(Protocol):
    """Receiver of the queries of a pipeline."""

    def append(self, name: str, frame: DataFrame, late: LateRows | None = None) -> None:
        """Append the rows of each batch to a table, each exactly once."""

    def each_batch(
        self,
        name: str,
        frame: DataFrame,
        function: Callable[[DataFrame, int], None],
        late: LateRows | None = None,
    ) -> None:
        """Call a function with the rows and the number of each batch; it may be called again."""


class StreamPlans:
    """Collects the queries of a pipeline and their plans, and starts none."""

    def __init__(self) -> None:
        self._frames: dict[str, DataFrame] = {}

    def append(self, name: str, frame: DataFrame, late: LateRows | None = None) -> None:  # noqa: ARG002
        """Keep the query."""
        self._frames[name] = frame

    def each_batch(
        self,
        name: str,
        frame: DataFrame,
        function: Callable[[DataFrame, int], None],  # noqa: ARG002
        late: LateRows | None = None,  # noqa: ARG002
    ) -> None:
        """Keep the query."""
        self._frames[name] = frame

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield the name and Spark's plan of each query."""
        yield from plan_texts(self._frames)


@dataclass(slots=True)
class _Running:
    """A query of a run.

    Attributes:
        starts: number of starts of the query.
        seen: batch number and time of the last progress that was added to the metrics.
    """

    writer: DataStreamWriter
    query: StreamingQuery
    checkpoint: Path
    late: LateRows | None
    metrics: QueryMetrics = field(default_factory=QueryMetrics)
    starts: int = 1
    seen: tuple[int, str] = (-1, "")

    @property
    def failure(self) -> str | None:
        """The text of the error that ended the query."""
        error = self.query.exception()
        return None if error is None else str(error)

    def start_again(self) -> bool:
        """Start the query again from its checkpoint if it failed to start a worker."""
        if NO_WORKER not in (self.failure or "") or self.starts >= STARTS_MAX:
            return False
        log.warning("stream.started_again reason=%s", NO_WORKER)
        self.starts += 1
        with translated_errors():
            self.query = self.writer.start()
        return True


class StreamRun:
    """The queries of one run; a context manager that stops them.

    Args:
        spark: the session.
        streaming: pace and end of the run.
    """

    def __init__(self, spark: SparkSession, streaming: Streaming) -> None:
        self.spark = spark
        self._streaming = streaming
        self._queries: list[_Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for one in self._queries:
            # After a failure, also of Spark itself, the first error is the one to raise.
            with contextlib.suppress(Exception) if exc is not None else contextlib.nullcontext():
                one.query.stop()

    def start(
        self, writer: DataStreamWriter, checkpoint: Path, late: LateRows | None = None
    ) -> None:
        """Start a query."""
        streaming = self._streaming
        paced = (
            writer.trigger(processingTime=f"{streaming.every_ms} milliseconds")
            if streaming.follow
            else writer.trigger(availableNow=True)
        )
        with translated_errors():
            located = paced.option("checkpointLocation", str(checkpoint))
            self._queries.append(_Running(located, located.start(), checkpoint, late))

    def wait(self) -> dict[str, int | float]:
        """Wait for the end of the run, stop the queries, and return its metrics.

        Raises:
            KourouError: a query failed; the others are stopped.
        """
        streaming = self._streaming
        with _stop_signals(streaming.stop) if streaming.follow else contextlib.nullcontext():
            while not streaming.stop.wait(POLL_S):
                self._collect()
                is_active = any(one.query.isActive for one in self._queries)
                failed = [one for one in self._queries if one.failure is not None]
                if any(not one.start_again() for one in failed):
                    break
                if not is_active and not failed:
                    break
                if streaming.on_progress is not None:
                    streaming.on_progress(self.metrics())
            for one in self._queries:
                if one.failure is None:
                    _stop_after_batch(one.query)
            self._collect()
            for one in self._queries:
                with translated_errors():
                    one.query.awaitTermination()  # raises what ended the query
            return self.metrics()

    def metrics(self) -> dict[str, int | float]:
        """Return the metrics of the run so far."""
        return summary(one.metrics for one in self._queries)

    def open_rows(self) -> int:
        """Return the number of rows of all states after the last batch."""
        return sum(one.metrics.open for one in self._queries)

    def duplicates(self) -> int:
        """Return the number of rows that were dropped as duplicates."""
        return sum(one.metrics.duplicates for one in self._queries)

    def _collect(self) -> None:
        """Add the progress since the last call to the metrics."""
        for one in self._queries:
            last = one.query.lastProgress
            if last is None or (last.batchId, last.timestamp) == one.seen:
                continue
            for progress in one.query.recentProgress:
                at = (progress.batchId, progress.timestamp)
                if at > one.seen:
                    document = json.loads(progress.json)
                    dropped = one.metrics.late
                    one.metrics.add(document)
                    if one.late is not None and one.metrics.late > dropped:
                        self._count_late(one, one.late, document, one.metrics.late - dropped)
                    one.seen = at

    def _count_late(
        self, one: _Running, late: LateRows, progress: Mapping[str, Any], groups: int
    ) -> None:
        source = progress["sources"][0]
        try:
            with translated_errors():
                messages = read_range(
                    self.spark,
                    late.selection,
                    late.columns,
                    source["startOffset"],
                    source["endOffset"],
                )
                count = late.count(messages, _watermark_ms(one.checkpoint, progress))
        except (KourouError, OSError) as error:
            # At least one message of each group was late.
            log.warning("late_rows.not_counted reason=%s", error)
            count = groups
        one.metrics.late_rows = (one.metrics.late_rows or 0) + count


class TableRun(StreamRun):
    """The queries of a run that write tables below a directory; holds its lock.

    Args:
        spark: the session.
        streaming: directory, pace and end of the run.
        directory: the directory.
    """

    def __init__(
        self, spark: SparkSession, streaming: Streaming, directory: StreamDirectory
    ) -> None:
        super().__init__(spark, streaming)
        self._directory = directory
        self._lock = directory.held(overwrite=streaming.overwrite)
        self._schemas: dict[str, StructType] = {}

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(exc_type, exc, traceback)
        finally:
            self._lock.__exit__(exc_type, exc, traceback)

    def append(self, name: str, frame: DataFrame, late: LateRows | None = None) -> None:
        """Append the rows of each batch to a table, each exactly once."""
        self._schemas[name] = frame.schema
        writer = frame.writeStream.format("parquet").option(
            "path", str(self._directory.table(name))
        )
        self.start(writer, self._directory.checkpoint(name), late)

    def each_batch(
        self,
        name: str,
        frame: DataFrame,
        function: Callable[[DataFrame, int], None],
        late: LateRows | None = None,
    ) -> None:
        """Call a function with the rows and the number of each batch; it may be called again."""
        self.start(frame.writeStream.foreachBatch(function), self._directory.checkpoint(name), late)

    def replace_batch(self, name: str, rows: DataFrame, number: int) -> None:
        """Write the rows of a batch to a table; a repeated batch replaces its rows."""
        path = self._directory.table(name) / f"{BATCH_PREFIX}{number}"
        rows.write.mode("overwrite").parquet(str(path))

    def table(self, name: str, schema: StructType | None = None) -> DataFrame:
        """Return a table, with the rows of earlier runs.

        Args:
            name: the table's name.
            schema: its columns; None for a table that a query of this run appends to.
        """
        schema = self._schemas[name] if schema is None else schema
        path = str(self._directory.table(name))
        try:
            return self.spark.read.schema(schema).parquet(path)
        except AnalysisException:
            log.debug("table.missed path=%s", path)  # no batch has rows
            return self.spark.createDataFrame([], schema)


def late_notes(counts: Mapping[str, int | float]) -> list[str]:
    """Return the sentence of a report about rows that the watermark dropped; none without any."""
    if not counts["late"]:
        return []
    return [f"late messages: {counts['late']:,}; they came after their watermark and are left out"]


def _watermark_ms(checkpoint: Path, progress: Mapping[str, Any]) -> int:
    """Return the watermark by which the rows of a batch were late: that of the batch before."""
    number = int(progress["batchId"])
    lines = (checkpoint / "offsets" / str(number - 1)).read_text(encoding="utf-8").splitlines()
    return int(json.loads(lines[1])["batchWatermarkMs"])


def _stop_after_batch(query: StreamingQuery) -> None:
    """Stop a query at the end of its batch, or of the wait for it."""
    pause = threading.Event()
    deadline_s = elapsed_s() + STOP_MAX_S
    last = query.lastProgress
    seen = None if last is None else (last.batchId, last.timestamp)
    while query.isActive and query.status["isTriggerActive"] and elapsed_s() < deadline_s:
        last = query.lastProgress
        if last is not None and (last.batchId, last.timestamp) != seen:
            break
        pause.wait(POLL_S / 4)
    query.stop()


@contextlib.contextmanager
def _stop_signals(stop: threading.Event) -> Iterator[None]:
    """Set the event at Ctrl-C or SIGTERM; a second one interrupts at once.

    Only the main thread of a program receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {one: signal.signal(one, on_signal) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
