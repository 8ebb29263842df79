"""Tests of streams whose driver or worker is killed: each message is in the output exactly once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.model.message import Message

Publish = Callable[[Sequence[Message]], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("killed_stream.py")


def run(namesrv: str, topic: str, directory: Path, *kill_at: str) -> int:
    """Run the stream until it has read what is there now; return its exit code."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), namesrv, topic, str(directory), *kill_at],
        start_new_session=True,  # so that the program kills only its own group
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-2_000:]
    return done.returncode


def messages(topic: str, *numbers: int) -> list[Message]:
    return [Message(topic, b"%d" % number) for number in range(*numbers)]


def assert_output_has_each_once(spark: SparkSession, directory: Path, count: int) -> None:
    """Read through Spark: a killed query leaves files that its log does not list."""
    rows = spark.read.parquet(str(directory / "output")).collect()
    assert len(rows) == count
    assert len({(row.brokerName, row.queueId, row.queueOffset) for row in rows}) == count
    assert {bytes(row.body) for row in rows} == {b"%d" % number for number in range(count)}


def test_driver_killed_in_batch_0_in_mid_batch_and_at_commit_loses_and_repeats_nothing(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("killed", 2_000))
    assert run(namesrv, "killed", tmp_path, "offsets/0") == -signal.SIGKILL
    publish(messages("killed", 2_000, 2_500))
    assert run(namesrv, "killed", tmp_path, "offsets/2") == -signal.SIGKILL
    assert run(namesrv, "killed", tmp_path, "commits/3") == -signal.SIGKILL

    assert run(namesrv, "killed", tmp_path) == 0

    assert_output_has_each_once(spark, tmp_path, 2_500)


def test_killed_worker_is_replaced_and_its_task_repeated(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("worker", 1_000))

    assert run(namesrv, "worker", tmp_path, "worker") == 0

    assert_output_has_each_once(spark, tmp_path, 1_000)
