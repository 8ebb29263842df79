"""AdminClient: topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from kourou.client import calls_admin_topics
from kourou.client.admin_calls import AdminCalls, ask_all
from kourou.client.retrying import Deadline
from kourou.errors import (
    InvalidTopicError,
    RequestNotSupportedError,
    RequestTimeoutError,
    TopicNotFoundError,
    TransportError,
)
from kourou.model.route import TopicRoute
from kourou.model.topic import PERM_READ, PERM_WRITE, TopicConfig, check_topic, is_system_topic
from kourou.protocol.bodies import TopicStatsTable, decode_topic_list
from kourou.protocol.codes import RequestCode

DEFAULT_QUEUES: Final = 8
"""Queues of a new topic on each broker, as brokers give a topic that they create by themselves."""

_ROUTE_POLL_S: Final = 0.05


class TopicAdmin(AdminCalls):
    """Creates, deletes and describes topics."""

    async def topic_list(self) -> list[str]:
        """Return the names of all topics, the system's own included, sorted."""
        body = await self._ask_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_topic_list(body))

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = DEFAULT_QUEUES,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        broker_name: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic or change it, and return when the name servers know it.

        Args:
            topic: its name.
            queues: on each broker, for reading and writing alike.
            perm: PERM_READ, PERM_WRITE and PERM_INHERIT of `kourou.model.topic` together.
            order: declare it ordered.
            attributes: to set; others stay.
            broker_name: only on that broker.
            cluster: only on the brokers of that cluster.

        Raises:
            InvalidTopicError: the name is not valid, or the system's own.
            NoRouteError: there is no such broker or cluster, or no broker at all.
            RequestTimeoutError: all brokers have it, but no name server told so in time.
        """
        _check_own_topic(topic)
        config = TopicConfig(
            topic, queues, queues, perm, order=order, attributes=dict(attributes or {})
        )
        masters = await self._masters(broker_name=broker_name, cluster=cluster)
        for server in masters.values():
            await calls_admin_topics.create_topic(server, config)
        await self._wait_for_route(topic, masters.keys())

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic and its messages on all brokers.

        Raises:
            InvalidTopicError: the name is not valid, or the system's own.
            TopicNotFoundError: no name server knows it.
        """
        _check_own_topic(topic)
        for server in (await self._topic_masters(topic)).values():
            await calls_admin_topics.delete_topic(server, topic)
        for address in await self._instance.name_servers.all():
            try:
                await calls_admin_topics.forget_topic(self._server(address), topic)
            except (RequestNotSupportedError, TransportError):
                # Ours forgets what brokers no longer register; one that is away asks them again.
                continue

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Return what each broker knows of the topic, by broker name.

        Raises:
            TopicNotFoundError: no name server knows it.
        """
        masters = await self._topic_masters(topic)
        return await ask_all(masters, lambda server: calls_admin_topics.topic_config(server, topic))

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """Return what the topic's queues hold, over all brokers, sorted by queue.

        Raises:
            TopicNotFoundError: no name server knows it.
        """
        masters = await self._topic_masters(topic)
        parts = await ask_all(masters, lambda server: calls_admin_topics.topic_stats(server, topic))
        offsets = {queue: found for part in parts.values() for queue, found in part.offsets.items()}
        return TopicStatsTable(
            dict(sorted(offsets.items())), sum(part.topic_put_tps for part in parts.values())
        )

    async def _wait_for_route(self, topic: str, broker_names: Iterable[str]) -> None:
        deadline = Deadline(self._config.admin_timeout_ms)
        while deadline.remaining_s() > 0:
            try:
                route = await self.topic_route(topic)
            except TopicNotFoundError:
                route = TopicRoute((), ())
            if set(broker_names) <= {queues.broker_name for queues in route.queue_datas}:
                return
            await asyncio.sleep(_ROUTE_POLL_S)
        raise RequestTimeoutError(
            f"topic {topic} is created, but the name servers did not tell so within "
            f"{self._config.admin_timeout_ms} ms"
        )


def _check_own_topic(topic: str) -> None:
    check_topic(topic)
    if is_system_topic(topic):
        raise InvalidTopicError(f"topic {topic} is the system's own")
