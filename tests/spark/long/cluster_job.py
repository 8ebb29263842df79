"""Program of `test_deployment.py`: reads a topic as a batch and as a stream, and writes to another.

    cluster_job.py NAMESRV SOURCE SINK DIRECTORY MODE

MODE is `shipped`, for a Kourou that came by `--py-files`, or `installed`. Prints a JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import kourou.spark


def homes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return where the worker runs, and where it found Kourou."""
    import kourou  # noqa: PLC0415 - the worker's

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pylist(
        [
            {
                "directory": str(Path.cwd().resolve()),
                "kourou": str(Path(kourou.__file__).resolve()),
                "rows": rows,
            }
        ]
    )


def main() -> None:
    namesrv, source, sink, directory, mode = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    if mode == "shipped":
        kourou.spark.register(spark)

    def read(topic: str) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameServer", namesrv)
        return reader.option("topic", topic).option("minPartitions", 2).load()

    table = read(source)
    schema = "directory STRING, kourou STRING, rows BIGINT"
    workers = [row.asDict() for row in table.mapInArrow(homes, schema).collect()]
    stream = spark.readStream.format("rocketmq").option("nameServer", namesrv)
    stream = stream.option("topic", source).option("startingOffsets", "earliest")
    stream = stream.option("maxOffsetsPerTrigger", 500).option("minPartitions", 2)
    query = (
        stream.load()
        .selectExpr("body", "tags")
        .writeStream.format("rocketmq")
        .option("nameServer", namesrv)
        .option("topic", sink)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    result = {
        "workers": workers,
        "read": len({(row.queueId, row.queueOffset) for row in table.collect()}),
        "bodies": sorted(int(row.body) for row in kourou.spark.dedup(read(sink)).collect()),
        "batches": json.loads(query.lastProgress.json)["batchId"] + 1,
    }
    print(json.dumps(result))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main()
