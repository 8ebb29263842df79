"""Rig: name servers that start and stop, and one broker registered with them, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker
from kourou.broker.topics import Topics
from kourou.errors import TopicNotFoundError
from kourou.model.route import TopicRoute
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.routes import GetRouteInfoRequestHeader, decode_topic_route
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.network import LATENCY_S, MemoryNetwork
from kourou.testing.runtime import sim_runtime

FIRST = ("127.0.0.1", 9876)
SECOND = ("127.0.0.1", 9877)
BOTH = ("127.0.0.1:9876", "127.0.0.1:9877")


class World:
    """Name servers that start and stop, and one broker."""

    def __init__(self, *, latency_s: tuple[float, float] = LATENCY_S, **options: Any) -> None:
        self.network = MemoryNetwork(latency_s=latency_s)
        self.runtime: Runtime = sim_runtime(network=self.network)
        config = BrokerConfig(**({"namesrv_addr": BOTH} | options))
        self.broker = Broker(config, SimDisk(), self.runtime, SimFlusher)
        self.pool = ConnectionPool(self.runtime, {}, ConnectionLimits())

    async def namesrv(self, address: tuple[str, int]) -> NameServer:
        """Start a name server."""
        namesrv = NameServer(NamesrvConfig(listen=address[0], port=address[1]), self.runtime)
        await namesrv.start()
        return namesrv

    async def route(self, address: tuple[str, int], topic: str = "TBW102") -> TopicRoute:
        """Return the route of a topic from a name server."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = await self.pool.request(f"{address[0]}:{address[1]}", command, 3)
        raise_for_response(answer)
        return decode_topic_route(answer.body)

    async def has_route(self, address: tuple[str, int], topic: str = "TBW102") -> bool:
        """Return whether a name server has a route for a topic."""
        try:
            return bool((await self.route(address, topic)).broker_datas)
        except TopicNotFoundError:
            return False

    @property
    def topics(self) -> Topics:
        """The topics of the broker."""
        return self.broker.components.tables.topics

    async def ask(self, code: RequestCode, header: object, address: str = BOTH[0]) -> None:
        """Send an administration request, and check the answer."""
        raise_for_response(await self.pool.request(address, request(code, header), 3))

    async def stop(self, *namesrvs: NameServer) -> None:
        await self.broker.stop()
        await self.pool.close()
        for namesrv in namesrvs:
            await namesrv.stop()


def now_s() -> float:
    return asyncio.get_running_loop().time()
