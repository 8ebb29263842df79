"""Tests of Spark sessions: recommended settings, and a session that is already active."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
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


def test_workers_import_pyspark_from_its_directory_which_has_compiled_files(
    spark: SparkSession,
) -> None:
    def origin(_: Iterator[int]) -> Iterator[str]:
        yield str(pyspark.__file__)

    [file] = spark.sparkContext.parallelize([1], 1).mapPartitions(origin).collect()

    assert "pyspark.zip" not in file
    assert "PYTHONPATH" not in os.environ or "worker_path" not in os.environ["PYTHONPATH"]


def test_archive_of_pyspark_is_left_out_if_the_path_leads_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "link").symlink_to("packages")
    archive = tmp_path / "packages" / "pyspark" / "python" / "lib" / "pyspark.zip"
    start_path = Path(kourou.spark.__file__).parent / "worker_path"

    def is_on_path(*entries: Path) -> bool:
        program = f"import sys; print({str(archive)!r} in sys.path)"
        path = os.pathsep.join(map(str, (start_path, archive, *entries)))
        run = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout == "True\n"

    assert not is_on_path(tmp_path / "link")
    assert is_on_path()  # nothing else has the package


def test_workers_still_run_the_start_file_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('of the machine')")
    start_path = Path(kourou.spark.__file__).parent / "worker_path"

    ended = subprocess.run(
        [sys.executable, "-c", f"import sys; print({str(start_path)!r} in sys.path)"],
        env={"PYTHONPATH": f"{start_path}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert (ended.stdout, ended.stderr) == ("of the machine\nFalse\n", "")
