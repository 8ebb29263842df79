"""Tests of a name server on its port: brokers register, expire and disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.errors import AddressInUseError, TopicNotFoundError
from kourou.model.route import TopicRoute
from kourou.model.topic import TopicConfig
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.data_version import DataVersion
from kourou.protocol.routes import GetRouteInfoRequestHeader, decode_topic_route
from kourou.protocol.topic_table import (
    BrokerHeartbeatRequestHeader,
    RegisterBody,
    RegisterBrokerRequestHeader,
    TopicConfigTable,
    encode_register_body,
)
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.testing.loop import run_virtual
from kourou.testing.raw_client import RawClient
from kourou.testing.runtime import sim_runtime


class Cluster:
    """A name server, a broker's pool and a client's pool."""

    def __init__(self, runtime: Runtime, **config: int) -> None:
        self.runtime = runtime
        self.namesrv = NameServer(NamesrvConfig(port=0, **config), runtime)  # type: ignore[arg-type]
        self.broker = ConnectionPool(runtime, {}, ConnectionLimits())
        self.client = ConnectionPool(runtime, {}, ConnectionLimits())
        self.address = ""

    async def register(self, timeout_ms: int | None = None) -> None:
        topics = {name: TopicConfig(name, 4, 4) for name in ("T", "U")}
        body = RegisterBody(TopicConfigTable(topics, DataVersion(1, 0, 1)))
        header = RegisterBrokerRequestHeader("a", "10.0.0.1:10911", "C", "", 0, timeout_ms)
        command = request(RequestCode.REGISTER_BROKER, header, encode_register_body(body))
        raise_for_response(await self.broker.request(self.address, command, 3))

    async def heartbeat(self) -> None:
        header = BrokerHeartbeatRequestHeader("C", "10.0.0.1:10911", "a")
        command = request(RequestCode.BROKER_HEARTBEAT, header)
        raise_for_response(await self.broker.request(self.address, command, 3))

    async def route(self) -> TopicRoute:
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic="T"))
        answer = await self.client.request(self.address, command, 3)
        raise_for_response(answer)
        return decode_topic_route(answer.body)

    async def check_not_routed(self) -> None:
        with pytest.raises(TopicNotFoundError):
            await self.route()


async def in_cluster(
    test: Callable[[Cluster], Coroutine[Any, Any, None]], runtime: Runtime, **config: int
) -> None:
    cluster = Cluster(runtime, **config)
    cluster.address = format_address(await cluster.namesrv.start())
    await test(cluster)
    await cluster.broker.close()
    await cluster.client.close()
    await cluster.namesrv.stop()


def test_registered_topic_is_found_by_a_client() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.check_not_routed()
        await cluster.register()
        found = await cluster.route()
        assert found.master_address("a") == "10.0.0.1:10911"
        assert found.queue_datas[0].write_queue_nums == 4

    run_virtual(in_cluster(test, sim_runtime()))
    asyncio.run(in_cluster(test, Runtime.system()))


def test_broker_is_removed_when_its_connection_closes() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register()
        await cluster.broker.close()
        await asyncio.sleep(0.1)
        await cluster.check_not_routed()

    run_virtual(in_cluster(test, sim_runtime()))


def test_silent_broker_is_removed_within_a_scan_and_its_connection_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register(timeout_ms=10_000)
        await asyncio.sleep(9)
        await cluster.route()
        connection = await cluster.broker.get(cluster.address)
        await asyncio.sleep(6.5)
        await cluster.check_not_routed()
        assert not connection.is_open

    run_virtual(in_cluster(test, sim_runtime()))
    assert "broker.expired cluster=C name=a id=0 address=10.0.0.1:10911" in caplog.text


def test_heartbeats_keep_a_broker_registered() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register(timeout_ms=10_000)
        for _ in range(20):
            await asyncio.sleep(8)
            await cluster.heartbeat()
        assert (await cluster.route()).master_address("a") == "10.0.0.1:10911"

    run_virtual(in_cluster(test, sim_runtime()))


def test_garbage_bytes_leave_brokers_and_clients_unaffected() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register()
        before = await cluster.route()
        host, _, port = cluster.address.partition(":")
        bad = await RawClient.connect(cluster.runtime.network, (host, int(port)))
        bad.write(b"\xff" * 1000)
        await bad.closed(1)
        assert await cluster.route() == before

    run_virtual(in_cluster(test, sim_runtime()))


def test_taken_port_is_an_error_with_the_address() -> None:
    async def test(cluster: Cluster) -> None:
        port = int(cluster.address.partition(":")[2])
        second = NameServer(NamesrvConfig(port=port), cluster.runtime)
        with pytest.raises(AddressInUseError, match=cluster.address):
            await second.start()
        await second.stop()

    run_virtual(in_cluster(test, sim_runtime()))
    asyncio.run(in_cluster(test, Runtime.system()))


def test_an_abandoned_name_server_can_be_replaced_on_its_port() -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.register()
        cluster.namesrv.abandon()
        await asyncio.sleep(0.1)
        port = int(cluster.address.partition(":")[2])
        cluster.namesrv = NameServer(NamesrvConfig(port=port), cluster.runtime)
        await cluster.namesrv.start()

        await cluster.check_not_routed()
        await cluster.register()
        await cluster.route()

    run_virtual(in_cluster(test, sim_runtime()))


def test_stop_without_connections_is_immediate() -> None:
    async def main() -> float:
        namesrv = NameServer(NamesrvConfig(port=0), sim_runtime())
        await namesrv.start()
        await namesrv.stop()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0
