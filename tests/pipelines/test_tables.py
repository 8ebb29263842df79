"""Tests of the tables of a run: which directories may be replaced, and what a table contains."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

from kourou.errors import UsageError
from kourou.pipelines.report import Table, words
from kourou.pipelines.tables import Plans, Tables, check_replaceable


def test_an_absent_or_empty_directory_may_be_written(tmp_path: Path) -> None:
    check_replaceable(str(tmp_path / "absent"))
    check_replaceable(str(tmp_path))
    check_replaceable("hdfs://server/tables")


def test_the_rest_of_a_killed_write_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "_temporary").mkdir()
    (tmp_path / "part-00000.parquet").touch()

    check_replaceable(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "remedy"), [("_SUCCESS", "--overwrite"), ("letter.txt", "letter.txt")]
)
def test_a_directory_with_other_data_is_refused(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).touch()

    with pytest.raises(UsageError, match=remedy):
        check_replaceable(str(tmp_path))


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(UsageError, match="is a file"):
        check_replaceable(str(tmp_path / "file"))


def test_json_documents_have_words_for_names_and_utc_times() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC).astimezone().replace(tzinfo=None)
    table = Table("windows", ("windowStart", "latencyP99Ms"), [(at, 7)], 1)

    assert table.documents() == [
        {"window_start": "2026-01-02T03:04:05.678+00:00", "latency_p99_ms": 7}
    ]
    assert words("inPerSecond") == "in per second"


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_is_written_once_and_only_replaced_on_request(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = spark.range(3)
    out = str(tmp_path / "out")
    with Tables(out) as tables:
        assert tables.add("numbers", frame).count() == 3
        with pytest.raises(UsageError, match="--overwrite"):
            tables.add("numbers", frame)
    with Tables(out, overwrite=True) as tables:
        tables.add("numbers", spark.range(5))

    assert spark.read.parquet(f"{out}/numbers").count() == 5


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_without_a_directory_is_computed_once(spark: SparkSession) -> None:
    with Tables() as tables:
        numbers = tables.add("numbers", spark.range(3).withColumn("id", F.rand()))

        assert numbers.collect() == numbers.collect()


@pytest.mark.spark
@pytest.mark.slow
def test_plans_name_each_table_and_compute_none(spark: SparkSession) -> None:
    plans = Plans()
    plans.add("numbers", spark.range(3).where("raise_error('computed') IS NULL"))

    [(name, text)] = plans.texts()
    assert name == "numbers"
    assert "Physical Plan" in text


@pytest.mark.spark
@pytest.mark.slow
def test_an_appended_table_contains_the_rows_of_earlier_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("n", pa.int64())])
    out = str(tmp_path / "out")
    counts = []
    for run in range(2):
        table = Tables(out).appended("numbers", spark)
        counts.append(table.frame(schema).count())
        table.append(pa.table({"n": [run]}, schema))
        table.append(schema.empty_table())
        counts.append(table.frame(schema).count())

    assert counts == [0, 1, 1, 2]
    assert Tables().appended("numbers", spark).frame(schema).count() == 0
