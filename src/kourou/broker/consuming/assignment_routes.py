"""Queues of topics on all brokers, from the name servers, for assignments.

A topic is looked up when a member first asks for its assignment, and again when the cached route is
older than 30 s; the request then waits for the answer. If no name server answers, the cached route
stays valid: otherwise members would lose queues because of a name server.

Source: TopicRouteInfoManager.java, apache/rocketmq 5.5.0, which looks up all topics every 30 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kourou.broker.topics import Topics
from kourou.errors import KourouError, TopicNotFoundError
from kourou.model.queue import MessageQueue
from kourou.model.route import subscribe_queues
from kourou.model.topic import is_readable
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.routes import GetRouteInfoRequestHeader, decode_topic_route
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)

FRESH_MS: Final = 30_000
"""Time for which a route of a name server is valid."""
TIMEOUT_MS: Final = 3_000
"""Time limit for the answer of one name server."""
TOPICS_MAX: Final = 10_000
"""Limit on cached topics; the least recently used one is dropped."""


@dataclass(slots=True)
class _CachedRoute:
    queues: list[MessageQueue]
    at_ms: int


class AssignmentRoutes:
    """Cache of the queues of topics.

    Args:
        namesrv: addresses of the name servers; without any, only this broker's queues are known.
        broker_name: name of this broker.
        topics: topics of this broker.
        pool: connections to name servers.
        now_ms: a clock that never goes back.
    """

    def __init__(
        self,
        namesrv: tuple[str, ...],
        broker_name: str,
        topics: Topics,
        pool: ConnectionPool,
        now_ms: Callable[[], int],
    ) -> None:
        self._namesrv = namesrv
        self._broker_name = broker_name
        self._topics = topics
        self._pool = pool
        self._now_ms = now_ms
        self._cache: dict[str, _CachedRoute] = {}  # in the order of last use
        self._look_ups: dict[str, asyncio.Task[list[MessageQueue] | None]] = {}

    def cached_queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the topic's queues, sorted, if the cached route is valid; else None."""
        if not self._namesrv:
            return self._own_queues(topic)
        route = self._cache.pop(topic, None)
        if route is None:
            return None
        self._cache[topic] = route
        return route.queues if self._now_ms() - route.at_ms < FRESH_MS else None

    async def look_up(self, topic: str) -> list[MessageQueue] | None:
        """Return the topic's queues, sorted; None if no name server knows it or answers.

        Concurrent requests for one topic share a look-up.
        """
        look_up_task = self._look_ups.get(topic)
        if look_up_task is None:
            look_up_task = asyncio.create_task(self._look_up(topic), name=f"queues of {topic}")
            self._look_ups[topic] = look_up_task
            look_up_task.add_done_callback(lambda _: self._look_ups.pop(topic, None))
        return await asyncio.shield(look_up_task)

    async def _look_up(self, topic: str) -> list[MessageQueue] | None:
        if not self._namesrv:
            return self._own_queues(topic)
        for address in self._namesrv:
            try:
                queues = await self._query(address, topic)
            except TopicNotFoundError:
                self._cache.pop(topic, None)
                return None
            except (KourouError, OSError) as error:
                log.warning(
                    "assignment.no_route topic=%s namesrv=%s reason=%s", topic, address, error
                )
                continue
            self._cache[topic] = _CachedRoute(queues, self._now_ms())
            while len(self._cache) > TOPICS_MAX:
                del self._cache[next(iter(self._cache))]
            return queues
        route = self._cache.get(topic)
        return route.queues if route is not None else None

    async def _query(self, address: str, topic: str) -> list[MessageQueue]:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            connection = await self._pool.get(address)
            header = GetRouteInfoRequestHeader(topic, accept_standard_json_only=True)
            asked = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            answer = await connection.request(asked, TIMEOUT_MS / 1000)
        raise_for_response(answer)
        return subscribe_queues(topic, decode_topic_route(answer.body))

    def _own_queues(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.get(topic)
        if config is None:
            return None
        nums = config.read_queue_nums if is_readable(config.perm) else 0
        return [MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(nums)]
