"""Program of `test_write_kills.py`: streams text files to a topic.

    killed_write.py NAMESRV TOPIC DIRECTORY MODE

MODE is `slow`, so that a test can kill it in a batch; `fast`; `dying`, which kills a worker of
the first try of each task, after some of its rows are sent; or `executor`, which kills an executor
of a cluster of two in each batch instead.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from kourou.spark.sessions import local_session
from tests.spark.deployed import LOCAL_CLUSTER
from tests.spark.kills.executors import kill_executor


def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number == 25 and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def kill_executor_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number == 25 and context.attemptNumber() == 0 and context.partitionId() == 0:
            kill_executor()
        yield batch


DOOMED = {"dying": die_once, "executor": kill_executor_once}


def main() -> None:
    namesrv, topic, directory, mode = sys.argv[1:]
    home = Path(directory)
    config = {
        "spark.master": LOCAL_CLUSTER if mode == "executor" else "local[2,4]",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
    }
    spark = local_session("killed", config=config)
    spark.sparkContext.setLogLevel("OFF")
    source = spark.readStream.format("text").option("maxFilesPerTrigger", 2)
    frame = source.load(str(home / "in")).withColumnRenamed("value", "body")
    if mode in DOOMED:
        # Wide rows, because Spark buffers 64 KiB between two workers.
        wide = frame.selectExpr("rpad(body, 400, ' ') AS body")
        frame = wide.mapInArrow(DOOMED[mode], "body STRING")
    writer = frame.writeStream.format("rocketmq").option("nameServer", namesrv)
    writer = writer.option("topic", topic).option("checkpointLocation", str(home / "checkpoint"))
    if mode == "slow":
        writer = writer.option("batchSize", 1).option("sendMaxInFlight", 1)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
