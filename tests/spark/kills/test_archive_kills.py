"""Tests of archives that are killed as streams: each message is archived exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from kourou.model.message import Message
from kourou.pipelines import archive
from kourou.pipelines.selection import Selection

Publish = Callable[[Sequence[Message]], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("killed_archive.py")
ROOT = Path(__file__).parents[3]


def run(namesrv: str, topic: str, directory: Path, *kill_at: str) -> int:
    """Run the stream until it has read what is there now; return its exit code."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), namesrv, topic, str(directory), *kill_at],
        start_new_session=True,  # so that the program kills only its own group
        capture_output=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-2_000:]
    return done.returncode


def test_killed_streams_batch_runs_and_compactions_archive_each_message_once(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    directory = tmp_path / "archive"
    selection = Selection(name_server=namesrv, topics=("archived",))
    options = archive.Options(
        selection=selection, directory=str(directory), compact_below_bytes=1 << 20
    )
    publish([Message("archived", b"%d" % n) for n in range(1_500)])

    # Before a batch is read, while the first file of one moves, and after one is in place.
    for file in ("_checkpoint/offsets/1", "_staging/00000002.json", "_manifests/00000003.json"):
        assert run(namesrv, "archived", directory, file) == -signal.SIGKILL
    publish([Message("archived", b"%d" % n) for n in range(1_500, 1_600)])
    archive.run(spark, options)
    publish([Message("archived", b"%d" % n) for n in range(1_600, 1_700)])
    assert run(namesrv, "archived", directory, "_checkpoint/offsets/0") == -signal.SIGKILL
    assert run(namesrv, "archived", directory) == 0

    rows = archive.read_archive(spark, str(directory)).collect()
    assert sorted(int(row.body) for row in rows) == list(range(1_700))
    table = ds.dataset(directory, format="parquet", partitioning="hive").to_table()
    assert sorted(map(int, table.column("body").to_pylist())) == list(range(1_700))
