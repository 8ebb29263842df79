"""Streams to a topic that are killed: every row is stored, and copies are removed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kourou.client.administration.admin import AdminClient
from kourou.spark.duplicates import dedup
from tests.spark.deployed import ROOT, TIMEOUT_S, spark_environment

PROGRAM = "tests.spark.kills.killed_write"
FILES, FILE_ROWS = 4, 3_000

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def start(namesrv: str, topic: str, home: Path, mode: str) -> subprocess.Popen[bytes]:
    """Start the program in a process group of its own, with the JVM and the workers."""
    words = [sys.executable, "-m", PROGRAM, namesrv, topic, str(home), mode]
    environ = {**spark_environment(home), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=ROOT, env=environ, start_new_session=True)


def run_to_end(namesrv: str, topic: str, home: Path, mode: str) -> None:
    process = start(namesrv, topic, home, mode)
    assert process.wait(TIMEOUT_S) == 0


async def wait_until_stored(
    process: subprocess.Popen[bytes], namesrv: str, topic: str, rows: int
) -> None:
    """Wait until the topic has at least this number of messages."""
    async with AdminClient(namesrv) as admin, asyncio.timeout(TIMEOUT_S):
        while True:
            table = await admin.topic_stats(topic)
            if sum(queue.max_offset for queue in table.offsets.values()) >= rows:
                return
            assert process.poll() is None, "it ended before it was killed"
            await asyncio.sleep(0.05)


def run_and_kill(namesrv: str, topic: str, home: Path, rows: int) -> None:
    """Run the program, and kill its process group when the topic has this number of messages."""
    process = start(namesrv, topic, home, "slow")
    try:
        asyncio.run(wait_until_stored(process, namesrv, topic, rows))
        assert process.poll() is None, "it ended before it was killed"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)


@pytest.fixture
def home(tmp_path: Path, namesrv: str) -> Path:
    """A directory of input files, two for each batch; creates a topic of its name."""
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        numbers = range(file * FILE_ROWS, (file + 1) * FILE_ROWS)
        text = "".join(f"{number}\n" for number in numbers)
        (tmp_path / "in" / f"{file}.txt").write_text(text)

    async def create() -> None:
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(tmp_path.name, queues=2)

    asyncio.run(create())
    return tmp_path


def check_rows(spark: SparkSession, namesrv: str, topic: str) -> int:
    """Assert that each row is there once without its copies; return the number of copies."""
    reader = spark.read.format("rocketmq").option("nameServer", namesrv).option("topic", topic)
    frame = reader.load()
    found = Counter(int(row.body) for row in dedup(frame).collect())
    assert found == dict.fromkeys(range(FILES * FILE_ROWS), 1)
    copies: int = frame.count() - len(found)
    return copies


def test_every_row_is_stored_when_the_driver_is_killed_in_batches(
    spark: SparkSession, namesrv: str, home: Path
) -> None:
    topic = home.name
    for rows in (FILE_ROWS // 2, FILE_ROWS * 3):  # in the first batch, and in the second
        run_and_kill(namesrv, topic, home, rows)
    run_to_end(namesrv, topic, home, "fast")

    assert check_rows(spark, namesrv, topic) > 0, "killed in mid-batch"


def test_every_row_is_stored_when_workers_are_killed(
    spark: SparkSession, namesrv: str, home: Path
) -> None:
    run_to_end(namesrv, home.name, home, "dying")

    assert check_rows(spark, namesrv, home.name) > 0


def test_every_row_is_stored_when_executors_are_killed(
    spark: SparkSession, namesrv: str, home: Path
) -> None:
    run_to_end(namesrv, home.name, home, "executor")

    assert sum(1 for _ in home.glob("spark/work/app-*/*")) > 2, "no executor was replaced"
    assert check_rows(spark, namesrv, home.name) > 0
