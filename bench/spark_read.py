"""Measures reads of a topic by Spark from a live broker, beside Spark's own ceiling.

    python -m bench.spark_read [--messages N] [--body-bytes N] [--pull-size N] [--rounds N]

Fills a store, starts a broker on it, and reads the topic to `noop` and to Parquet, in batch and by
a stream with Trigger.AvailableNow. The log is in the page cache. The ceiling is a Python data
source that returns one prebuilt Arrow batch of the same rows again and again. `--pull-size` is the
broker's maxTransferCountOnMessageInMemory, whose default is 32 as in RocketMQ.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.spark_store import fill, to_noop
from kourou.client.administration.admin import AdminClient
from kourou.model.queue import MessageQueue
from kourou.spark.planning import QueueRange
from kourou.spark.range_reader import read_ranges
from kourou.spark.read_options import parse_read_options
from kourou.spark.schema import COLUMNS, ddl
from kourou.spark.sessions import local_session
from kourou.testing.process import Serving

BROKER: Final = "bench"
TASKS: Final = 4


class Prebuilt(DataSource):  # type: ignore[misc]  # PySpark is Any to us
    """Source of the same Arrow batch again and again; the option `file` has it."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return ddl()

    def reader(self, schema: StructType) -> PrebuiltReader:  # noqa: ARG002 - Spark's
        return PrebuiltReader(self.options["file"], int(self.options["count"]))


class PrebuiltReader(DataSourceReader):  # type: ignore[misc]
    """Reader of `TASKS` tasks with `count` rows together."""

    def __init__(self, file: str, count: int) -> None:
        self._file = file
        self._count = count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self._count // TASKS)] * TASKS

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(self._file) as opened:
            batch = opened.get_batch(0)
        left = partition.value
        while left > 0:
            yield batch.slice(0, left)
            left -= len(batch)


@contextmanager
def filled_topic(
    work: str, messages: int, body_bytes: int, pull_size: int
) -> Iterator[tuple[Serving, int]]:
    """Run a broker with a filled topic; yield it, and the bytes of its log.

    Args:
        work: directory for the store and the configuration.
        messages: their number.
        body_bytes: size of each body.
        pull_size: most messages of a pull from memory.
    """
    store, config = Path(work, "store"), Path(work, "broker.conf")
    store.mkdir()
    # The store is old; its broker must not delete it.
    config.write_text(
        f"brokerName={BROKER}\nfileReservedTime=1000000\n"
        f"maxTransferCountOnMessageInMemory={pull_size}\n"
    )
    size = fill(store, messages, body_bytes)
    with Serving.start(store, "--config", str(config), "--no-console") as serving:
        asyncio.run(create_topic(serving.namesrv))
        yield serving, size


def write_batch(namesrv: str, file: str) -> None:
    """Write a batch of the topic's rows to a file, for the source `Prebuilt`."""
    batch = next(first_batch(namesrv))
    with pa.OSFile(file, "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


async def create_topic(namesrv: str) -> None:
    """Give the broker the topic of the queues in its store."""
    async with AdminClient(namesrv) as admin:
        await admin.create_topic("orders", queues=4)


def read(
    spark: SparkSession, namesrv: str, *, is_stream: bool = False, starting: str = "earliest"
) -> DataFrame:
    """Return the topic as a DataFrame."""
    source = (spark.readStream if is_stream else spark.read).format("rocketmq")
    return (
        source.option("nameServer", namesrv)
        .option("topic", "orders")
        .option("startingOffsets", starting)
        .load()
    )


def stream(spark: SparkSession, namesrv: str, sink: str, directory: str) -> None:
    """Read the topic by a stream of one batch."""
    checkpoint = tempfile.mkdtemp(dir=directory)
    writer = read(spark, namesrv, is_stream=True).writeStream.format(sink)
    if sink == "parquet":
        writer = writer.option("path", tempfile.mkdtemp(dir=directory))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


def read_alone(namesrv: str, count: int) -> tuple[int, float]:
    """Read the topic in this process; return the rows and the CPU seconds of the process."""
    options = parse_read_options({"nameServer": namesrv, "topic": "orders"}, is_stream=False)
    start = time.process_time()
    ranges = [QueueRange(MessageQueue("orders", BROKER, n), 0, count // 4) for n in range(4)]
    rows = sum(len(batch) for batch in read_ranges(ranges, options, tuple(COLUMNS)))
    return rows, time.process_time() - start


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, run: Callable[[], object], rounds: int, count: int) -> float:
    """Print the rates of all rounds; return the best, in rows/s."""
    rates = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        rates.append(count / (time.perf_counter() - start))
    texts = " ".join(f"{rate / 1e3:.0f}" for rate in rates)
    print(f"{name:34} {max(rates) / 1e3:6.0f} k rows/s   rounds: {texts}", flush=True)
    return max(rates)


def compare(spark: SparkSession, serving: Serving, count: int, rounds: int, work: str) -> None:
    """Measure the reads and the ceiling, and print the ratios."""
    namesrv, pid = serving.namesrv, serving.process.pid
    before_s = cpu_s(pid)
    noop = measure("topic to noop", lambda: to_noop(read(spark, namesrv)), rounds, count)
    used_s = (cpu_s(pid) - before_s) / rounds
    print(f"broker: {used_s / count * 1e6:.1f} us of CPU a row")
    parquet = str(Path(work, "parquet"))

    def to_parquet() -> None:
        read(spark, namesrv).write.mode("overwrite").parquet(parquet)

    files = measure("topic to Parquet", to_parquet, rounds, count)
    measure("AvailableNow to noop", lambda: stream(spark, namesrv, "noop", work), rounds, count)
    measure(
        "AvailableNow to Parquet", lambda: stream(spark, namesrv, "parquet", work), rounds, count
    )
    file = str(Path(work, "batch.arrow"))
    write_batch(namesrv, file)
    spark.dataSource.register(Prebuilt)
    prebuilt = spark.read.format("prebuilt").option("file", file).option("count", count).load()
    ceiling = measure("prebuilt Arrow to noop", lambda: to_noop(prebuilt), rounds, count)
    write = prebuilt.write.mode("overwrite")
    files_ceiling = measure("prebuilt Arrow to Parquet", lambda: write.parquet(parquet), 1, count)
    print(f"of the ceiling: noop {noop / ceiling:.2f}, Parquet {files / files_ceiling:.2f}")


def first_batch(namesrv: str, rows: int = 1_000) -> Iterator[pa.RecordBatch]:
    """Yield batches with the first rows of the first queue, read in this process."""
    options = parse_read_options({"nameServer": namesrv, "topic": "orders"}, is_stream=False)
    queue = MessageQueue("orders", BROKER, 0)
    return read_ranges([QueueRange(queue, 0, rows)], options, tuple(COLUMNS))


def main() -> None:
    """Run the measurements and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--pull-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as work,
        filled_topic(work, args.messages, args.body_bytes, args.pull_size) as (serving, size),
    ):
        print(
            f"{args.messages} messages of {args.body_bytes} random bytes, log of "
            f"{size / 1e6:.0f} MB in the page cache, pulls of {args.pull_size}"
        )
        rows, used_s = read_alone(serving.namesrv, args.messages)
        print(f"read alone: {rows} rows, {used_s / rows * 1e6:.1f} us of CPU a row")
        spark = local_session("spark-read", cores=2)
        spark.sparkContext.setLogLevel("ERROR")
        compare(spark, serving, args.messages, args.rounds, work)
        spark.stop()


if __name__ == "__main__":
    main()
