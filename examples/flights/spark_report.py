"""The Spark job: streams the topic into Parquet, joined with the weather, and reports at the end.

    spark_report.py NAME_SERVER PARQUET CHECKPOINT

Prints `{"batch": ...}` after each batch, the first one when the stream is ready. When its standard
input ends, it reads what is stored by then, stops, and prints `{"report": ...}`.

Each flight is in the Parquet once. Spark's file sink writes each stored message exactly once, also
if the job is killed and started again: the checkpoint has the offsets of each batch. A producer
that loses an answer sends the message again, and it may be stored twice; `dropDuplicates` removes
the second one.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, Final

from data import AIRPORTS, weather_file
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

import kourou.spark

TOPIC: Final = "flights"
CORES: Final = 2
TRIGGER: Final = "1 second"
WORST_ROUTES: Final = 10
FLIGHT: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, "
    "origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour TIMESTAMP, flight_id STRING"
)
WEATHER: Final = (
    "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, "
    "humid DOUBLE, wind_dir DOUBLE, wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, "
    "pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP"
)


def read_topic(spark: SparkSession, name_server: str) -> DataFrame:
    """Return the stream of all messages of the topic: the fields of their JSON, and store times."""
    return (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("includeProperties", "false")
        .option("bodyFormat", "json")
        .option("bodySchema", FLIGHT)
        .option("mode", "failFast")
        .load()
        .select("storeTimestamp", "body.*")
    )


def observed(messages: DataFrame) -> DataFrame:
    """Add the rows, the span of time and the mean delays of each batch to its progress event."""
    return messages.observe(
        "batch",
        F.count(F.lit(1)).alias("rows"),
        F.min("time_hour").cast("string").alias("first"),
        F.max("time_hour").cast("string").alias("last"),
        *(
            F.mean(F.when(F.col("origin") == airport, F.col("dep_delay"))).alias(airport)
            for airport in AIRPORTS
        ),
    )


def with_weather(flights: DataFrame) -> DataFrame:
    """Return the flights joined with the weather at their origin and hour, if available."""
    weather = flights.sparkSession.read.csv(
        str(weather_file()), schema=WEATHER, header=True, nullValue="NA"
    ).drop("year", "month", "day", "hour")
    return flights.join(F.broadcast(weather.cache()), ["origin", "time_hour"], "left")


def write_parquet(messages: DataFrame, parquet: str, checkpoint: str) -> StreamingQuery:
    """Start the query that writes each flight once, one directory a month."""
    flights = (
        messages.withWatermark("storeTimestamp", "10 minutes")
        .dropDuplicatesWithinWatermark(["flight_id"])
        .drop("storeTimestamp")
    )
    return (
        with_weather(flights)
        .writeStream.format("parquet")
        .option("path", parquet)
        .option("checkpointLocation", checkpoint)
        .partitionBy("month")
        .trigger(processingTime=TRIGGER)
        .start()
    )


def stop_at_end_of_input(query: StreamingQuery) -> None:
    """Wait for the end of the standard input, then for the messages stored by then, and stop."""
    sys.stdin.read()
    query.processAllAvailable()
    query.stop()


class BatchPrinter(StreamingQueryListener):  # type: ignore[misc]
    """Prints a line of JSON for each batch."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Print what was observed in a batch; Spark has committed it."""
        progress = event.progress
        batch = progress.observedMetrics["batch"].asDict()
        print_line({"batch": {**batch, "rows_per_second": progress.processedRowsPerSecond}})

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing: the main thread gets the error."""


def report(flights: DataFrame) -> dict[str, Any]:
    """Return the counts, the routes with the longest mean delay, and delays by week and carrier."""
    delay = F.mean("dep_delay").alias("delay_minutes")
    routes = flights.groupBy("origin", "dest").agg(
        F.count("dep_delay").alias("departed"),
        delay,
        F.mean("wind_speed").alias("wind_mph"),
        F.mean("visib").alias("visibility_miles"),
    )
    week = F.unix_millis(F.date_trunc("week", "time_hour")).alias("week_ms")
    return {
        "flights": flights.count(),
        "with_weather": flights.where("temp IS NOT NULL").count(),
        "worst": rows_of(routes.orderBy(F.desc_nulls_last("delay_minutes")).limit(WORST_ROUTES)),
        "weeks": rows_of(flights.groupBy("origin", week).agg(delay).orderBy("week_ms")),
        "carriers": rows_of(flights.groupBy("carrier").agg(delay).orderBy(F.desc("delay_minutes"))),
    }


def print_line(document: dict[str, Any]) -> None:
    """Print a line of JSON at once."""
    print(json.dumps(document), flush=True)


def rows_of(table: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a small table."""
    return [row.asDict() for row in table.collect()]


def main(name_server: str, parquet: str, checkpoint: str) -> None:
    """Run the stream until the standard input ends, then print the report."""
    spark = kourou.spark.session("flights", cores=CORES)
    spark.streams.addListener(BatchPrinter())
    query = write_parquet(observed(read_topic(spark, name_server)), parquet, checkpoint)
    threading.Thread(target=stop_at_end_of_input, args=[query], daemon=True).start()
    query.awaitTermination()
    print_line({"report": report(spark.read.parquet(parquet).cache())})
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
