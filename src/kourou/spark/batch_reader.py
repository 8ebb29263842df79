"""Batch reads: planned once as fixed ranges, then read by tasks in Spark's worker processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kourou.errors import DataLossError, TransportError
from kourou.spark.cluster import ClusterClient
from kourou.spark.planning import QueueRange, plan_ranges
from kourou.spark.range_reader import read_ranges, tasks_of
from kourou.spark.read_options import ReadOptions
from kourou.spark.worker_errors import text_first

log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):  # type: ignore[misc]  # PySpark is Any to us
    """Reader of one DataFrame: plans in Spark's planning process, is pickled, reads in workers."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    @text_first
    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task; its value is a tuple of `QueueRange`.

        Raises:
            DataLossError: a queue does not hold a requested offset, and failOnDataLoss is true.
            KourouError: the options do not fit the topics, or no server answered.
        """
        tasks = tasks_of(asyncio.run(_plan(self._options)), self._options)
        # Spark would turn an empty list into one partition with the value None.
        return tasks or [InputPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows as Arrow batches; raises as `read_ranges`."""
        return read_ranges(partition.value, self._options, self._columns)


async def _plan(options: ReadOptions) -> tuple[QueueRange, ...]:
    """Query the offsets of all queues, and return the ranges to read."""
    async with ClusterClient(
        options.client, options.consumer_group, options.pull_timeout_ms
    ) as client:
        view = await client.view(options.source)
        for broker_name, reason in sorted(view.silent.items()):
            raise TransportError(f"broker {broker_name!r} does not answer: {reason}")
        starts = await client.settle(options.starting, view.bounds)
        ends = await client.settle(options.ending, view.bounds)
    plan = plan_ranges(
        view.bounds,
        starts,
        ends,
        options=(options.starting.option, options.ending.option),
        topic_begins=view.topic_begins,
    )
    if plan.losses and options.fail_on_data_loss:
        raise DataLossError("; ".join(plan.losses))
    for loss in plan.losses:
        log.warning("spark_offsets.clamped reason=%s", loss)
    return plan.ranges
