"""Waits for the registration of new topics are complete and bounded in time."""

from __future__ import annotations

import asyncio

import pytest

from kourou.model.topic import TopicConfig
from kourou.testing.loop import run_virtual
from tests.registering import FIRST, SECOND, World, now_s


def test_wait_announced_returns_when_the_name_servers_have_the_topic() -> None:
    async def main() -> None:
        world = World()
        namesrvs = [await world.namesrv(FIRST), await world.namesrv(SECOND)]
        await world.broker.start()
        world.topics.put(TopicConfig("New"))
        assert not world.topics.is_announced()
        began_s = now_s()
        await world.topics.persist_and_announce()
        assert world.topics.is_announced()
        assert await world.has_route(FIRST, "New")
        assert await world.has_route(SECOND, "New")
        assert now_s() - began_s < 0.2
        began_s = now_s()
        await world.topics.persist_and_announce()
        assert now_s() == began_s, "nothing changed since"
        await world.stop(*namesrvs)

    run_virtual(main())


def test_wait_announced_skips_unreachable_name_servers_and_waits_a_second_for_hanging_ones() -> (
    None
):
    async def main() -> None:
        world = World()
        namesrv = await world.namesrv(SECOND)
        await world.broker.start()
        world.topics.put(TopicConfig("New"))
        began_s = now_s()
        await world.topics.persist_and_announce()
        assert await world.has_route(SECOND, "New")
        assert now_s() - began_s < 0.2, "the first was never there"
        await asyncio.sleep(1)
        world.network.stall(SECOND)
        world.topics.put(TopicConfig("Newer"))
        began_s = now_s()
        await world.topics.persist_and_announce()
        assert now_s() - began_s == pytest.approx(1)
        await world.stop(namesrv)

    run_virtual(main())


def test_wait_announced_returns_at_once_if_no_name_server_is_reachable() -> None:
    async def main() -> None:
        world = World()
        await world.broker.start()
        world.topics.put(TopicConfig("New"))
        began_s = now_s()
        await world.topics.persist_and_announce()
        assert now_s() == began_s
        await world.stop()

    run_virtual(main())
