"""Replays whose driver is killed in mid-run: the next run sends the rest, and nothing twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter

import pytest
from pyspark.sql import SparkSession

from kourou.client.administration.admin import AdminClient
from kourou.model.message import Message
from kourou.pipelines.selection import Selection, read_messages
from kourou.testing.process import start_command
from tests.pipelines.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MESSAGES = 3_000
TIMEOUT_S = 900


async def wait_until_stored(
    process: subprocess.Popen[str], namesrv: str, topic: str, rows: int
) -> None:
    """Wait until the topic has at least this number of messages."""
    async with AdminClient(namesrv) as admin, asyncio.timeout(TIMEOUT_S):
        while True:
            table = await admin.topic_stats(topic)
            if sum(queue.max_offset for queue in table.offsets.values()) >= rows:
                return
            assert process.poll() is None, process.communicate()
            await asyncio.sleep(0.05)


def replay(namesrv: str, topic: str, into: str, *more: str) -> subprocess.Popen[str]:
    return start_command(
        *("pipeline", "replay", topic, "--into", into, "--yes", "--json", *more),
        environ={"KOUROU_NAMESRV": namesrv},
    )


async def wait_until_idle(namesrv: str, topic: str) -> int:
    """Wait until the topic grows no more, and return the number of its messages.

    Spark's processes end when they notice the death of the driver.
    """
    async with AdminClient(namesrv) as admin:
        before = -1
        while True:
            table = await admin.topic_stats(topic)
            count = sum(queue.max_offset for queue in table.offsets.values())
            if count == before:
                return count
            before = count
            await asyncio.sleep(3)


def test_each_original_is_sent_once_when_the_driver_is_killed_in_mid_run(
    spark: SparkSession, namesrv: str, publish: Publish
) -> None:
    topic, into = "k-orders", "k-copies"
    publish([Message(topic, b"%d" % n) for n in range(MESSAGES)])

    async def create() -> None:
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(into, queues=2)

    asyncio.run(create())
    stored = 0
    for _ in range(2):
        process = replay(namesrv, topic, into, "--rate", "200")
        try:
            asyncio.run(wait_until_stored(process, namesrv, into, stored + 100))
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate(timeout=TIMEOUT_S)
        stored = asyncio.run(wait_until_idle(namesrv, into))
    assert stored < MESSAGES, "killed in mid-run"

    process = replay(namesrv, topic, into)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert f'"sent_before": {stored}' in out

    selection = Selection(name_server=namesrv, topics=(into,))
    found = Counter(
        int(bytes(row.body)) for row in read_messages(spark, selection, ("body",)).collect()
    )
    assert found == dict.fromkeys(range(MESSAGES), 1)
