"""The Spark job: reads the whole topic, joins it with the weather, and writes Parquet.

    spark_report.py NAME_SERVER PARQUET

Prints its results as one line of JSON. If a producer loses an answer, it sends the message again,
and it may be stored twice. Such a message is two of `rows`, but one of `flights`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from data import weather_file
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.spark.sessions import local_session

TOPIC: Final = "flights"
CORES: Final = 2
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
    """Return the keys and body of every stored message of the topic."""
    return (
        spark.read.format("rocketmq")
        .schema("keys ARRAY<STRING>, body BINARY")  # only the needed columns; default: all
        .option("nameServer", name_server)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )


def with_weather(flights: DataFrame) -> DataFrame:
    """Return the flights joined with the weather at their origin and hour, if available."""
    weather = flights.sparkSession.read.csv(
        str(weather_file()), schema=WEATHER, header=True, nullValue="NA"
    ).drop("year", "month", "day", "hour")
    return flights.join(F.broadcast(weather), ["origin", "time_hour"], "left")


def worst_routes(flights: DataFrame) -> list[dict[str, Any]]:
    """Return the routes with the longest mean delay at departure, the longest first."""
    routes = (
        flights.groupBy("origin", "dest")
        .agg(
            F.count("dep_delay").alias("departed"),
            F.mean("dep_delay").alias("delay_minutes"),
            F.mean("wind_speed").alias("wind_mph"),
            F.mean("visib").alias("visibility_miles"),
        )
        .orderBy(F.desc_nulls_last("delay_minutes"))
    )
    return [row.asDict() for row in routes.limit(WORST_ROUTES).collect()]


def main(name_server: str, parquet: str) -> None:
    """Run the job and print its result."""
    spark = local_session("flights", cores=CORES)
    started_at = time.perf_counter()
    # Rows are counted by an observation, so that the topic is read only once.
    stored = Observation("stored")
    flights = (
        read_topic(spark, name_server)
        .observe(stored, F.count(F.lit(1)).alias("rows"))
        .select(F.col("keys")[0].alias("key"), F.col("body").cast("string"))
        .dropDuplicates(["key"])
        .select(F.from_json("body", FLIGHT).alias("flight"))
        .select("flight.*")
    )
    with_weather(flights).write.mode("overwrite").partitionBy("carrier").parquet(parquet)
    written = spark.read.parquet(parquet)
    result = {
        "rows": stored.get["rows"],
        "flights": written.count(),
        "with_weather": written.where("temp IS NOT NULL").count(),
        "worst": worst_routes(written),
        "seconds": time.perf_counter() - started_at,
    }
    print(json.dumps(result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
