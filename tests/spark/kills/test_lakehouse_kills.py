"""Streams to Delta and Iceberg tables whose driver is killed: each message is in the table once.

The driver is killed between the commit of the table and the commit of Spark's checkpoint.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kourou.model.message import Message
from tests.spark.lake_tables import TABLES, bodies

ROOT = Path(__file__).parent.parent.parent.parent
TIMEOUT_S = 900

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("table", TABLES)
def test_driver_killed_between_the_two_commits_repeats_and_loses_nothing(
    table: str, namesrv: str, publish: Callable[[Sequence[Message]], None], tmp_path: Path
) -> None:
    topic = f"killed-{table.lower()}"

    def run(*doomed: str) -> int:
        words = [sys.executable, "-m", "tests.spark.kills.killed_lakehouse", table, namesrv, topic]
        done = subprocess.run(
            [*words, str(tmp_path), *doomed],
            cwd=ROOT,
            start_new_session=True,  # so that the program kills only its own group
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-4_000:]
        return done.returncode

    publish([Message(topic, b"%d" % number) for number in range(500)])
    assert run("0") == -signal.SIGKILL
    assert run("2") == -signal.SIGKILL
    assert not (tmp_path / "orders.checkpoint" / "commits" / "2").exists()
    publish([Message(topic, b"%d" % number) for number in range(500, 700)])

    assert run() == 0

    assert (tmp_path / "orders.checkpoint" / "commits" / "3").exists()
    assert bodies(table, tmp_path) == list(range(700))
