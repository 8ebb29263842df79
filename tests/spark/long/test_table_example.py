"""The example that reads a topic as a Spark table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kourou.testing.process import Serving, run_command

EXAMPLE = Path(__file__).parents[3] / "examples" / "spark_table.py"


@pytest.mark.spark
@pytest.mark.slow
def test_topic_is_read_as_a_table(tmp_path: Path) -> None:
    with Serving.start(tmp_path / "store") as serving:
        for tag in ("eu", "us", "eu"):
            run_command("send", "orders", "{}", "--tag", tag, "-n", serving.namesrv)
        program = EXAMPLE.read_text().replace("localhost:9876", serving.namesrv)

        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600
        )

    rows = [line.split("|")[1:3] for line in done.stdout.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["tags", "count"],
        ["eu", "2"],
        ["us", "1"],
    ]
