"""Reading of ranges by tasks: pulls, decoding into Arrow batches, and the losses found."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kourou.clock import elapsed_s
from kourou.errors import CodecMissingError, DataLossError
from kourou.spark.body_format import BodyDecoder
from kourou.spark.cluster import started_client
from kourou.spark.connection import ConnectionOptions
from kourou.spark.planning import QueueRange, name_of, pack_ranges
from kourou.spark.pulls import Pulled, Puller
from kourou.spark.read_options import ReadOptions
from kourou.spark.record_columns import (
    BATCH_BYTES,
    BATCH_ROWS,
    Decoded,
    Stop,
    decode_answers,
)
from kourou.spark.task_reports import ReadCounts
from kourou.spark.worker_errors import text_first

log = logging.getLogger(__name__)

_CLIENTS_MAX: Final = 4


def tasks_of(ranges: Sequence[QueueRange], options: ReadOptions) -> list[InputPartition]:
    """Return one partition for each task; its value is a tuple of `QueueRange`."""
    groups = pack_ranges(
        ranges,
        options.max_partitions,
        tasks_min=options.min_partitions,
        rows_max=options.max_records_per_partition,
    )
    return [InputPartition(group) for group in groups]


@text_first
def read_ranges(
    ranges: Sequence[QueueRange],
    options: ReadOptions,
    columns: Sequence[str],
    counts: ReadCounts | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the ranges as Arrow batches.

    The event loop runs only while this waits for answers. `counts` is updated with each batch.

    Raises:
        DataLossError: messages were deleted since the plan or cannot be decoded, and
            failOnDataLoss is true.
        MalformedMessageError: a body does not fit bodySchema, and the mode is failFast.
        KourouError: a broker did not answer within pullTimeoutMs, or refused.
    """
    freeze_once()
    if not ranges:
        return
    process = _process(options.client, options.consumer_group, options.pull_timeout_ms)
    # Not Runner.run: it sets signal handlers at each call, which costs 0.1 ms in Python 3.11.
    run = process.loop.run_until_complete
    puller = Puller(process.client, ranges, options)
    bodies = BodyDecoder(options.columns, columns)
    losses = Losses(is_error=options.fail_on_data_loss, is_filtered=options.is_filtered)
    counts = ReadCounts() if counts is None else counts
    try:
        while True:
            started_s = elapsed_s()
            pulled = run(puller.next_portion(BATCH_ROWS, BATCH_BYTES))
            counts.waited_s += elapsed_s() - started_s
            counts.pulls = puller.pulls
            counts.pulled_bytes += sum(len(one.answer.raw) for one in pulled)
            if not pulled:
                return
            decoded = decode_answers(
                [one.answer for one in pulled],
                bodies.record_names,
                tags=options.tags,
                namespace=options.client.namespace,
            )
            puller.pull_again(losses.check(pulled, decoded))
            for batch in map(bodies.convert, decoded.batches):
                if batch.num_rows:
                    counts.rows += batch.num_rows
                    yield batch
    finally:
        # Also reached when Spark has enough rows (a limit) and closes this generator early.
        run(puller.close())


class Losses:
    """Finds the messages of a range that are deleted or cannot be decoded.

    Args:
        is_error: a loss is an error; otherwise it is logged.
        is_filtered: offsets without a message are no loss.
    """

    def __init__(self, *, is_error: bool, is_filtered: bool) -> None:
        self._is_error = is_error
        self._is_filtered = is_filtered

    def check(self, pulled: Sequence[Pulled], decoded: Decoded) -> list[QueueRange]:
        """Return the offsets that must be pulled again, because answers were not fully decoded.

        Raises:
            DataLossError: messages are lost, and that is an error.
            CodecMissingError: the package that decompresses a message is not installed.
        """
        again: list[QueueRange] = []
        for message, error in decoded.undecodable:
            self._report(
                f"message {message.msg_id} at offset {message.queue_offset} of queue "
                f"{message.queue_id} of {message.topic!r} cannot be decoded: {error}",
                "restore it",
            )
        for index, one in enumerate(pulled):
            answer = one.answer
            end, stop = answer.until, decoded.stops.get(index)
            if stop is not None and stop.offset < answer.until:
                end, resumed = stop.offset, self._resume(one, stop)
                again.append(QueueRange(answer.queue, resumed, answer.until))
            if one.is_lost or not self._is_filtered:
                # Without a filter each offset is a message. A broker skips deleted ones silently.
                bad = sum(
                    message.queue_id == answer.queue.queue_id
                    and answer.start <= message.queue_offset < end
                    for message, _ in decoded.undecodable
                )
                self._check_gap(one, end, end - answer.start - decoded.rows[index] - bad)
        return again

    def _resume(self, pulled: Pulled, stop: Stop) -> int:
        """Return the offset from which the rest of an answer is pulled again."""
        if stop.error is None or stop.offset > pulled.answer.start:
            return stop.offset
        if isinstance(stop.error, CodecMissingError):
            raise stop.error
        self._report(
            f"{name_of(pulled.answer.queue)}: the record at offset {stop.offset} cannot be "
            f"decoded: {stop.error}",
            "restore it",
        )
        return stop.offset + 1

    def _check_gap(self, pulled: Pulled, end: int, missing: int) -> None:
        answer, bounds = pulled.answer, pulled.bounds
        if bounds is None:
            self._report(
                f"{name_of(answer.queue)}: the offsets {answer.start} to {end} (exclusive) were "
                f"deleted since the read was planned ({pulled.refusal})",
                "read the new topic from its start, as a stream with a new checkpointLocation",
            )
        elif missing > 0:
            self._report(
                f"{name_of(answer.queue)}: {missing} of the offsets {answer.start} to {end} "
                "(exclusive) were deleted since the read was planned; the queue now holds "
                f"{bounds.min_offset} to {bounds.max_offset} (exclusive)",
                "raise the retention time of the broker",
            )

    def _report(self, loss: str, remedy: str) -> None:
        """Raise an error, or log a warning."""
        if self._is_error:
            raise DataLossError(
                f"{loss}; {remedy}, or set failOnDataLoss to false to continue without it"
            )
        log.warning("spark_offsets.lost reason=%s", loss)


class _Process:
    """The event loop and client of this worker process. Later tasks use the same connections."""

    def __init__(self, options: ConnectionOptions, group: str, timeout_ms: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = self.loop.run_until_complete(started_client(options, group, timeout_ms))


_process = lru_cache(maxsize=_CLIENTS_MAX)(_Process)


@cache
def freeze_once() -> None:
    """Exclude all current objects from garbage collection, once in this process.

    Spark collects garbage after every task. Traversing the objects of PySpark and pyarrow took most
    of the time of a short task.
    """
    gc.freeze()
