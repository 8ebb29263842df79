"""Routes for assignments: look-up at name servers, cache, behaviour while none answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kourou.broker.consuming.assignment_routes import FRESH_MS, AssignmentRoutes
from kourou.model.topic import TopicConfig
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import parse_address
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.steady_time import steady_ms
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker


@asynccontextmanager
async def routes_of(cluster: Cluster) -> AsyncIterator[AssignmentRoutes]:
    pool = ConnectionPool(cluster.runtime, {}, ConnectionLimits())
    namesrv = tuple(cluster.namesrv_addr.split(";"))
    topics: object = None
    try:
        yield AssignmentRoutes(namesrv, "broker-x", topics, pool, steady_ms)  # type: ignore[arg-type]
    finally:
        await pool.close()


def test_concurrent_requests_share_a_look_up_of_all_brokers_queues() -> None:
    async def main() -> None:
        async with recording(brokers=2, queues=2) as w, routes_of(w.cluster) as routes:
            assert routes.cached_queues(TOPIC) is None
            first, second = await asyncio.gather(routes.look_up(TOPIC), routes.look_up(TOPIC))
            assert first is second
            assert [(one.broker_name, one.queue_id) for one in first or ()] == [
                ("broker-0", 0),
                ("broker-0", 1),
                ("broker-1", 0),
                ("broker-1", 1),
            ]
            assert routes.cached_queues(TOPIC) == first
            await asyncio.sleep(FRESH_MS / 1000 + 1)
            assert routes.cached_queues(TOPIC) is None

    run_virtual(main())


def test_a_cached_route_stays_valid_while_no_name_server_answers() -> None:
    async def main() -> None:
        async with recording() as w, routes_of(w.cluster) as routes:
            before = await routes.look_up(TOPIC)
            where = parse_address(w.cluster.namesrv_addr)
            w.cluster.network.cut(where)
            await asyncio.sleep(FRESH_MS / 1000 + 1)
            assert await routes.look_up(TOPIC) == before
            assert await routes.look_up("unheard") is None
            w.cluster.network.heal(where)

    run_virtual(main())


def test_waiting_for_a_silent_name_server_is_limited() -> None:
    async def main() -> None:
        async with recording() as w, routes_of(w.cluster) as routes:
            where = parse_address(w.cluster.namesrv_addr)
            w.cluster.network.stall(where)
            async with asyncio.timeout(4):
                assert await routes.look_up(TOPIC) is None
            w.cluster.network.heal(where)

    run_virtual(main())


def test_a_topic_unknown_to_the_name_server_is_dropped() -> None:
    async def main() -> None:
        async with recording() as w, routes_of(w.cluster) as routes, w.cluster.admin() as admin:
            assert await routes.look_up(TOPIC)
            await admin.delete_topic(TOPIC)
            await asyncio.sleep(60)
            assert await routes.look_up(TOPIC) is None
            assert await routes.look_up(TOPIC) is None

    run_virtual(main())


def test_the_least_recently_used_topic_is_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kourou.broker.consuming.assignment_routes.TOPICS_MAX", 2)

    async def main() -> None:
        async with recording() as w, routes_of(w.cluster) as routes, w.cluster.admin() as admin:
            for topic in ("A", "B", "C"):
                await admin.create_topic(topic, queues=1)
            for topic in ("A", "B"):
                await routes.look_up(topic)
            assert routes.cached_queues("A")
            await routes.look_up("C")
            assert routes.cached_queues("A")
            assert routes.cached_queues("B") is None

    run_virtual(main())


def test_without_name_servers_a_broker_knows_its_own_queues() -> None:
    async def test(broker: SimulatedBroker) -> None:
        pool: object = None
        routes = AssignmentRoutes((), "broker-a", broker.topics, pool, steady_ms)  # type: ignore[arg-type]
        broker.topics.put(TopicConfig("T", 3, 2))
        broker.topics.put(TopicConfig("W", 3, 2, perm=2))
        assert [one.queue_id for one in routes.cached_queues("T") or ()] == [0, 1, 2]
        assert routes.cached_queues("W") == []
        assert routes.cached_queues("absent") is None
        assert await routes.look_up("absent") is None

    run_with_broker(test)
