"""Tests of tracked streams on executors that are other processes, and with Spark Connect."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from kourou.client.administration.admin import AdminClient
from kourou.model.message import Message
from kourou.spark.java import find_java, launcher_home
from tests.spark.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("tracked_job.py")
TIMEOUT_S = 1_800  # only ends a hung process: a cluster takes minutes to start on a busy machine


def run(mode: str, namesrv: str, topic: str, directory: Path) -> dict[str, Any]:
    """Run the program; return what it printed."""
    home = directory / "spark"  # workers of a cluster write there
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in {"work", "logs"}:
            (home / entry.name).symlink_to(entry)
    inherited = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    environ = {
        **inherited,
        "JAVA_HOME": str(launcher_home(find_java(os.environ), directory / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), mode, namesrv, topic],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def lag(namesrv: str, group: str) -> int:
    async def ask() -> int:
        async with AdminClient(namesrv) as admin:
            return (await admin.describe_group(group)).lag

    return asyncio.run(ask())


def messages(topic: str) -> list[Message]:
    return [Message(topic, b"%d" % number) for number in range(100)]


def test_executors_report_and_a_repeated_task_counts_once(
    namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("clustered"))

    metrics = run("cluster", namesrv, "clustered", tmp_path)

    assert metrics["numInputRows"] == metrics["taskRows"] == 100
    assert (metrics["tasks"], metrics["repeatedTasks"]) == (2, 1)
    assert metrics["maxOffsetsBehindLatest"] == 0
    assert lag(namesrv, "clustered-progress") == 0


def test_client_of_spark_connect_has_progress_without_counts_of_tasks(
    namesrv: str, publish: Publish, tmp_path: Path
) -> None:
    publish(messages("connected"))

    metrics = run("connect", namesrv, "connected", tmp_path)

    assert metrics["numInputRows"] == 100
    assert metrics["maxOffsetsBehindLatest"] == 0
    assert "tasks" not in metrics
    assert not metrics["hasReceiver"]
    assert lag(namesrv, "connected-progress") == 0
