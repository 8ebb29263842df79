"""Writes of a DataFrame or a stream to topics: at least once, in tasks of Spark's workers.

A task ends when each of its rows is stored with SEND_OK. A task that Spark repeats sends its rows
again; `kourou.spark.stamps` identifies the copies, and `kourou.spark.dedup` removes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from kourou.client.config import ProducerConfig
from kourou.client.sending.encoded_producer import EncodedProducer
from kourou.errors import InternalError, JobFailedError, NoRouteError, UsageError
from kourou.spark.row_sender import UNCONFIRMED_SENDS_MAX, RowSender, SendLimits, SentRows
from kourou.spark.sink_rows import RowFormat, row_format, sink_rows
from kourou.spark.stamps import Stamps
from kourou.spark.task_reports import BATCH_ID, QUERY_ID
from kourou.spark.worker_errors import text_first
from kourou.spark.write_options import WriteOptions

log = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 256 * 1024
"""Size of a request, in bytes, that sends a batch with fewer than `batchSize` messages."""

IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of the requests of a task that wait for answers."""


@dataclass
class TaskReport(WriterCommitMessage):  # type: ignore[misc]  # PySpark is Any to us
    """Result of one task, for the log of the driver.

    Attributes:
        attempt: 0 unless Spark has repeated the task.
    """

    rows: int
    body_bytes: int
    unconfirmed: int
    attempt: int


class _Task(NamedTuple):
    """Position of the running task."""

    stamps: Stamps
    attempt: int


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]  # PySpark is Any to us
    """Writer of a DataFrame; created on the driver, pickled, used in workers."""

    def __init__(self, options: WriteOptions, fields: Iterable[tuple[str, str]]) -> None:
        self._options = options
        self._format = _format(options, fields)
        if options.topic is not None:
            asyncio.run(_check_topic(options, options.topic))

    @text_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Send the rows of one partition; return when all are stored with SEND_OK.

        Raises:
            KourouError: a row cannot be sent, or was not confirmed; the text names it.
        """
        assert self._options.write_id is not None, "parse_write_options requires it"
        context = _context()
        stamps = Stamps(self._options.write_id, 0, context.partitionId())
        return _send_all(
            iterator, self._options, self._format, _Task(stamps, context.attemptNumber())
        )

    def commit(self, messages: Sequence[TaskReport | None]) -> None:
        """Log the totals; the messages are already visible to consumers."""
        _log_committed(self._options.write_id, messages)

    def abort(self, messages: Sequence[TaskReport | None]) -> None:
        """Log that messages of the failed write may be stored."""
        _log_aborted(self._options.write_id, messages)


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # PySpark is Any to us
    """Writer of a streaming query. Spark creates a new one for each batch, and for its commit."""

    def __init__(self, options: WriteOptions, fields: Iterable[tuple[str, str]]) -> None:
        self._options = options
        self._format = _format(options, fields)

    @text_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Send the rows of one partition of a batch; as `BatchWriter.write`."""
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise InternalError(f"Spark has not set {QUERY_ID} and {BATCH_ID} for the task")
        task = _Task(Stamps(query, int(batch), context.partitionId()), context.attemptNumber())
        return _send_all(iterator, self._options, self._format, task)

    def commit(self, messages: Sequence[TaskReport | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log the totals of a batch."""
        _log_committed(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[TaskReport | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Log that messages of the failed batch may be stored."""
        _log_aborted(f"batch {batchId}", messages)


def refuse_overwrite(*, is_stream: bool) -> None:
    """Raise the error of a write that would replace a topic's content.

    Raises:
        UsageError: always.
    """
    if is_stream:
        raise UsageError(
            "the output mode complete cannot be written to a topic, because messages cannot be "
            "replaced: use .outputMode('append') or 'update'"
        )
    raise UsageError(
        "the mode overwrite cannot be written to a topic, because messages cannot be replaced: "
        "use .mode('append')"
    )


def _format(options: WriteOptions, fields: Iterable[tuple[str, str]]) -> RowFormat:
    return row_format(
        fields,
        topic=options.topic,
        key_column=options.key_column,
        body_bytes_max=options.max_message_bytes,
    )


def _producer(options: WriteOptions, config: ProducerConfig) -> EncodedProducer:
    return EncodedProducer(
        options.producer_group,
        options.client.name_server,
        config=config,
        resends=options.is_resending,
    )


async def _check_topic(options: WriteOptions, topic: str) -> None:
    """Raise on the driver if the topic does not exist, rather than in each task.

    Raises:
        NoRouteError: it does not exist.
        KourouError: no name server answered, or the credentials are wrong.
    """
    async with _producer(options, options.producer_config()) as producer:
        try:
            await producer.queues(topic)
        except NoRouteError as error:
            raise NoRouteError(
                f"topic is {topic!r}: {error}; create it: kourou topic create {topic}"
            ) from None


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InternalError("the writer runs outside of a Spark task")
    return context


def _send_all(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, row_format: RowFormat, task: _Task
) -> TaskReport:
    """Send all rows; the event loop runs only between the reads from Spark."""
    if task.attempt and not options.is_resending:
        raise JobFailedError(
            f"the task of partition {task.stamps.partition} is repeated, and delivery is "
            "atMostOnce: some of its rows may be stored"
        )
    if task.attempt:  # rows that the first attempt has sent are stored twice
        log.warning(
            "spark_task.repeated attempt=%d partition=%d batch=%d write=%s",
            task.attempt, task.stamps.partition, task.stamps.batch, task.stamps.write,
        )  # fmt: skip
    config = options.producer_config()
    limits = SendLimits(
        batch_messages_max=options.batch_size,
        batch_bytes_max=min(BATCH_BYTES_MAX, options.max_message_bytes),
        in_flight_messages_max=options.send_max_in_flight,
        in_flight_bytes_max=IN_FLIGHT_BYTES_MAX,
        timeout_ms=options.send_timeout_ms,
        unconfirmed_sends_max=UNCONFIRMED_SENDS_MAX if options.is_resending else 1,
        rate_max=options.rate_max,
    )
    with asyncio.Runner() as runner:
        run = runner.get_loop().run_until_complete  # runner.run would set signal handlers
        producer = _producer(options, config)
        run(producer.start())
        sender = RowSender(producer, config, limits, task.stamps)
        try:
            first = 0
            for batch in batches:
                rows = sink_rows(batch, row_format, task.stamps, first, producer.next_id)
                run(sender.add(rows))
                first += batch.num_rows
            run(sender.finish())
        finally:
            run(sender.cancel())
            run(producer.close())
    return _report(sender.sent, task.attempt)


def _report(sent: SentRows, attempt: int) -> TaskReport:
    return TaskReport(sent.rows, sent.body_bytes, sent.unconfirmed, attempt)


def _log_committed(write: str | None, messages: Sequence[TaskReport | None]) -> None:
    reports = [report for report in messages if report is not None]
    log.info(
        "spark_write.committed write=%s rows=%d body_bytes=%d unconfirmed=%d repeated_tasks=%d",
        write,
        sum(report.rows for report in reports),
        sum(report.body_bytes for report in reports),
        sum(report.unconfirmed for report in reports),
        sum(report.attempt > 0 for report in reports),
    )


def _log_aborted(write: str | None, messages: Sequence[TaskReport | None]) -> None:
    log.warning(
        "spark_write.aborted write=%s rows_stored=%d",
        write,
        sum(report.rows for report in messages if report is not None),
    )
