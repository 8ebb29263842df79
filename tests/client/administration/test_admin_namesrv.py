"""Administration of name servers: changes are sent to all, any of them answers queries."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.errors import (
    ClosedError,
    ConnectFailedError,
    NoPermissionError,
    QueryNotFoundError,
    RemoteSystemError,
)
from kourou.model.route import TopicRoute
from kourou.model.topic import PERM_READ, PERM_WRITE
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

Body = Callable[[Cluster, AdminClient], Coroutine[Any, Any, None]]


def with_admin(body: Body) -> None:
    async def main() -> None:
        async with (
            Cluster(seed=6, brokers=2, namesrvs=2) as cluster,
            cluster.admin() as admin,
        ):
            await body(cluster, admin)

    run_virtual(main())


def test_option_is_changed_on_all_name_servers() -> None:
    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.update_namesrv_config({"orderMessageEnable": "true"})
        reported = await admin.namesrv_config()
        assert list(reported) == ["127.0.0.1:9876", "127.0.0.1:9877"]
        assert {values["orderMessageEnable"] for values in reported.values()} == {"true"}
        with pytest.raises(NoPermissionError, match="listenPort cannot be changed"):
            await admin.update_namesrv_config({"listenPort": "1"})
        with pytest.raises(RemoteSystemError, match="'soon' is not a whole number"):
            await admin.update_namesrv_config({"waitSecondsForService": "soon"})

    with_admin(body)


def test_key_is_put_listed_and_deleted_on_all_name_servers() -> None:
    async def body(cluster: Cluster, admin: AdminClient) -> None:
        await admin.kv_put("ns", "b", "2")
        await admin.kv_put("ns", "a", "eins;zwei=3")
        for address in cluster.namesrv_addr.split(";"):
            async with AdminClient(address, runtime=cluster.runtime) as one:
                assert await one.kv_get("ns", "a") == "eins;zwei=3"
                assert list((await one.kv_list("ns")).items()) == [("a", "eins;zwei=3"), ("b", "2")]
        await admin.kv_delete("ns", "a")
        await admin.kv_delete("ns", "a")
        with pytest.raises(QueryNotFoundError, match=r"Namespace: ns Key: a"):
            await admin.kv_get("ns", "a")
        assert await admin.kv_list("nothing") == {}

    with_admin(body)


def test_write_permission_is_removed_and_restored() -> None:
    def perms(route: TopicRoute) -> dict[str, int]:
        return {queues.broker_name: queues.perm for queues in route.queue_datas}

    async def body(_: Cluster, admin: AdminClient) -> None:
        await admin.create_topic("orders")
        reported = await admin.wipe_write_perm("broker-1")
        assert list(reported) == ["127.0.0.1:9876", "127.0.0.1:9877"]
        assert min(reported.values()) > 0
        both = PERM_READ | PERM_WRITE
        assert perms(await admin.topic_route("orders")) == {"broker-0": both, "broker-1": PERM_READ}
        assert await admin.add_write_perm("broker-1") == reported
        assert perms(await admin.topic_route("orders")) == {"broker-0": both, "broker-1": both}
        assert set((await admin.wipe_write_perm("broker-7")).values()) == {0}

    with_admin(body)


def test_unreachable_name_server_does_not_block_the_others() -> None:
    async def body(cluster: Cluster, _: AdminClient) -> None:
        addresses = f"127.0.0.1:19876;{cluster.namesrv_addr}"
        async with AdminClient(addresses, runtime=cluster.runtime) as admin:
            with pytest.raises(ConnectFailedError, match="19876"):
                await admin.kv_put("ns", "a", "1")
        for address in cluster.namesrv_addr.split(";"):
            async with AdminClient(address, runtime=cluster.runtime) as one:
                assert await one.kv_get("ns", "a") == "1"

    with_admin(body)


def test_calls_before_start_are_refused() -> None:
    async def main() -> None:
        admin = AdminClient("127.0.0.1:9876")
        with pytest.raises(ClosedError, match="not started"):
            await admin.namesrv_config()
        with pytest.raises(ClosedError, match="not started"):
            await admin.runtime_info("127.0.0.1:10911")

    run_virtual(main())
