"""Program of test_stream_kills: streams a topic into Parquet files, and kills itself on request.

Usage: killed_stream.py NAMESRV TOPIC DIRECTORY [KILL_AT]

KILL_AT is a file of the checkpoint, such as offsets/0: as soon as Spark writes it, the driver, its
JVM included, is killed. `worker` kills a Python worker in the middle of the first task of each
batch instead; `executor` kills its executor, on a cluster of two, in the batches 0 and 2.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from kourou.spark.sessions import local_session
from tests.spark.deployed import LOCAL_CLUSTER
from tests.spark.kills.executors import kill_executor


def main() -> None:
    namesrv, topic, directory, *rest = sys.argv[1:]
    kill_at = rest[0] if rest else ""
    checkpoint = Path(directory) / "checkpoint"
    master = LOCAL_CLUSTER if kill_at == "executor" else "local[2,4]"
    spark = local_session("killed", config={"spark.master": master})
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "500")
        .load()
    )
    if kill_at == "worker":
        rows = rows.mapInArrow(die_once, rows.schema)
    elif kill_at == "executor":
        rows = rows.mapInArrow(kill_executor_once, rows.schema)
    elif kill_at:
        threading.Thread(target=kill_when, args=(checkpoint / kill_at,), daemon=True).start()
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(Path(directory) / "output"))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def kill_when(path: Path) -> None:
    """Kill the process group as soon as the file exists."""
    never = threading.Event()
    while not path.exists():
        never.wait(0.0005)
    os.killpg(0, signal.SIGKILL)


def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches; kill the worker in the first attempt of the first task of each batch."""
    context = TaskContext.get()
    for batch in batches:
        yield batch
        if context is not None and not context.attemptNumber() and not context.partitionId():
            os.kill(os.getpid(), signal.SIGKILL)


def kill_executor_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches; kill the executor in the first attempt of a task of two batches."""
    context = TaskContext.get()
    assert context is not None
    number = context.getLocalProperty("streaming.sql.batchId")
    for batch in batches:
        yield batch
        if number in {"0", "2"} and not context.attemptNumber() and not context.partitionId():
            kill_executor()


if __name__ == "__main__":
    main()
