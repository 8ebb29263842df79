"""Spark's workers run with the Python of the session, whatever the search path names first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNSET_PROGRAM = """
import os
from kourou.spark.sessions import local_session
assert "PYSPARK_PYTHON" not in os.environ
spark = local_session("unset")
spark.sparkContext.setLogLevel("OFF")
try:
    spark.read.format("rocketmq").load()
except Exception as error:
    print("nameServer is missing" in str(error))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_session_finds_the_source_outside_an_activated_environment(tmp_path: Path) -> None:
    for name in ("python", "python3"):
        other = tmp_path / name  # where Spark looks for the Python of its workers by default
        other.write_text("#!/bin/sh\necho another Python >&2; exit 1\n")
        other.chmod(0o755)
    inherited = {key: text for key, text in os.environ.items() if key != "PYSPARK_PYTHON"}

    done = subprocess.run(
        [sys.executable, "-c", UNSET_PROGRAM],
        env={**inherited, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )

    assert done.stdout == "True\n", done.stderr
