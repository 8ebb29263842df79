"""Tests of commits apart from the stream, on a simulated cluster."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.spark.connection import ConnectionOptions
from kourou.spark.group_commits import COMMIT_TIMEOUT_MS, GroupCommits
from kourou.spark.stream_progress import CommitTarget, SourceProgress
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

Q0 = MessageQueue("orders", "broker-0", 0)


def batch(target: CommitTarget, end: int) -> SourceProgress:
    return SourceProgress({Q0: end}, {}, {Q0: 50}, target, rows=10)


async def prepare(cluster: Cluster) -> CommitTarget:
    async with cluster.admin() as admin:
        await admin.create_topic("orders", queues=1)
    async with cluster.producer() as producer:
        for number in range(50):
            await producer.send(Message("orders", b"%d" % number))
    return CommitTarget("reports", ConnectionOptions(name_server=cluster.namesrv_addr))


def test_newest_of_several_commits_is_the_groups_offset() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            target = await prepare(cluster)
            commits = GroupCommits(cluster.runtime)
            for end in range(10, 41):
                commits.submit(batch(target, end))

            await commits.close(60)

            async with cluster.pull_consumer("reports") as consumer:
                assert await consumer.committed(Q0) == 40

    run_virtual(main())


def test_commits_of_many_groups_have_few_connections_and_all_arrive() -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            target = await prepare(cluster)
            commits = GroupCommits(cluster.runtime)
            groups = [f"group-{number}" for number in range(20)]
            for group in groups:
                commits.submit(batch(CommitTarget(group, target.connection), 7))
                await asyncio.sleep(1)

            await commits.close(60)

            for group in groups:
                async with cluster.pull_consumer(group) as consumer:
                    assert await consumer.committed(Q0) == 7

    run_virtual(main())


def test_broker_that_does_not_answer_is_logged_and_a_later_commit_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with Cluster() as cluster:
            target = await prepare(cluster)
            commits = GroupCommits(cluster.runtime)
            await cluster.kill_broker(0)
            commits.submit(batch(target, 10))
            await asyncio.sleep(2 * COMMIT_TIMEOUT_MS / 1000)
            await cluster.restart_broker(0)
            commits.submit(batch(target, 20))

            await commits.close(60)

            async with cluster.pull_consumer("reports") as consumer:
                assert await consumer.committed(Q0) == 20

    with caplog.at_level(logging.WARNING, "kourou.spark"):
        run_virtual(main())

    entries = [entry for entry in caplog.records if entry.name == "kourou.spark.group_commits"]
    assert [entry.msg.split()[0] for entry in entries] == ["spark_group.not_committed"]


def test_close_waits_for_a_limited_time() -> None:
    async def main() -> float:
        async with Cluster() as cluster:
            target = await prepare(cluster)
            commits = GroupCommits(cluster.runtime)
            await cluster.kill_broker(0)
            commits.submit(batch(target, 10))
            began_s = asyncio.get_running_loop().time()
            await commits.close(3)
            return asyncio.get_running_loop().time() - began_s

    assert 3 <= run_virtual(main()) < 5


def test_wrong_credentials_file_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        commits = GroupCommits()
        connection = ConnectionOptions(name_server="localhost:1", credentials_file="/absent/keys")
        commits.submit(batch(CommitTarget("reports", connection), 10))
        await commits.close(60)

    run_virtual(main())

    assert "/absent/keys" in caplog.text
