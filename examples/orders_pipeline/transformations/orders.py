"""The tables of the pipeline: all orders, and their number by tag."""

import os

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession


@pipelines.table
def orders() -> DataFrame:
    """Each run appends the messages that the topic has got since the last one."""
    return (
        SparkSession.active()
        .readStream.format("rocketmq")
        .option("nameServer", os.environ.get("NAMESRV_ADDR", "localhost:9876"))
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )


@pipelines.materialized_view
def orders_by_tag() -> DataFrame:
    """Each run computes the view anew."""
    return SparkSession.active().read.table("orders").groupBy("tags").count()
