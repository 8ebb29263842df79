"""Program of `test_secrets`: reads and writes with credentials, and records what Spark shows.

    python -m tests.spark.signed_jobs NAME_SERVER DIRECTORY

The secrets are in the environment. Everything that Spark or Kourou shows goes to files below
DIRECTORY, or to stderr.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

import kourou.spark
from kourou.auth.credentials import SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE
from kourou.spark.source import RocketMQDataSource
from kourou.spark.write_options import parse_write_options

TOPIC = "signed"
API = ("environment", "sql?details=true", "jobs", "stages?details=true", "allexecutors")
PAGES = ("environment/", "SQL/", "SQL/execution/?id=0", "jobs/", "executors/", "StreamingQuery/")


def start(directory: Path) -> SparkSession:
    """Return a session with an event log and the web UI, in which executors get the secrets."""
    log = directory / "event-log"
    log.mkdir(parents=True)
    shared = {
        f"spark.executorEnv.{name}": os.environ[name]
        for name in (SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE)
    }
    config = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    session: SparkSession = kourou.spark.session("signed", config={**config, **shared})
    return session


def run_jobs(spark: SparkSession, name_server: str, directory: Path) -> dict[str, Any]:
    """Write, stream and read; return what the programs and errors show."""
    options = {"nameServer": name_server, "topic": TOPIC}
    rows = spark.range(20).select(F.col("id").cast("string").cast("binary").alias("body"))
    write = {**options, "writeId": "load-1"}
    rows.write.format("rocketmq").options(**write).mode("append").save()

    rows.write.parquet(str(directory / "rows"))
    stream = spark.readStream.schema(rows.schema).parquet(str(directory / "rows")).writeStream
    checkpoint = str(directory / "checkpoint")
    started = stream.format("rocketmq").options(**options, checkpointLocation=checkpoint)
    started.trigger(availableNow=True).start().awaitTermination()

    table = spark.read.format("rocketmq").options(**options).load()
    stream = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest")
    copied = stream.load().writeStream.format("parquet").trigger(availableNow=True)
    copied = copied.option("checkpointLocation", str(directory / "read-checkpoint"))
    copied.start(str(directory / "copied")).awaitTermination()
    table.createOrReplaceTempView("signed_topic")
    reader = RocketMQDataSource(options).reader(table.schema)
    partitions = reader.partitions()
    shown = {
        "rows": table.count(),
        "copied": spark.read.parquet(str(directory / "copied")).count(),
        "plans": [
            table._jdf.queryExecution().toString(),
            spark.sql("DESCRIBE signed_topic").toJSON().collect(),
        ],
        "reprs": [repr(vars(reader)), repr(partitions), [repr(vars(one)) for one in partitions]],
        "write": repr(parse_write_options(write, is_stream=False)),
        "pickles": [
            pickle.dumps(reader).decode("latin-1"),
            pickle.dumps(partitions).decode("latin-1"),
        ],
    }
    table.explain(extended=True)
    return shown | {"errors": refusals(spark, options)}


def refusals(spark: SparkSession, options: dict[str, str]) -> list[str]:
    """Return the errors of reads that fail: a key as an option, an absent topic or cluster."""

    def read(**more: str) -> Callable[[], object]:
        def run() -> object:
            frame: DataFrame = spark.read.format("rocketmq").options(**{**options, **more}).load()
            return frame.count()

        return run

    attempts = (
        read(secretKey=os.environ[SECRET_KEY_VARIABLE]),
        read(securityToken=os.environ[SECURITY_TOKEN_VARIABLE]),
        read(topic="absent"),
        read(nameServer="127.0.0.1:1"),
        read(startingOffsets="soon"),
    )
    errors: list[str] = []
    for attempt in attempts:
        try:
            attempt()
        except PySparkException as error:
            errors += [str(error), repr(error)]
    return errors


def fetch_ui(spark: SparkSession) -> dict[str, str]:
    """Return the pages of the web UI and the answers of its API."""
    context = spark.sparkContext
    api = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    fetched: dict[str, str] = {}
    for url in [f"{api}/{part}" for part in API] + [f"{context.uiWebUrl}/{page}" for page in PAGES]:
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - Spark's own
                fetched[url] = answer.read().decode()
        except urllib.error.HTTPError as error:
            fetched[url] = f"{error.code} {error.read().decode()}"
    return fetched


def main() -> None:
    """Run the jobs, and write what they show."""
    name_server, directory = sys.argv[1], Path(sys.argv[2])
    spark = start(directory)
    shown = run_jobs(spark, name_server, directory)
    shown["ui"] = fetch_ui(spark)
    (directory / "shown.json").write_text(json.dumps(shown), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main()
