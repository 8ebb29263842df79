"""A slave has the topics, groups and committed offsets of its master, by the next round."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.components import Components
from kourou.broker.replication import metadata_copy
from kourou.broker.replication.replication_config import BrokerRole, ReplicationConfig
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.broker.replication.test_slave import MASTER, SLAVE, caught_up, pull, send, until

ROUND_S = metadata_copy.INTERVAL_MS / 1000 + 1


def run(test: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    config = ReplicationConfig(broker_role=BrokerRole.ASYNC_MASTER, slave_read_enable=True)

    async def main() -> None:
        async with Cluster(slaves=1, replication=config, **options) as cluster:
            await test(cluster)

    run_virtual(main())


def parts(cluster: Cluster) -> tuple[Components, Components]:
    return cluster.broker(MASTER).components, cluster.broker(SLAVE).components


def test_messages_are_pulled_from_a_slave_without_any_preparation() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 8)
        await caught_up(cluster)
        await asyncio.sleep(ROUND_S)
        found = await pull(cluster, 0)

        assert (found.code, found.ext_fields["nextBeginOffset"]) == (0, "2")

    run(test)


def test_topics_groups_and_offsets_follow_every_change() -> None:
    async def test(cluster: Cluster) -> None:
        master, slave = parts(cluster)
        await send(cluster, 8)
        master.tables.topics.put(TopicConfig("wide", 9, 7))
        master.tables.groups.put(SubscriptionGroup("G", retry_max_times=3))
        master.tables.offsets.commit("G", "T", 1, 2)
        await asyncio.sleep(ROUND_S)
        assert slave.tables.topics.get("wide") == TopicConfig("wide", 9, 7)
        assert slave.tables.topics.get("T") == master.tables.topics.get("T")
        assert slave.tables.groups.get("G") == SubscriptionGroup("G", retry_max_times=3)
        assert slave.tables.offsets.query("G", "T", 1) == 2

        master.tables.topics.delete("wide")
        master.tables.groups.delete("G")
        master.tables.offsets.commit("G", "T", 1, 1)
        await asyncio.sleep(ROUND_S)
        assert slave.tables.topics.get("wide") is None
        assert slave.tables.groups.get("G") is None
        assert slave.tables.offsets.query("G", "T", 1) == 1
        assert slave.tables.topics.get("TBW102") is not None

    run(test)


def test_tables_of_several_pages_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_copy, "_PAGE_MAX", 7)

    async def test(cluster: Cluster) -> None:
        master, slave = parts(cluster)
        for number in range(40):
            master.tables.topics.put(TopicConfig(f"topic{number}"))
            master.tables.groups.put(SubscriptionGroup(f"group{number}"))
        await asyncio.sleep(ROUND_S)

        assert slave.tables.topics.table().topics == master.tables.topics.table().topics
        assert set(master.tables.groups.names()) <= set(slave.tables.groups.names())

    run(test)


def test_the_tables_survive_a_restart_of_the_slave_without_its_master() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 8)
        parts(cluster)[MASTER].tables.offsets.commit("G", "T", 0, 2)
        await caught_up(cluster)
        await asyncio.sleep(2 * ROUND_S)
        await cluster.kill_broker(MASTER)
        await cluster.kill_broker(SLAVE)
        await cluster.restart_broker(SLAVE)
        assert (await pull(cluster, 0)).code == 0
        assert cluster.broker(SLAVE).components.tables.offsets.query("G", "T", 0) == 2

    run(test)


def test_a_master_that_is_down_is_logged_once_and_copied_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        await asyncio.sleep(ROUND_S)
        await cluster.kill_broker(MASTER)
        await asyncio.sleep(6 * ROUND_S)
        await cluster.restart_broker(MASTER)
        cluster.broker(MASTER).components.tables.topics.put(TopicConfig("later"))
        topics = cluster.broker(SLAVE).components.tables.topics
        await until(lambda: topics.get("later") is not None)

    with caplog.at_level(logging.WARNING):
        run(test)
    assert len([line for line in caplog.messages if "metadata.copy_failed" in line]) == 1
