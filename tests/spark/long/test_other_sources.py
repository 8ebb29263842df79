"""Tests of Spark's data source beside those of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from kourou.spark.sessions import local_session, register
spark = local_session("neighbour")
spark.sparkContext.setLogLevel("OFF")
try:
    spark.read.format("rocketmq").load()
except Exception as error:
    print("DATA_SOURCE_NOT_FOUND" in str(error))
register(spark)
try:
    spark.read.format("rocketmq").load()
except Exception as error:
    print("nameServer is missing" in str(error))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_failing_other_data_source_hides_the_source_until_it_is_registered(tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('broken')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )

    assert done.stdout.splitlines() == ["True", "True"]
