"""Tests of how Spark finds the data source by the module `pyspark_rocketmq`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_rocketmq
from kourou.spark.source import RocketMQDataSource

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


def test_the_module_names_the_source_and_nothing_else() -> None:
    assert pyspark_rocketmq.DefaultSource is RocketMQDataSource
    assert RocketMQDataSource.name() == "rocketmq"


def test_importing_the_module_never_raises(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise RuntimeError('broken')")

    done = subprocess.run(
        [sys.executable, "-c", "import pyspark_rocketmq as m; print(hasattr(m, 'DefaultSource'))"],
        env=with_path(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "False\n"
    assert "pip install 'kourou[spark]'" in done.stderr
    assert "RuntimeError: broken" in done.stderr


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


def with_path(directory: Path) -> dict[str, str]:
    """Return the environment with `directory` first on PYTHONPATH."""
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}
