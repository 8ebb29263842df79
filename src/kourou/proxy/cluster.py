"""Brokers and name servers, as a proxy reaches them: by the requests of RocketMQ's own clients.

In local mode the broker of the process is reached without a socket
(`kourou.remoting.loopback`); the requests are the same. Sends of all clients share connections. A
consumer has connections of its own, because brokers know members of a group by their connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol

from kourou.client.name_servers import NameServers
from kourou.client.routes import Routes
from kourou.errors import NoRouteError
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute, publish_queues, subscribe_queues
from kourou.proxy.plain_sends import complete_stored
from kourou.remoting.connection import FastPath
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.loopback import LoopbackNetwork
from kourou.remoting.network import Address, ProtocolFactory
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime

REQUEST_TIMEOUT_S: Final = 3.0
"""Time for a request to a broker or a name server that is not held there."""
ROUTES_MAX: Final = 20_000
_PROXY: Final[Address] = ("127.0.0.1", 0)


class Metadata(Protocol):
    """Settings of topics and groups."""

    async def topic_type(self, topic: str) -> str:
        """Return the type of a topic's messages, such as FIFO; UNSPECIFIED of an unknown topic."""

    def known_topic_type(self, topic: str) -> str | None:
        """Return the type like `topic_type`; None if a broker must be asked for it."""

    async def group(self, name: str) -> SubscriptionGroup | None:
        """Return a consumer group; None if there is none."""


class Cluster:
    """The brokers of one proxy. Created inside a running loop.

    Attributes:
        pool: connections for requests that belong to no member of a group.
        routes: routes of topics.
        metadata: settings of topics and groups.
    """

    def __init__(
        self,
        runtime: Runtime,
        namesrv: tuple[str, ...],
        metadata: Metadata,
        local: Mapping[Address, ProtocolFactory],
    ) -> None:
        """Connect to nothing yet.

        Args:
            runtime: network, clock and randomness.
            namesrv: addresses of the name servers.
            metadata: settings of topics and groups.
            local: address of each server of this process, and what creates its side of a
                connection.
        """
        self._runtime = runtime
        self._local = local
        self.metadata = metadata
        self.pool = self.create_pool(_PROXY, {}, complete_stored)
        self.routes = Routes(
            NameServers(self.pool, namesrv, runtime.random),
            int(REQUEST_TIMEOUT_S * 1000),
            ROUTES_MAX,
        )

    def now_ms(self) -> int:
        """Return epoch milliseconds."""
        return self._runtime.clock.now_ms()

    def create_pool(
        self, client: Address, handlers: Mapping[int, Handler], fast_path: FastPath | None = None
    ) -> ConnectionPool:
        """Return connections for one client.

        Args:
            client: its address, which the broker of this process sees as its peer's.
            handlers: serve requests of brokers, by code.
            fast_path: handles the answers that it recognizes.
        """
        network = LoopbackNetwork(self._runtime.network, self._local, client)
        runtime = replace(self._runtime, network=network)
        return ConnectionPool(runtime, handlers, ConnectionLimits(), fast_path=fast_path)

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the cached route of a topic; None if it must be looked up."""
        return self.routes.cached(topic)

    async def route(self, topic: str) -> TopicRoute:
        """Return the present route of a topic.

        Raises:
            NoRouteError: the name servers do not have the topic.
        """
        route = await self.routes.refresh(topic, REQUEST_TIMEOUT_S)
        if not route.queue_datas:
            raise NoRouteError(f"No topic route info in name server for the topic: {topic}")
        return route

    async def writable_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues for sends; see `publish_queues`."""
        return publish_queues(topic, await self.routes.get(topic, REQUEST_TIMEOUT_S))

    async def readable_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues for receives; see `subscribe_queues`."""
        return subscribe_queues(topic, await self.routes.get(topic, REQUEST_TIMEOUT_S))

    async def address(self, topic: str, broker_name: str) -> str:
        """Return the address of a topic's broker."""
        return await self.routes.address(topic, broker_name, REQUEST_TIMEOUT_S)

    async def close(self) -> None:
        """Close the shared connections."""
        self.routes.close()
        await self.pool.close()
