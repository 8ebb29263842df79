"""Brokers and name servers, as a proxy reaches them: by the requests of RocketMQ's own clients.

In local mode the broker of the process is reached without a socket
(`kourou.remoting.loopback`); the requests are the same, but plain sends need none
(`Cluster.local_sends`). Sends of all clients share connections. A consumer has connections of its
own, because brokers know members of a group by their connections.

In cluster mode any broker may fail: its queues are avoided by sends for some seconds, and routes
are looked up again while they are in use. What a broker with replicas did not serve waits, for
`MASTER_WAIT_S` at most, until another replica is its master: the tries of an SDK, three at once by
default, would end before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kourou.client.name_servers import NameServers
from kourou.client.routes import Routes
from kourou.client.sending.latency_fault import LatencyFaults
from kourou.errors import ConnectionLostError, KourouError, NoRouteError, TransportError
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.model.route import MASTER_ID, TopicRoute, publish_queues, subscribe_queues
from kourou.model.topic import is_dlq_topic, is_retry_topic
from kourou.proxy.plain_sends import complete_stored
from kourou.proxy.queue_choice import QueueCache
from kourou.proxy.remote_metadata import RemoteMetadata
from kourou.proxy.status import is_not_served
from kourou.remoting.connection import FastPath
from kourou.remoting.dispatch import Handler
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.loopback import LoopbackNetwork
from kourou.remoting.network import Address, format_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.remoting.tls import TlsClientConfig

if TYPE_CHECKING:  # a proxy in front of other processes stores nothing
    from kourou.broker.sending.local_sends import LocalSends

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 3.0
"""Time for a request to a broker or a name server that is not held there."""
_KNOWN_ROUTE_S: Final = 2.0
"""Time for the look-up of a route that is known: less than the 3 s that SDKs wait for an answer."""
ROUTES_MAX: Final = 20_000
MASTER_WAIT_S: Final = 2.0
"""Longest wait of a call for the next master: less than the 3 s that SDKs wait for an answer."""
_MASTER_WAITS_MAX: Final = 1_000
"""Calls that may wait for masters; further ones fail at once."""
_MASTER_PAUSE_S: Final = 0.1
"""First pause of such a wait; each one after a refusal is twice as long."""
ROUTE_REFRESH_S: Final = 20.0
"""Age in seconds from which a route is looked up again when it is used."""
ROUTE_DENIED_S: Final = 60.0
"""Seconds for which the route of a topic is used that the name servers do not have any more: they
have none for a moment while its broker or they themselves restart."""
_PROXY: Final[Address] = ("127.0.0.1", 0)


class Metadata(Protocol):
    """Settings of topics and groups."""

    async def topic_type(self, topic: str) -> str:
        """Return the type of a topic's messages, such as FIFO; UNSPECIFIED of an unknown topic."""

    def known_topic_type(self, topic: str) -> str | None:
        """Return the type like `topic_type`; None if a broker must be asked for it."""

    async def group(self, name: str) -> SubscriptionGroup | None:
        """Return a consumer group; None if there is none."""

    def known_group(self, name: str) -> SubscriptionGroup | None:
        """Return a group like `group`; None also if a broker must be asked for it."""


class LocalBroker(Protocol):
    """A broker of this process; see `kourou.broker.server.Broker`."""

    def create_connection(self) -> asyncio.BufferedProtocol: ...

    def create_local_sends(self, born_host: Address, address: Address) -> LocalSends | None: ...


class Cluster:
    """The brokers of one proxy. Created inside a running loop.

    Attributes:
        is_local: the broker is in the process of the proxy.
        pool: connections for requests that belong to no member of a group.
        routes: routes of topics.
        metadata: settings of topics and groups.
    """

    def __init__(
        self,
        runtime: Runtime,
        namesrv: tuple[str, ...],
        metadata: Metadata | None = None,
        local: Mapping[Address, LocalBroker] | None = None,
        *,
        tls: TlsClientConfig | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            runtime: network, clock and randomness.
            namesrv: addresses of the name servers.
            metadata: settings of topics and groups; None: they are read from the brokers.
            local: the brokers of this process by address; None: they are other processes.
            tls: of connections to name servers and brokers; None: plain.
        """
        self._runtime = runtime
        brokers = local or {}
        self._servers = {at: broker.create_connection for at, broker in brokers.items()}
        self._local_sends = {
            format_address(at): broker.create_local_sends(_PROXY, at)
            for at, broker in brokers.items()
        }
        self._tls = tls
        self.is_local = local is not None
        self.pool = self.create_pool(_PROXY, {}, complete_stored)
        self.name_servers = NameServers(self.pool, namesrv, runtime.random)
        self.routes = Routes(
            self.name_servers,
            int(REQUEST_TIMEOUT_S * 1000),
            ROUTES_MAX,
            remedy=_remedy,
            denied_s_max=ROUTE_DENIED_S,
        )
        self._remote = RemoteMetadata(self.pool, self.routes, runtime.random)
        self.metadata: Metadata = metadata or self._remote
        self._now_s = asyncio.get_running_loop().time
        self._refreshed_s: dict[str, float] = {}
        self._faults = LatencyFaults()
        self._writable = QueueCache(publish_queues, ROUTES_MAX)
        self._readable = QueueCache(subscribe_queues, ROUTES_MAX)
        self._waiting = 0

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
        network = LoopbackNetwork(self._runtime.network, self._servers, client)
        runtime = replace(self._runtime, network=network)
        return ConnectionPool(
            runtime, handlers, ConnectionLimits(), tls=self._tls, fast_path=fast_path
        )

    def local_sends(self, address: str) -> LocalSends | None:
        """Return what takes messages for a broker of this process without frames.

        None: the broker is another process, or its messages must take a connection.
        """
        return self._local_sends.get(address)

    async def route(self, topic: str) -> TopicRoute:
        """Return the present route of a topic, or the known one while no name server answers.

        Raises:
            NoRouteError: the name servers do not have the topic.
        """
        known = self.routes.cached(topic)
        timeout_s = REQUEST_TIMEOUT_S if known is None else _KNOWN_ROUTE_S
        try:
            route = await self.routes.refresh(topic, timeout_s)
        except NoRouteError:
            raise
        except KourouError:
            if known is None:
                raise
            route = known
        if not route.queue_datas:
            raise NoRouteError(f"No topic route info in name server for the topic: {topic}")
        return route

    async def cached_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic, which may be out of date for `ROUTE_REFRESH_S`.

        Raises:
            NoRouteError: the name servers do not have the topic.
        """
        route = self.known_route(topic)
        if route is None:
            route = await self.routes.get(topic, REQUEST_TIMEOUT_S)
            self._note_refresh(topic)
        return route

    def known_route(self, topic: str) -> TopicRoute | None:
        """Return the cached route, which may be as old as `cached_route`'s; None without one."""
        route = self.routes.cached(topic)
        if route is not None:
            now_s = self._now_s()
            if now_s - self._refreshed_s.setdefault(topic, now_s) >= ROUTE_REFRESH_S:
                self._refresh_soon(topic)
        return route

    async def writable_queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues for sends; see `publish_queues`.

        Waits for a master if the topic's brokers have none.
        """
        route = await self.cached_route(topic)
        queues = self._writable.queues(topic, route)
        if not queues and any(MASTER_ID not in one.broker_addrs for one in route.broker_datas):
            await self._await_writable(topic)
            queues = self._writable.queues(topic, await self.cached_route(topic))
        return queues

    async def readable_queues(self, topic: str, broker_name: str = "") -> Sequence[MessageQueue]:
        """Return the queues for receives; see `subscribe_queues`.

        Args:
            topic: of the queues.
            broker_name: the route is looked up again if it does not have this broker, which may
                have been restarted.
        """
        route = await self.cached_route(topic)
        if broker_name and route.any_address(broker_name) is None:
            with suppress(TransportError):
                route = await self.routes.refresh(topic, REQUEST_TIMEOUT_S)
        return self._readable.queues(topic, route)

    async def address(self, topic: str, broker_name: str) -> str:
        """Return the address of a topic's broker."""
        return await self.routes.address(topic, broker_name, REQUEST_TIMEOUT_S)

    def available(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """Return the queues of brokers that did not fail lately; all if there are none."""
        now_ms = self.now_ms()
        brokers = {queue.broker_name for queue in queues}
        failed = {name for name in brokers if not self._faults.is_available(name, now_ms)}
        if not failed or failed == brokers:
            return queues
        return [queue for queue in queues if queue.broker_name not in failed]

    @property
    def has_failed_brokers(self) -> bool:
        """Whether sends avoid brokers that failed lately."""
        return self._faults.has_unavailable(self.now_ms())

    def on_failure(self, topic: str, broker_name: str, error: KourouError) -> None:
        """Note a failed request to a broker.

        It is avoided for some seconds if it did not answer, and its new address is looked up if it
        may have been replaced.
        """
        if isinstance(error, TransportError):
            self._faults.on_failed(broker_name, self.now_ms(), is_reachable=True)
            self._refresh_soon(topic)
        else:
            self.routes.on_failure(topic, error)

    async def at_broker(
        self,
        topic: str,
        broker_name: str,
        request: Callable[[str], Awaitable[T]],
        *,
        is_repeatable: bool = True,
    ) -> T:
        """Make a request to the master of a broker, and again while another one takes its place.

        Args:
            topic: whose route is used.
            broker_name: the broker.
            request: makes the request to an address.
            is_repeatable: it has the same effect when it is executed twice.

        Raises:
            KourouError: as the request.
        """
        end_s, pause_s = self._now_s() + MASTER_WAIT_S, _MASTER_PAUSE_S
        while True:
            try:
                return await request(await self.address(topic, broker_name))
            except KourouError as error:
                self.on_failure(topic, broker_name, error)
                # The connections of a broker that changes its role end.
                is_lost = is_repeatable and isinstance(error, ConnectionLostError)
                may_wait = self._now_s() + pause_s < end_s and self._may_be_replaced(
                    topic, broker_name
                )
                if not may_wait or not (is_lost or is_not_served(error)):
                    raise
            await self._pause(pause_s)
            pause_s *= 2
            with suppress(KourouError):
                await self.routes.refresh(topic, end_s - self._now_s())

    def _may_be_replaced(self, topic: str, broker_name: str) -> bool:
        """Return whether a broker has replicas, and a call may wait for the next master."""
        if self.is_local or self._waiting >= _MASTER_WAITS_MAX:
            return False
        route = self.routes.cached(topic)
        return route is not None and route.is_replicated(broker_name)

    async def _pause(self, seconds: float) -> None:
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1

    async def _await_writable(self, topic: str) -> None:
        """Look up a route until it has queues for sends, for `MASTER_WAIT_S` at most."""
        end_s = self._now_s() + MASTER_WAIT_S
        while self._now_s() + _MASTER_PAUSE_S < end_s and self._waiting < _MASTER_WAITS_MAX:
            with suppress(KourouError):
                if publish_queues(topic, await self.routes.refresh(topic, end_s - self._now_s())):
                    return
            await self._pause(_MASTER_PAUSE_S)

    def _refresh_soon(self, topic: str) -> None:
        self._note_refresh(topic)
        self.routes.refresh_soon(topic)

    def _note_refresh(self, topic: str) -> None:
        if len(self._refreshed_s) > ROUTES_MAX:
            self._refreshed_s.clear()
        self._refreshed_s[topic] = self._now_s()

    async def close(self) -> None:
        """Close the shared connections."""
        self._remote.close()
        self.routes.close()
        await self.pool.close()


def _remedy(topic: str) -> str:
    """Return what creates a topic that does not exist; no call of a gRPC client does."""
    if is_retry_topic(topic) or is_dlq_topic(topic):
        return "the first message that a group fails to consume creates it"
    return (
        f"create it (kourou topic create {topic} --type normal|fifo|delay|transaction|priority); "
        "gRPC clients do not create topics"
    )
