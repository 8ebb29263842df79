"""Cache of topic routes, looked up at the name servers.

A cached route is kept if the name servers no longer have the topic: while a broker restarts, they
have no route to it for a moment, and clients should retry instead of failing. Servers that serve
other clients forget it after some time (`denied_s_max`), because topics are deleted, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final

from kourou.client.name_servers import NameServers
from kourou.errors import (
    ConnectFailedError,
    KourouError,
    NoRouteError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from kourou.model.route import MASTER_ID, QueueData, TopicRoute
from kourou.model.topic import AUTO_CREATE_TOPIC, TRACE_TOPIC, is_system_topic
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.routes import GetRouteInfoRequestHeader, decode_topic_route

log = logging.getLogger(__name__)

_SUSPECTED_S: Final = 0.5
"""Shortest time between two look-ups of a route that is only suspected to be stale."""


class Routes:
    """Cache of the routes of the topics in use, and of their brokers' addresses.

    Args:
        name_servers: the name servers to query.
        timeout_ms: timeout of one look-up.
        routes_max: maximum number of cached routes; the least recently used is evicted first.
        auto_create_queue_nums: for a topic without a route, use the brokers that create topics
            automatically, with at most this number of queues each. None: such a topic is an error.
        on_changed: called with the topic after its route has changed.
        remedy: returns what the user can do about a topic that does not exist, for the error.
        denied_s_max: seconds after which a cached route is forgotten while the name servers do not
            have its topic.
    """

    def __init__(
        self,
        name_servers: NameServers,
        timeout_ms: int,
        routes_max: int,
        auto_create_queue_nums: int | None = None,
        on_changed: Callable[[str], None] | None = None,
        remedy: Callable[[str], str] | None = None,
        denied_s_max: float = math.inf,
    ) -> None:
        self._name_servers = name_servers
        self._timeout_s = timeout_ms / 1000
        self._routes_max = routes_max
        self._auto_create_queue_nums = auto_create_queue_nums
        self._on_changed = on_changed
        self._remedy = remedy or _remedy
        self._denied_s_max = denied_s_max
        self._routes: dict[str, TopicRoute] = {}  # in the order of last use
        self._lookups: dict[str, asyncio.Task[TopicRoute]] = {}
        self._suspected_at_s: dict[str, float] = {}  # of topics in `_routes`
        self._denied_since_s: dict[str, float] = {}  # likewise

    async def get(self, topic: str, timeout_s: float) -> TopicRoute:
        """Return the cached route, or look it up.

        Raises:
            NoRouteError, ConnectFailedError, RequestTimeoutError, RemoteError: as `refresh`.
        """
        return self.cached(topic) or await self.refresh(topic, timeout_s)

    def cached(self, topic: str) -> TopicRoute | None:
        """Return the cached route, or None, and mark it as recently used."""
        route = self._routes.pop(topic, None)
        if route is not None:
            self._routes[topic] = route
        return route

    async def refresh(self, topic: str, timeout_s: float) -> TopicRoute:
        """Look up the route; concurrent callers share one request.

        Cancelling a caller does not cancel the request.

        Raises:
            NoRouteError: the name servers do not have the topic, and no route is cached.
            ConnectFailedError: no name server answered.
            RequestTimeoutError: the look-up took longer than `timeout_s`.
            RemoteError: a name server answered with another error.
        """
        lookup = self._start_lookup(topic)
        done, _ = await asyncio.wait({lookup}, timeout=timeout_s)
        if not done:
            raise RequestTimeoutError(
                f"the name servers {self._name_servers.text} did not return the "
                f"route of {topic} within {timeout_s:.3g} s"
            )
        if lookup.cancelled():
            raise ConnectFailedError("the client closed while it looked up a route")
        try:
            return lookup.result()
        finally:
            del lookup, done  # its error would refer to itself through them

    def refresh_soon(self, topic: str) -> None:
        """Start a look-up without waiting for it; after a failure the cached route is kept."""
        self._start_lookup(topic)

    def on_failure(self, topic: str, error: KourouError) -> None:
        """Start a look-up if a failed request shows that the route is stale, or may be.

        A busy broker is asked about its route at a limited rate, so that overload does not spread
        to name servers.
        """
        if error.refresh_route:
            self.refresh_soon(topic)
        elif error.suspects_route:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._suspected_at_s.get(topic, -math.inf) >= _SUSPECTED_S:
                self._suspected_at_s[topic] = now_s
                self.refresh_soon(topic)

    async def refresh_all(self) -> None:
        """Look up all cached routes, one after the other.

        Raises:
            ConnectFailedError: no name server answered; the cached routes are kept.
        """
        for topic in list(self._routes):
            try:
                await self.refresh(topic, self._timeout_s)
            except ConnectFailedError:
                raise
            except KourouError as error:
                log.warning("route.kept topic=%s reason=%s", topic, error)

    def broker_addresses(self, *, masters_only: bool) -> list[str]:
        """Return the addresses of all brokers in the cached routes, sorted."""
        return sorted(
            {
                address
                for route in self._routes.values()
                for broker in route.broker_datas
                for broker_id, address in broker.broker_addrs.items()
                if broker_id == MASTER_ID or not masters_only
            }
        )

    def masters(self) -> dict[str, tuple[str, str]]:
        """Return broker name -> (one of its topics, its master's address), of the cached routes."""
        return {
            broker.broker_name: (topic, broker.broker_addrs[MASTER_ID])
            for topic, route in self._routes.items()
            for broker in route.broker_datas
            if MASTER_ID in broker.broker_addrs
        }

    async def address(
        self, topic: str, broker_name: str, timeout_s: float, broker_id: int | None = MASTER_ID
    ) -> str:
        """Return the address of a broker of the topic.

        Args:
            topic: the topic whose route is used.
            broker_name: the broker.
            timeout_s: timeout of a look-up, which is needed if the cached route lacks the broker.
            broker_id: the replica. If it is missing, any other replica is used, except that
                `MASTER_ID` is never replaced. None: the master if there is one, else any replica.

        Raises:
            NoRouteError: the route lacks the broker, also after a new look-up.
        """
        for route in (await self.get(topic, timeout_s), None):
            found = route or await self.refresh(topic, timeout_s)
            address = _address(found, broker_name, broker_id)
            if address is not None:
                return address
        raise NoRouteError(f"no name server has an address of broker {broker_name} for {topic}")

    def close(self) -> None:
        """Cancel the look-ups in progress."""
        for lookup in self._lookups.values():
            lookup.cancel()

    def _start_lookup(self, topic: str) -> asyncio.Task[TopicRoute]:
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(topic), name=f"route {topic}")
            self._lookups[topic] = lookup
            lookup.add_done_callback(lambda done: self._end_lookup(topic, done))
        return lookup

    def _end_lookup(self, topic: str, lookup: asyncio.Task[TopicRoute]) -> None:
        del self._lookups[topic]
        if not lookup.cancelled() and (error := lookup.exception()) is not None:
            # Waiting callers get the error too; after `refresh_soon` there may be none.
            log.debug("route.unknown topic=%s reason=%s", topic, error)

    async def _look_up(self, topic: str) -> TopicRoute:
        try:
            route = await self._query(topic)
        except TopicNotFoundError:
            cached = self._routes.get(topic)
            if cached is not None:
                now_s = asyncio.get_running_loop().time()
                since_s = self._denied_since_s.setdefault(topic, now_s)
                if now_s - since_s < self._denied_s_max:
                    return cached
                self._forget(topic)
            route = await self._default_route(topic)
        self._denied_since_s.pop(topic, None)
        cached = self._routes.pop(topic, None)
        # The same object while nothing changes, so that callers may cache values derived from it.
        self._routes[topic] = cached if route == cached else route
        while len(self._routes) > self._routes_max:
            self._forget(next(iter(self._routes)))
        if route != cached:
            log.debug("route.changed topic=%s", topic)
            if self._on_changed is not None:
                self._on_changed(topic)
        return route

    def _forget(self, topic: str) -> None:
        del self._routes[topic]
        self._suspected_at_s.pop(topic, None)
        self._denied_since_s.pop(topic, None)

    async def _query(self, topic: str) -> TopicRoute:
        header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = await self._name_servers.request(command, self._timeout_s)
        return decode_topic_route(answer.body)

    async def _default_route(self, topic: str) -> TopicRoute:
        """Return the route of a topic that does not exist yet: a broker creates it on first use.

        Raises:
            NoRouteError: this client or all brokers have automatic creation switched off.
        """
        if self._auto_create_queue_nums is not None:
            try:
                route = await self._query(AUTO_CREATE_TOPIC)
            except TopicNotFoundError:
                pass
            else:
                return _with_queue_nums(route, self._auto_create_queue_nums)
        raise NoRouteError(
            f"no name server of {self._name_servers.text} has the topic {topic}: "
            f"{self._remedy(topic)}"
        )


def _remedy(topic: str) -> str:
    """Return what creates a topic that does not exist."""
    if topic == TRACE_TOPIC:
        return (
            "the first trace of a client creates it, or a broker with traceTopicEnable: switch on "
            "the traces of producers and consumers"
        )
    if is_system_topic(topic):
        return "it is a system topic, which brokers create when they need it"
    return (
        f"create it (kourou topic create {topic}), or let brokers create topics automatically "
        "(autoCreateTopicEnable)"
    )


def _with_queue_nums(route: TopicRoute, queue_nums_max: int) -> TopicRoute:
    """Return the route with at most `queue_nums_max` queues on each broker."""

    def limited(queues: QueueData) -> QueueData:
        nums = min(queue_nums_max, queues.read_queue_nums)
        return QueueData(queues.broker_name, nums, nums, queues.perm, queues.topic_sys_flag)

    return TopicRoute(tuple(map(limited, route.queue_datas)), route.broker_datas)


def _address(route: TopicRoute, broker_name: str, broker_id: int | None) -> str | None:
    if broker_id == MASTER_ID:
        return route.master_address(broker_name)
    if broker_id is not None:
        for broker in route.broker_datas:
            if broker.broker_name == broker_name and broker_id in broker.broker_addrs:
                return broker.broker_addrs[broker_id]
    return route.any_address(broker_name)
