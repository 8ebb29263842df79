"""Tests of how Spark finds the data source by the module `pyspark_rocketmq`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark_rocketmq
from kourou.spark.source import RocketMQDataSource


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


def with_path(directory: Path) -> dict[str, str]:
    """Return the environment with `directory` first on PYTHONPATH."""
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}
