"""Program of `test_tracked_deployments.py`: a tracked stream on a cluster, or with Spark Connect.

    tracked_job.py cluster|connect NAMESRV TOPIC

On the cluster, the first attempt of one task of each batch kills its worker. Prints the metrics of
the stream's last batch, and whether the tracker had a receiver, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

import kourou.spark


def main() -> None:
    mode, namesrv, topic = sys.argv[1:]
    is_cluster = mode == "cluster"
    if is_cluster:
        master = {"spark.master": "local-cluster[2,1,1024]"}
        spark = kourou.spark.session("tracked", config=master)
    else:
        spark = SparkSession.builder.remote("local[2]").getOrCreate()  # starts a server
    with kourou.spark.track(spark) as tracker:
        assert kourou.spark.track(spark) is tracker
        rows = (
            spark.readStream.format("rocketmq")
            .option("nameServer", namesrv)
            .option("topic", topic)
            .option("startingOffsets", "earliest")
            .option("minPartitions", "2")
            .option("commitGroup", f"{topic}-progress")
            .load()
        )
        if is_cluster:
            rows = rows.mapInArrow(die_once, rows.schema)
        query = rows.writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination()
        progress = tracker.latest(query)
        has_receiver = tracker.port is not None
    assert progress is not None
    json.dump({**progress.metrics, "hasReceiver": has_receiver}, sys.stdout)
    sys.stdout.flush()
    spark.stop()


def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches; at their end, kill the worker in the first attempt of a task."""
    context = TaskContext.get()
    yield from batches
    if context is not None and not context.attemptNumber() and not context.partitionId():
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
