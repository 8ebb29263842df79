"""Settings of topics and groups, read from brokers and cached.

A change at the broker reaches the proxy with the second use of the setting after 20 s. While no
broker answers, the proxy works with what it has read before.

Source: ClusterMetadataService.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from kourou.client.routes import Routes
from kourou.errors import GroupNotFoundError, NoRouteError, TopicNotFoundError, TransportError
from kourou.model.group import SubscriptionGroup
from kourou.model.route import MASTER_ID
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.groups import (
    GetSubscriptionGroupConfigRequestHeader,
    decode_subscription_group,
)
from kourou.protocol.topics import GetTopicConfigRequestHeader, decode_topic_config
from kourou.proxy.checks import type_of_topic
from kourou.proxy.refreshed_cache import RefreshedCache
from kourou.remoting.pool import ConnectionPool

T = TypeVar("T")

_ROUTE_S: Final = 3.0
"""Time for the look-up of a route."""
_TIMEOUT_S: Final = 1.0
"""Time for the answer of a broker: SDKs wait 3 s, in which another broker is to be asked."""
_FAILURES_MAX: Final = 2
"""Brokers that may fail to answer before a look-up fails: each takes up to `_TIMEOUT_S`."""


class RemoteMetadata:
    """A `Metadata` of brokers of a cluster. Created inside a running loop.

    Args:
        pool: connections to the brokers.
        routes: routes of topics; groups are looked up at the brokers of all cached ones.
        rng: chooses the broker to ask first.
    """

    def __init__(self, pool: ConnectionPool, routes: Routes, rng: random.Random) -> None:
        self._pool = pool
        self._routes = routes
        self._random = rng
        self._topics: RefreshedCache[TopicConfig] = RefreshedCache(self._load_topic, "topics")
        self._groups: RefreshedCache[SubscriptionGroup] = RefreshedCache(self._load_group, "groups")

    async def topic_type(self, topic: str) -> str:
        return type_of_topic(await self._topics.get(topic))

    def known_topic_type(self, topic: str) -> str | None:
        config = self._topics.known(topic)
        return None if config is None else type_of_topic(config)

    async def group(self, name: str) -> SubscriptionGroup | None:
        return await self._groups.get(name)

    def known_group(self, name: str) -> SubscriptionGroup | None:
        return self._groups.known(name)

    def close(self) -> None:
        """Cancel the look-ups in progress."""
        self._topics.close()
        self._groups.close()

    async def _load_topic(self, topic: str) -> TopicConfig | None:
        try:
            route = await self._routes.get(topic, _ROUTE_S)
            if not any(MASTER_ID in broker.broker_addrs for broker in route.broker_datas):
                route = await self._routes.refresh(topic, _ROUTE_S)
        except NoRouteError:
            return None
        names = [broker.broker_name for broker in route.broker_datas]
        addresses = [address for name in names if (address := route.any_address(name))]

        async def query(address: str) -> TopicConfig:
            header = GetTopicConfigRequestHeader(topic)
            command = request(RequestCode.GET_TOPIC_CONFIG, header)
            return decode_topic_config(await self._body(address, command))

        return await self._first(addresses, query, TopicNotFoundError)

    async def _load_group(self, name: str) -> SubscriptionGroup | None:
        async def query(address: str) -> SubscriptionGroup:
            header = GetSubscriptionGroupConfigRequestHeader(name)
            command = request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
            return decode_subscription_group(await self._body(address, command))

        addresses = {address for _, address in self._routes.masters().values()}
        # While the next masters are elected, slaves know the groups, too.
        known = addresses or self._routes.broker_addresses(masters_only=False)
        return await self._first(sorted(known), query, GroupNotFoundError)

    async def _body(self, address: str, command: RemotingCommand) -> bytes:
        answer = await self._pool.request(address, command, _TIMEOUT_S)
        raise_for_response(answer)
        return bytes(answer.body)

    async def _first(
        self,
        addresses: Iterable[str],
        query: Callable[[str], Awaitable[T]],
        not_found: type[Exception],
    ) -> T | None:
        """Return the answer of the first broker that has one; None if the brokers have none.

        Raises:
            TransportError: brokers did not answer, so the others' answers prove nothing.
            RemoteError: a broker refused.
        """
        shuffled = list(addresses)
        self._random.shuffle(shuffled)
        failures: list[TransportError] = []
        for address in shuffled:
            try:
                return await query(address)
            except not_found:
                continue
            except TransportError as error:
                failures.append(error)
                if len(failures) >= _FAILURES_MAX:
                    break
        if failures:
            raise failures[0]
        return None
