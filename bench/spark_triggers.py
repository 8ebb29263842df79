"""Measures the latency of streaming triggers while a producer sends, beside Spark's own ceiling.

    python -m bench.spark_triggers [--rate N] [--seconds N] [--warm-seconds N] [--body-bytes N]

A process sends messages of random bytes to a live broker at a fixed rate, in batches. A stream with
processingTime=0 reads them, first to `noop`, then to Parquet. The figures are percentiles of
`triggerExecution` in Spark's progress events: a trigger plans, reads, writes and commits one
micro-batch. The ceiling is a stream of one prebuilt Arrow batch of the same rows, again and again,
at the same rate, with the same producer running. All share two cores. The goals are a p50 of 400 ms
to `noop` and of 800 ms to Parquet at 40,000 messages a second of 1 KB.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from bench.spark_read import BROKER, TASKS, create_topic, first_batch, read
from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.spark.schema import ddl
from kourou.spark.sessions import local_session
from kourou.testing.process import Serving

TOPIC: Final = "orders"
SENT_TOGETHER: Final = 200
SENDERS: Final = 4
"""Maximum number of batches in flight."""
GOALS_MS: Final = {"noop": 400, "parquet": 800}
START_LIMIT_S: Final = 120.0
STOP_LIMIT_S: Final = 30.0


class Paced(DataSource):  # type: ignore[misc]  # PySpark is Any to us
    """Stream of the Arrow batch in the option `file`, with `rate` rows a second from now on."""

    @classmethod
    def name(cls) -> str:
        return "paced"

    def schema(self) -> str:
        return ddl()

    def streamReader(self, schema: StructType) -> PacedReader:  # noqa: ARG002, N802 - Spark's
        return PacedReader(self.options["file"], int(self.options["rate"]))


class PacedReader(DataSourceStreamReader):  # type: ignore[misc]
    """Reader whose offsets are numbers of rows; each batch has `TASKS` tasks."""

    def __init__(self, file: str, rate: int) -> None:
        self._file = file
        self._rate = rate
        self._began_s = time.time()  # also in another process, which gets a pickled copy

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:  # noqa: ARG002, N802
        return {"rows": int((time.time() - self._began_s) * self._rate)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        rows, more = divmod(end["rows"] - start["rows"], TASKS)
        return [InputPartition(rows + (number < more)) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_file(self._file) as opened:
            batch = opened.get_batch(0)
        left = partition.value
        while left > 0:
            yield batch.slice(0, left)
            left -= len(batch)


@dataclass(frozen=True)
class Triggers:
    """Micro-batches of one query that had rows.

    Attributes:
        durations_ms: duration of each trigger.
        rows: rows of all of them together.
        seconds: duration of the measurement.
    """

    durations_ms: Sequence[int]
    rows: int
    seconds: float

    def percentile(self, share: float) -> int:
        """Return the duration that this share of the triggers does not exceed, in ms."""
        ordered = sorted(self.durations_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def produce(namesrv: str, rate: int, body_bytes: int) -> None:
    """Send messages at the rate until the process is terminated.

    Prints `ready` when the first queue has its first batch.
    """
    messages = [Message(TOPIC, os.urandom(body_bytes)) for _ in range(SENT_TOGETHER)]
    async with Producer("bench-triggers", namesrv) as producer:
        await producer.send_batch(messages, queue=MessageQueue(TOPIC, BROKER, 0))
        print("ready", flush=True)
        began_s = time.monotonic()

        async def send() -> None:
            sent = 0
            while True:
                due_s = began_s + sent * SENDERS / rate
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))  # a late one is caught up
                await producer.send_batch(messages)
                sent += len(messages)

        await asyncio.gather(*(send() for _ in range(SENDERS)))


@contextmanager
def producing(namesrv: str, rate: int, body_bytes: int) -> Iterator[None]:
    """Run the producer in another process.

    Raises:
        RuntimeError: it ended by itself.
    """
    arguments = ["--produce", namesrv, "--rate", str(rate), "--body-bytes", str(body_bytes)]
    command = [sys.executable, "-m", "bench.spark_triggers", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the producer ended with {process.returncode}")
    finally:
        process.terminate()
        process.wait(STOP_LIMIT_S)


def run_query(
    stream: DataFrame, sink: str, directory: str, warm_s: float, seconds: float
) -> Triggers:
    """Run a query for a time; return its triggers after the warm-up.

    Raises:
        RuntimeError: no trigger ended in time.
    """
    writer = stream.writeStream.format(sink).trigger(processingTime="0 seconds")
    if sink == "parquet":
        writer = writer.option("path", tempfile.mkdtemp(dir=directory))
    query = writer.option("checkpointLocation", tempfile.mkdtemp(dir=directory)).start()
    try:
        _wait_for_rows(query)
        query.awaitTermination(warm_s)
        first, began_s = query.lastProgress.batchId, time.monotonic()
        query.awaitTermination(seconds)
        taken_s = time.monotonic() - began_s
        found = [one for one in query.recentProgress if one.batchId > first and one.numInputRows]
    finally:
        query.stop()
    if not found:
        raise RuntimeError(f"no trigger ended within {seconds:.0f} s: raise --seconds")
    durations_ms = [one.durationMs["triggerExecution"] for one in found]
    return Triggers(durations_ms, sum(one.numInputRows for one in found), taken_s)


def _wait_for_rows(query: Any) -> None:  # noqa: ANN401 - PySpark is Any to us
    deadline_s = time.monotonic() + START_LIMIT_S
    while not any(one.numInputRows for one in query.recentProgress):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no batch had rows within {START_LIMIT_S:.0f} s")
        query.awaitTermination(0.1)


def compare(spark: SparkSession, namesrv: str, args: argparse.Namespace, work: str) -> None:
    """Measure both sources with both sinks, and print the ratios."""
    file = str(Path(work, "batch.arrow"))
    spark.dataSource.register(Paced)
    with producing(namesrv, args.rate, args.body_bytes):
        batch = next(first_batch(namesrv, SENT_TOGETHER))
        with pa.OSFile(file, "wb") as target, pa.ipc.new_file(target, batch.schema) as writer:
            writer.write_batch(batch)
        paced = (
            spark.readStream.format("paced").option("file", file).option("rate", args.rate).load()
        )
        for sink, goal_ms in GOALS_MS.items():
            medians = []
            topic = read(spark, namesrv, is_stream=True, starting="latest")
            for name, stream in (("topic", topic), ("prebuilt Arrow", paced)):
                found = run_query(stream, sink, work, args.warm_seconds, args.seconds)
                medians.append(found.percentile(0.5))
                print(
                    f"{name + ' to ' + sink:26} p50 {found.percentile(0.5):5} ms  "
                    f"p99 {found.percentile(0.99):5} ms  {len(found.durations_ms):4} triggers  "
                    f"{found.rows / found.seconds / 1e3:6.1f} k rows/s",
                    flush=True,
                )
            ratio = medians[0] / max(1, medians[1])
            print(f"{sink}: p50 {ratio:.2f} times that of the ceiling; goal {goal_ms} ms")


def main() -> None:
    """Run the measurements and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=int, default=40_000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=30, help="duration of each measurement")
    parser.add_argument("--warm-seconds", type=float, default=10)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--produce", metavar="NAMESRV", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.produce is not None:
        asyncio.run(produce(args.produce, args.rate, args.body_bytes))
        return
    with tempfile.TemporaryDirectory() as work:
        store, config = Path(work, "store"), Path(work, "broker.conf")
        store.mkdir()
        config.write_text(f"brokerName={BROKER}\nmaxTransferCountOnMessageInMemory=256\n")
        with Serving.start(store, "--config", str(config), "--no-console") as serving:
            asyncio.run(create_topic(serving.namesrv))
            print(f"{args.rate} messages/s of {args.body_bytes} random bytes, pulls of 256")
            settings = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
            spark = local_session("spark-triggers", cores=2, config=settings)
            # A stopped query logs its cancelled tasks as errors.
            spark.sparkContext.setLogLevel("OFF")
            compare(spark, serving.namesrv, args, work)
            spark.stop()


if __name__ == "__main__":
    main()
