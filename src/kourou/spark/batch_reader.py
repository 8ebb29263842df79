"""Batch reads: planned once as fixed ranges, then read by tasks in Spark's worker processes."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import cache
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kourou.auth.credentials import Credentials
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.errors import DataLossError
from kourou.model.message import MessageExt
from kourou.spark.options import ReadOptions
from kourou.spark.planning import QueueRange, pack_ranges, plan_ranges
from kourou.spark.pulls import fetch_bounds, pull_ranges
from kourou.spark.schema import build_batch

log = logging.getLogger(__name__)

BATCH_ROWS: Final = 500
"""Number of rows that completes an Arrow batch; measured faster than 2,000 and more."""

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Total size of the bodies, in bytes, that completes an Arrow batch with fewer rows."""


class BatchReader(DataSourceReader):  # type: ignore[misc]  # PySpark is Any to us
    """Reader of one DataFrame: plans in Spark's planning process, is pickled, reads in workers."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task; its value is a tuple of `QueueRange`.

        Raises:
            DataLossError: a queue does not hold a requested offset, and failOnDataLoss is true.
            KourouError: the options do not fit the topic, or no server answered.
        """
        groups = asyncio.run(_plan(self._options))
        # Spark would turn an empty list into one partition with the value None.
        return [InputPartition(group) for group in groups or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows as Arrow batches.

        Raises:
            DataLossError: planned offsets were deleted since, and failOnDataLoss is true.
            KourouError: a broker did not answer within pullTimeoutMs, or refused.
        """
        freeze_once()
        for messages in _pull_portions(partition.value, self._options):
            yield build_batch(messages, self._columns)


async def _plan(options: ReadOptions) -> list[tuple[QueueRange, ...]]:
    """Query the offsets of all queues, and divide them among the tasks."""
    async with _consumer(options) as consumer:
        bounds = await fetch_bounds(consumer, options)
    plan = plan_ranges(bounds, options.starting_offsets, options.ending_offsets)
    if plan.losses and options.fail_on_data_loss:
        raise DataLossError("; ".join(plan.losses))
    for loss in plan.losses:
        log.warning("spark_offsets.clamped reason=%s", loss)
    return pack_ranges(plan.ranges, options.max_partitions)


def _consumer(options: ReadOptions) -> PullConsumer:
    """Return the consumer of this process. It reads the credentials here, so none are pickled.

    Raises:
        CredentialsError: the file or the environment does not hold both keys.
    """
    file = options.credentials_file
    credentials = Credentials.from_environment() if file is None else Credentials.from_file(file)
    config = PullConsumerConfig(credentials=credentials)
    return PullConsumer(options.consumer_group, options.name_server, config=config)


def _pull_portions(
    ranges: Sequence[QueueRange], options: ReadOptions
) -> Iterator[list[MessageExt]]:
    """Yield the messages of the ranges; the event loop runs only while the caller waits."""
    if not ranges:
        return
    with asyncio.Runner() as runner:
        # Not runner.run: it sets signal handlers at each call, which costs 0.1 ms in Python 3.11.
        run = runner.get_loop().run_until_complete
        consumer = _consumer(options)
        run(consumer.start())
        pulled = pull_ranges(consumer, ranges, options)
        try:
            while messages := run(_collect(pulled)):
                yield messages
        finally:
            # Also reached when Spark has enough rows (a limit) and closes this generator early.
            run(pulled.aclose())
            run(consumer.close())


async def _collect(pulled: AsyncGenerator[list[MessageExt], None]) -> list[MessageExt]:
    """Return the messages of the next batch; empty at the end."""
    messages: list[MessageExt] = []
    size_bytes = 0
    async for received in pulled:
        messages += received
        size_bytes += sum(len(message.body) for message in received)
        if len(messages) >= BATCH_ROWS or size_bytes >= BATCH_BYTES:
            # One more iteration of the loop, so that it sends the next requests before it stops.
            await asyncio.sleep(0)
            break
    return messages


@cache
def freeze_once() -> None:
    """Exclude all current objects from garbage collection, once in this process.

    Spark collects garbage after every task. Traversing the objects of PySpark and pyarrow took most
    of the time of a short task.
    """
    gc.freeze()
