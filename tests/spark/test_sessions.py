"""Tests of Spark sessions: recommended settings, and a session that is already active."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import SparkSession

import kourou.spark
from kourou.spark.sessions import RECOMMENDED_CONFIG, missing_settings

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_local_session_has_the_recommended_settings(spark: SparkSession) -> None:
    assert missing_settings(spark) == {}


def test_active_session_is_returned_unchanged(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")

    found = kourou.spark.session("other", cores=7)  # a new one would have 7 partitions

    assert found.sparkContext is spark.sparkContext
    assert found.conf.get("spark.sql.shuffle.partitions") == before


def test_active_session_without_a_recommended_setting_is_named(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    [name] = [key for key in RECOMMENDED_CONFIG if "checkpointFileManager" in key]
    value = spark.conf.get(name)
    spark.conf.unset(name)
    try:
        with caplog.at_level(logging.WARNING):
            kourou.spark.session("other")
    finally:
        spark.conf.set(name, value)

    assert f"spark_setting.missed name={name}" in caplog.text


def test_speculation_is_warned_of(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kourou.spark.register(spark)
    assert "speculation" not in caplog.text
    monkeypatch.setattr(
        type(spark.conf), "get", lambda _, key, default=None: {"spark.speculation": "true"}.get(key)
    )

    kourou.spark.register(spark)

    assert "spark_speculation.enabled setting=spark.speculation" in caplog.text
