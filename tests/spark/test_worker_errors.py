"""Tests of errors of the data source: the text first, the traceback behind it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kourou.errors import ConfigError, DataLossError
from kourou.spark.worker_errors import text_first


@text_first
def fail() -> None:
    raise DataLossError("queue 0 is truncated")


@text_first
def fail_later() -> Iterator[int]:
    yield 1
    raise ConfigError("topic is blank")


def test_error_in_a_program_of_the_user_is_raised_as_it_is() -> None:
    with pytest.raises(DataLossError) as caught:
        fail()
    assert not getattr(caught.value, "__notes__", [])
    values = fail_later()
    assert next(values) == 1
    with pytest.raises(ConfigError):
        next(values)
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"startingOffset": "earliest"}, "unknown option 'startingoffset': did you mean"),
        ({"startingOffsets": "soon"}, "startingOffsets is 'soon': expected earliest"),
    ],
)
def test_wrong_option_is_reported_in_one_line(
    spark: SparkSession, options: dict[str, str], reported: str
) -> None:
    reader = spark.read.format("rocketmq").option("nameServer", "n:1").option("topic", "t")

    with pytest.raises(PySparkException) as caught:
        reader.options(**options).load()

    first, *others = str(caught.value).strip().splitlines()
    assert f"kourou.errors.ConfigError: {reported}" in first
    assert others == [" SQLSTATE: 38000"]


@pytest.mark.spark
@pytest.mark.slow
def test_absent_topic_is_reported_before_the_traceback(spark: SparkSession, namesrv: str) -> None:
    reader = spark.read.format("rocketmq").option("nameServer", namesrv)

    with pytest.raises(PySparkException) as caught:
        reader.option("topic", "no_such_topic").load().count()

    first, *others = str(caught.value).splitlines()
    assert "kourou.errors.NoRouteError: " in first
    assert "no_such_topic" in first
    assert others[0] == "Traceback (most recent call last):"
