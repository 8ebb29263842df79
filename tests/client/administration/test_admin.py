"""Creation, description and deletion of topics and groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.errors import (
    ClosedError,
    ConnectFailedError,
    GroupNotFoundError,
    InvalidGroupError,
    InvalidTopicError,
    NoRouteError,
    TopicNotFoundError,
)
from kourou.model.group import SubscriptionGroup
from kourou.model.message import Message
from kourou.protocol.codes import LanguageCode
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import recording
from kourou.testing.runtime import sim_runtime

Body = Callable[[Cluster, AdminClient], Coroutine[Any, Any, None]]


def with_admin(body: Body, *, brokers: int = 2) -> None:
    async def main() -> None:
        async with Cluster(seed=2, brokers=brokers) as cluster, cluster.admin() as admin:
            await body(cluster, admin)

    run_virtual(main())


def test_new_topic_is_usable_at_once_on_every_broker() -> None:
    async def body(cluster: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders", queues=3, perm=6)
        assert "orders" in await admin.topic_list()
        route = await admin.topic_route("orders")
        assert {queues.broker_name for queues in route.queue_datas} == {"broker-0", "broker-1"}
        configs = await admin.topic_config("orders")
        assert {name: config.write_queue_nums for name, config in configs.items()} == {
            "broker-0": 3,
            "broker-1": 3,
        }
        async with cluster.producer() as producer:
            assert len(await producer.fetch_publish_message_queues("orders")) == 6

    with_admin(body)


def test_topic_is_created_on_the_given_brokers() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("one", broker_name="broker-1")
        assert list(await admin.topic_config("one")) == ["broker-1"]
        await admin.create_topic("all", cluster="DefaultCluster")
        assert list(await admin.topic_config("all")) == ["broker-0", "broker-1"]
        with pytest.raises(NoRouteError, match=r"named broker-7 .* known are: broker-0, broker-1"):
            await admin.create_topic("none", broker_name="broker-7")
        with pytest.raises(NoRouteError, match="in cluster elsewhere"):
            await admin.create_topic("none", cluster="elsewhere")

    with_admin(body)


def test_deleted_topic_is_removed_everywhere() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders")
        await admin.delete_topic("orders")
        await asyncio.sleep(35)  # until after a registration
        assert "orders" not in await admin.topic_list()

    with_admin(body)


def test_topic_stats_have_the_offsets_of_every_queue() -> None:
    async def body(cluster: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders", queues=2)
        async with cluster.producer() as producer:
            for _ in range(8):
                await producer.send(Message("orders", b"x"))
        offsets = (await admin.topic_stats("orders")).offsets
        assert [(queue.broker_name, queue.queue_id) for queue in offsets] == [
            ("broker-0", 0),
            ("broker-0", 1),
            ("broker-1", 0),
            ("broker-1", 1),
        ]
        assert [offset.max_offset for offset in offsets.values()] == [2, 2, 2, 2]

    with_admin(body)


def test_group_is_described_with_members_and_lag() -> None:
    async def main() -> None:
        async def hang(_: object) -> None:
            await asyncio.Event().wait()

        async with recording() as w, w.cluster.admin() as admin:
            async with w.consumer(hang, shutdown_timeout_ms=100) as consumer:
                await w.send(*[b"x"] * 12)
                await asyncio.sleep(6)
                found = await admin.describe_group("consumers")
                assert found.members == (consumer.client_id,)
                assert [(one.client_id, one.language) for one in found.connections] == [
                    (consumer.client_id, LanguageCode.PYTHON)
                ]
                assert found.lag == 12
            assert "consumers" in [group.group_name for group in await admin.group_list()]
            async with w.consumer():
                await w.until_received(*[b"x"] * 24)
            found = await admin.describe_group("consumers")
            assert (found.members, found.connections, found.lag) == ((), (), 0)

    run_virtual(main())


def test_groups_are_created_and_deleted() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_group(SubscriptionGroup("billing", retry_max_times=3))
        [found] = [one for one in await admin.group_list() if one.group_name == "billing"]
        assert found.retry_max_times == 3
        assert (await admin.describe_group("billing")).lag == 0
        await admin.delete_group("billing", clean_offsets=True)
        with pytest.raises(GroupNotFoundError, match="no broker has the group billing"):
            await admin.describe_group("billing")

    with_admin(body)


def test_cluster_info_lists_brokers() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        info = await admin.cluster_info()
        assert {name: dict(broker.broker_addrs) for name, broker in info.brokers.items()} == {
            "broker-0": {0: "127.0.0.1:10911"},
            "broker-1": {0: "127.0.0.1:10921"},
        }
        assert sorted(info.clusters["DefaultCluster"]) == ["broker-0", "broker-1"]

    with_admin(body)


def test_missing_or_forbidden_names_are_reported() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        for ask in (admin.topic_route, admin.topic_config, admin.topic_stats, admin.delete_topic):
            with pytest.raises(TopicNotFoundError, match="absent"):
                await ask("absent")
            with pytest.raises(InvalidTopicError):
                await ask("a b")
        with pytest.raises(InvalidTopicError, match="is a system topic"):
            await admin.create_topic("TBW102")
        with pytest.raises(InvalidTopicError, match="is a system topic"):
            await admin.delete_topic("SCHEDULE_TOPIC_XXXX")
        for name in ("", "a b"):
            with pytest.raises(InvalidGroupError):
                await admin.describe_group(name)
            with pytest.raises(InvalidGroupError):
                await admin.delete_group(name)

    with_admin(body, brokers=1)


def test_unreachable_name_server_is_named() -> None:
    async def main() -> None:
        admin = AdminClient("127.0.0.1:19876", runtime=sim_runtime())
        with pytest.raises(ClosedError, match="not started"):
            await admin.topic_list()
        async with admin:
            with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:19876.*kourou serve"):
                await admin.topic_list()

    run_virtual(main())
