"""Measures the rate of Spark writes to a live broker, beside a sink that discards its rows.

    python -m bench.spark_write [--rows N] [--rounds N] [--flush async|sync]
                                [--body random|json] [--option NAME=VALUE]

Each round writes the same DataFrame of 1 KB bodies, cached in Spark's memory, to both sinks, on two
cores that Spark shares with the broker. The discarding sink is Spark's own ceiling: it receives the
same Arrow batches. The goal is 60,000 rows a second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kourou.client.administration.admin import AdminClient
from kourou.spark.sessions import local_session
from kourou.testing.process import Serving

BODY_BYTES: Final = 1_024
QUEUES: Final = 4
_BODIES: Final = {
    "random": f"unhex(substring(repeat(sha2(CAST(id AS STRING), 512), 16), 1, {2 * BODY_BYTES}))",
    "json": f"CAST(rpad(to_json(struct(id, 'flight' AS kind)), {BODY_BYTES}, ' ') AS BINARY)",
}


@dataclass
class _Done(WriterCommitMessage):  # type: ignore[misc]  # PySpark is Any to us
    rows: int


class _DiscardingWriter(DataSourceArrowWriter):  # type: ignore[misc]  # PySpark is Any to us
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Done:
        return _Done(sum(batch.num_rows for batch in iterator))


class DiscardingSink(DataSource):  # type: ignore[misc]  # PySpark is Any to us
    """Sink that receives Arrow batches and does nothing."""

    @classmethod
    def name(cls) -> str:
        return "discarding"

    def writer(self, schema: StructType, overwrite: bool) -> _DiscardingWriter:  # noqa: ARG002, FBT001
        return _DiscardingWriter()


def _frame(spark: SparkSession, rows: int, body: str) -> DataFrame:
    frame = spark.range(0, rows, 1, 2).selectExpr(f"{_BODIES[body]} AS body").cache()
    frame.count()
    return frame


def _measure(frame: DataFrame, form: str, options: dict[str, str]) -> float:
    """Return the rows per second of one write."""
    rows: int = frame.count()
    began_s = time.monotonic()
    frame.write.format(form).options(**options).mode("append").save()
    return rows / (time.monotonic() - began_s)


async def _create_topic(namesrv_addr: str) -> None:
    async with AdminClient(namesrv_addr) as admin:
        await admin.create_topic("bench-spark-write", queues=QUEUES)


def main() -> None:
    """Print the rates of each round, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--body", choices=tuple(_BODIES), default="random")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        config = {"spark.sql.warehouse.dir": str(home), "spark.driver.memory": "4g"}
        spark = local_session("bench-spark-write", config=config)
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(DiscardingSink)
        frame = _frame(spark, arguments.rows, arguments.body)
        server_options = ("--profile", "prod", "--flush", arguments.flush, "--no-console")
        with Serving.start(home / "store", *server_options) as serving:
            asyncio.run(_create_topic(serving.namesrv))
            options = {
                "nameServer": serving.namesrv,
                "topic": "bench-spark-write",
                "writeId": "bench",
                **dict(option.split("=", 1) for option in arguments.option),
            }
            rounds = []
            for number in range(arguments.rounds):
                ceiling = _measure(frame, "discarding", {})
                rate = _measure(frame, "rocketmq", options)
                print(f"round {number}: discard {ceiling:10,.0f}  rocketmq {rate:10,.0f} rows/s")
                rounds.append((ceiling, rate))
        spark.stop()
    later = rounds[1:] or rounds  # the first round starts workers
    ceiling, rate = (statistics.median(column) for column in zip(*later, strict=True))
    print(
        f"median: discard {ceiling:,.0f}, rocketmq {rate:,.0f} rows/s, ratio {rate / ceiling:.2f}"
    )


if __name__ == "__main__":
    main()
