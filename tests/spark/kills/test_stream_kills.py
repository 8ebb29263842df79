"""Streams whose driver, worker or executor is killed: each message is in the output once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.model.message import Message
from tests.spark.deployed import ROOT, TIMEOUT_S, spark_environment

Publish = Callable[[Sequence[Message]], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = "tests.spark.kills.killed_stream"


def run(namesrv: str, topic: str, directory: Path, *kill_at: str) -> int:
    """Run the stream until it has read what is there now; return its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, namesrv, topic, str(directory), *kill_at],
        cwd=ROOT,
        env={**spark_environment(directory), "PYTHONPATH": str(ROOT)},
        start_new_session=True,  # so that the program kills only its own group
        capture_output=True,
        timeout=TIMEOUT_S,
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


def test_killed_executor_is_replaced_and_its_tasks_repeated(
    spark: SparkSession, namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("executor", 2_000))

    assert run(namesrv, "executor", tmp_path, "executor") == 0

    directories = tmp_path.glob("spark/work/app-*/*")
    assert sorted(int(path.name) for path in directories) == [0, 1, 2, 3], "two were replaced"
    assert_output_has_each_once(spark, tmp_path, 2_000)
