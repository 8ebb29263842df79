"""Program of `test_connect.py`: a client of Spark Connect.

    connect_job.py REMOTE NAMESRV SOURCE SINK DIRECTORY

Prints a JSON object. A client needs a process of its own: PySpark takes one mode a process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import kourou.spark


def main() -> None:
    remote, namesrv, source, sink, directory = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    options = {"nameServer": namesrv, "topic": source}
    table = spark.read.format("rocketmq").options(**options).load()
    result: dict[str, object] = {"found_by_name": table.count()}
    kourou.spark.register(spark)
    active = kourou.spark.session("other", config={"spark.sql.shuffle.partitions": "3"})
    result["is_active"] = active is spark
    result["partitions"] = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        spark.read.format("rocketmq").option("topik", source).load().collect()
    except PySparkException as error:
        result["error"] = str(error).splitlines()[0]

    stream = spark.readStream.format("rocketmq").options(**options)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 300)
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", f"{directory}/output")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    output = spark.read.parquet(f"{directory}/output")
    result["streamed"] = output.select("queueId", "queueOffset").distinct().count()

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.select("body").write.format("rocketmq").option("nameServer", namesrv)
        rows.option("topic", sink).option("writeId", f"copy-{number}").mode("append").save()

    query = (
        stream.load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", f"{directory}/copies")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    written = spark.read.format("rocketmq").options(**{**options, "topic": sink}).load()
    result["written"] = sorted(int(row.body) for row in kourou.spark.dedup(written).collect())
    Path(directory, "result.json").write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main()
