"""The route cache shares look-ups, keeps routes, and is bounded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.name_servers import NameServers
from kourou.client.namesrv_addr import parse_namesrv_addr
from kourou.client.routes import Routes
from kourou.errors import (
    ConfigError,
    ConnectionLostError,
    KourouError,
    NoRouteError,
    RequestTimeoutError,
    SystemBusyError,
    TooManyRequestsError,
)
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.routes import GetRouteInfoRequestHeader, encode_topic_route
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.server import RemotingServer
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime

ADDRESS = ("127.0.0.1", 9876)


def route_to(*broker_names: str, queues: int = 4) -> TopicRoute:
    return TopicRoute(
        tuple(QueueData(name, queues, queues, 7) for name in broker_names),
        tuple(BrokerData("c", name, {0: f"{name}:1", 1: f"{name}:2"}) for name in broker_names),
    )


class Names:
    """A name server with the routes set by a test."""

    def __init__(self) -> None:
        self.routes: dict[str, TopicRoute] = {}
        self.asked: list[str] = []

    def on_route(self, request: Request) -> RemotingCommand:
        topic = request.command.header(GetRouteInfoRequestHeader).topic
        self.asked.append(topic)
        if topic not in self.routes:
            return response(request.command, 17, "no")
        body = encode_topic_route(self.routes[topic], standard=True)
        return response(request.command, body=body)


def with_routes(
    body: Callable[[Names, Routes, MemoryNetwork], Coroutine[Any, Any, None]],
    *,
    routes_max: int = 10,
    auto_create_queue_nums: int | None = None,
    on_changed: Callable[[str], None] | None = None,
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        runtime = sim_runtime(network=network)
        names = Names()
        handlers: dict[int, Handler] = {RequestCode.GET_ROUTEINFO_BY_TOPIC: names.on_route}
        server = RemotingServer(runtime, handlers, ConnectionLimits(), "names")
        await server.start(ADDRESS)
        pool = ConnectionPool(runtime, {}, ConnectionLimits())
        servers = NameServers(pool, ("127.0.0.1:9876",), random.Random(1))
        routes = Routes(servers, 3000, routes_max, auto_create_queue_nums, on_changed)
        await body(names, routes, network)
        routes.close()
        await pool.close()
        await server.stop()

    run_virtual(main())


def test_callers_share_one_lookup_and_then_the_cache() -> None:
    async def body(names: Names, routes: Routes, _: MemoryNetwork) -> None:
        names.routes["T"] = route_to("a")
        found = await asyncio.gather(*(routes.get("T", 3) for _ in range(20)))
        assert {route.queue_datas[0].broker_name for route in found} == {"a"}
        await routes.get("T", 3)
        assert names.asked == ["T"]

    with_routes(body)


def test_cancelled_caller_does_not_cancel_the_lookup() -> None:
    async def body(names: Names, routes: Routes, _: MemoryNetwork) -> None:
        names.routes["T"] = route_to("a")
        first = asyncio.create_task(routes.get("T", 3))
        second = asyncio.create_task(routes.get("T", 3))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == route_to("a")

    with_routes(body)


def test_failures_that_suspect_the_route_look_it_up_at_a_limited_rate() -> None:
    async def body(names: Names, routes: Routes, _: MemoryNetwork) -> None:
        async def lookups(error: KourouError, failures: int) -> int:
            before = len(names.asked)
            for _ in range(failures):
                routes.on_failure("T", error)
                await asyncio.sleep(0.1)
            return len(names.asked) - before

        names.routes["T"] = route_to("a")
        await routes.get("T", 3)
        assert await lookups(SystemBusyError(2, "busy"), 20) == 4
        assert await lookups(RequestTimeoutError("late"), 20) == 4
        assert await lookups(ConnectionLostError("closed"), 20) == 20
        assert await lookups(TooManyRequestsError("many"), 20) == 0

    with_routes(body)


def test_cached_route_is_kept_when_name_servers_lose_the_topic() -> None:
    async def body(names: Names, routes: Routes, network: MemoryNetwork) -> None:
        names.routes["T"] = route_to("a")
        await routes.get("T", 3)
        names.routes.clear()
        assert await routes.refresh("T", 3) == route_to("a")
        network.cut(ADDRESS)
        await asyncio.sleep(0.1)
        assert await routes.get("T", 3) == route_to("a")

    with_routes(body)


def test_changed_route_is_reported() -> None:
    changed: list[str] = []

    async def body(names: Names, routes: Routes, _: MemoryNetwork) -> None:
        names.routes["T"] = route_to("a")
        await routes.get("T", 3)
        await routes.refresh_all()
        assert changed == ["T"]
        names.routes["T"] = route_to("a", "b")
        routes.refresh_soon("T")
        await asyncio.sleep(0.1)
        assert changed == ["T", "T"]
        assert await routes.address("T", "b", 3) == "b:1"

    with_routes(body, on_changed=changed.append)


def test_broker_addresses_are_of_masters_or_all() -> None:
    async def body(names: Names, routes: Routes, _: MemoryNetwork) -> None:
        names.routes["T"] = route_to("a", "b")
        await routes.get("T", 3)
        assert routes.broker_addresses(masters_only=True) == ["a:1", "b:1"]
        assert routes.broker_addresses(masters_only=False) == ["a:1", "a:2", "b:1", "b:2"]
        assert await routes.address("T", "a", 3, 1) == "a:2"
        assert await routes.address("T", "a", 3, 9) == "a:1"
        assert await routes.address("T", "a", 3, None) == "a:1"

    with_routes(body)


def test_unknown_broker_causes_one_new_lookup() -> None:
    async def body(names: Names, routes: Routes, _: MemoryNetwork) -> None:
        names.routes["T"] = route_to("a")
        await routes.get("T", 3)
        names.routes["T"] = route_to("a", "b")
        assert await routes.address("T", "b", 3) == "b:1"
        with pytest.raises(NoRouteError, match="address of broker c for T"):
            await routes.address("T", "c", 3)

    with_routes(body)


def test_unknown_topic_uses_brokers_with_automatic_creation() -> None:
    async def body(names: Names, routes: Routes, _: MemoryNetwork) -> None:
        with pytest.raises(NoRouteError):
            await routes.get("T", 3)
        names.routes["TBW102"] = route_to("a", "b", queues=8)
        assert [queues.write_queue_nums for queues in (await routes.get("T", 3)).queue_datas] == [
            3,
            3,
        ]
        names.routes["T"] = route_to("a", queues=2)
        assert await routes.refresh("T", 3) == route_to("a", queues=2)

    with_routes(body, auto_create_queue_nums=3)


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        ("T", r"create it \(kourou topic create T\)"),
        ("RMQ_SYS_TRACE_TOPIC", "switch on the traces of producers and consumers"),
        ("rmq_sys_REVIVE_LOG_c", "brokers create when they need it"),
    ],
)
def test_error_of_an_unknown_topic_names_a_remedy_that_works(topic: str, remedy: str) -> None:
    async def body(_: Names, routes: Routes, __: MemoryNetwork) -> None:
        with pytest.raises(NoRouteError, match=f"{topic}: .*{remedy}"):
            await routes.get(topic, 3)

    with_routes(body)


def test_least_recently_used_route_is_evicted_first() -> None:
    async def body(names: Names, routes: Routes, _: MemoryNetwork) -> None:
        for topic in ("A", "B", "C", "D"):
            names.routes[topic] = route_to("a")
        for topic in ("A", "B", "C", "A", "D"):
            await routes.get(topic, 3)
        names.asked.clear()
        for topic in ("A", "C", "D"):
            await routes.get(topic, 3)
        assert names.asked == []
        await routes.get("B", 3)
        assert names.asked == ["B"]

    with_routes(body, routes_max=3)


def test_timeout_names_the_name_server_that_does_not_answer() -> None:
    async def body(_: Names, routes: Routes, network: MemoryNetwork) -> None:
        network.stall(ADDRESS)
        with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1:9876 .* route of T within 1"):
            await routes.get("T", 1)

    with_routes(body)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a", ("a:9876",)),
        ("a:1; b:2 ;", ("a:1", "b:2")),
        ("[::1]:3", ("[::1]:3",)),
    ],
)
def test_name_server_addresses_are_parsed(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_namesrv_addr(text) == addresses


@pytest.mark.parametrize("text", ["", " ; ", "a:b", "a:99999", "a:1,b:2"])
def test_invalid_name_server_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_namesrv_addr(text)
