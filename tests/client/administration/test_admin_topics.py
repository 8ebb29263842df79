"""Changes of topics, and the values that are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.administration import admin_topics
from kourou.client.administration.admin import AdminClient
from kourou.client.administration.admin_calls import Server
from kourou.client.administration.admin_topics import ORDER_TOPIC_CONFIG
from kourou.errors import NoRouteError, RemoteError, TopicNotFoundError
from kourou.model.topic import PERM_READ, PERM_WRITE, TopicConfig
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.topic_table import TopicConfigTable, encode_topic_config_table
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

Body = Callable[[Cluster, AdminClient], Coroutine[Any, Any, None]]


def with_admin(body: Body, *, brokers: int = 2, namesrvs: int = 1) -> None:
    async def main() -> None:
        async with (
            Cluster(seed=5, brokers=brokers, namesrvs=namesrvs) as cluster,
            cluster.admin() as admin,
        ):
            await body(cluster, admin)

    run_virtual(main())


async def queue_nums(admin: AdminClient, topic: str) -> dict[str, tuple[int, int]]:
    configs = await admin.topic_config(topic)
    return {name: (one.read_queue_nums, one.write_queue_nums) for name, one in configs.items()}


def test_creating_an_existing_topic_changes_only_given_values() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders", queues=3, perm=PERM_READ, broker_name="broker-1")
        await admin.create_topic("orders", attributes={"message.type": "FIFO"})
        assert await queue_nums(admin, "orders") == {"broker-0": (8, 8), "broker-1": (3, 3)}
        configs = await admin.topic_config("orders")
        assert {name: one.perm for name, one in configs.items()} == {
            "broker-0": PERM_READ | PERM_WRITE,
            "broker-1": PERM_READ,
        }
        assert {one.attributes["message.type"] for one in configs.values()} == {"FIFO"}

    with_admin(body)


def test_read_and_write_queues_may_differ() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders", queues=4, write_queues=2)
        assert await queue_nums(admin, "orders") == {"broker-0": (4, 2)}
        await admin.update_topic("orders", read_queues=2)
        assert await queue_nums(admin, "orders") == {"broker-0": (2, 2)}

    with_admin(body, brokers=1)


def test_update_changes_only_brokers_with_the_topic() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders", broker_name="broker-1")
        await admin.update_topic("orders", queues=5)
        assert await queue_nums(admin, "orders") == {"broker-1": (5, 5)}
        with pytest.raises(TopicNotFoundError, match="not on broker-0, but on: broker-1"):
            await admin.update_topic("orders", queues=5, broker_name="broker-0")
        with pytest.raises(TopicNotFoundError, match="absent"):
            await admin.update_topic("absent", queues=5)

    with_admin(body)


def test_attribute_is_removed_and_invalid_one_is_refused() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders", attributes={"message.type": "DELAY"})
        await admin.update_topic("orders", attributes={"message.type": None})
        [config] = (await admin.topic_config("orders")).values()
        assert config.attributes == {}
        with pytest.raises(RemoteError, match="unsupported key: colour"):
            await admin.update_topic("orders", attributes={"colour": "red"})

    with_admin(body, brokers=1)


def test_order_config_is_stored_and_deleted_with_the_topic() -> None:
    async def reported(admin: AdminClient) -> dict[str, str]:
        return await admin.kv_list(ORDER_TOPIC_CONFIG)

    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders", queues=4, order=True)
        assert await reported(admin) == {"orders": "broker-0:4;broker-1:4"}
        await admin.update_topic("orders", queues=6, broker_name="broker-1")
        assert await reported(admin) == {"orders": "broker-0:4;broker-1:6"}
        await admin.update_namesrv_config({"orderMessageEnable": "true"})
        assert (await admin.topic_route("orders")).order_topic_conf == "broker-0:4;broker-1:6"
        await admin.update_topic("orders", order=False, broker_name="broker-0")
        assert await reported(admin) == {"orders": "broker-1:6"}
        await admin.update_topic("orders", order=False)
        assert await reported(admin) == {}
        await admin.update_topic("orders", order=True)
        await admin.delete_topic("orders")
        assert await reported(admin) == {}

    with_admin(body, namesrvs=2)


def test_deleted_topic_has_no_route() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders")
        assert (await admin.topic_route("orders")).queue_datas
        await admin.delete_topic("orders")
        with pytest.raises(TopicNotFoundError, match="kourou topic create orders"):
            await admin.topic_route("orders")

    with_admin(body, brokers=1)


def test_topic_groups_cover_all_brokers() -> None:
    async def body(cluster: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders", queues=1)
        async with cluster.pull_consumer("audit") as audit, cluster.pull_consumer("billing") as b:
            queues = await audit.fetch_subscribe_message_queues("orders")
            await audit.commit_offset(queues[0], 0)
            await b.commit_offset(queues[1], 0)
        assert await admin.topic_groups("orders") == ["audit", "billing"]
        with pytest.raises(TopicNotFoundError):
            await admin.topic_groups("absent")

    with_admin(body)


def test_topics_are_listed_by_cluster() -> None:
    async def body(cluster: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders")
        assert "orders" in await admin.topic_list("DefaultCluster")
        assert await admin.topic_list("elsewhere") == []

    with_admin(body, brokers=1)


def test_second_call_creates_the_topic_on_a_recovered_broker() -> None:
    async def body(cluster: Cluster, admin: AdminClient) -> None:
        await cluster.kill_broker(1)
        await admin.create_topic("orders", queues=3)
        assert await queue_nums(admin, "orders") == {"broker-0": (3, 3)}
        with pytest.raises(NoRouteError, match="named broker-1 has a master"):
            await admin.create_topic("orders", broker_name="broker-1")
        await cluster.restart_broker(1)
        await admin.create_topic("orders", queues=3)
        assert await queue_nums(admin, "orders") == {"broker-0": (3, 3), "broker-1": (3, 3)}

    with_admin(body)


class _OldBroker:
    """Answers as brokers before 5.0, which lack request 351 and return all topics at once."""

    namespace = ""

    async def request(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        assert (address, timeout_s) == ("10.0.0.1:10911", 1.0)
        if command.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            table = TopicConfigTable({"orders": TopicConfig("orders", 3, 3)})
            return response(command, body=encode_topic_config_table(table))
        return response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported")


def test_broker_before_5_0_gets_the_request_for_all_topics() -> None:
    server = Server(_OldBroker(), "10.0.0.1:10911", 1.0)  # type: ignore[arg-type]

    config = asyncio.run(admin_topics.topic_config(server, "orders"))

    assert config.read_queue_nums == 3
    with pytest.raises(TopicNotFoundError, match=r"absent is not on 10\.0\.0\.1:10911"):
        asyncio.run(admin_topics.topic_config(server, "absent"))
