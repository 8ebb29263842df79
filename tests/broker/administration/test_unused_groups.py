"""Unused groups and offsets are removed, except offsets that a returning group needs."""

from __future__ import annotations

import asyncio

from kourou.broker.administration.unused_groups import UnusedGroups
from kourou.broker.wiring import build_unused_groups
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.test_host_quotas import heartbeat

KEEP_S = 1_000


def unused(broker: SimulatedBroker) -> UnusedGroups:
    return build_unused_groups(broker.components)


def config(**options: object) -> object:
    return small_config(unused_group_ms=KEEP_S * 1000, **options)


async def pass_the_time(checks: UnusedGroups) -> None:
    """Let slightly more than `unused_group_ms` pass."""
    await checks.check()
    await asyncio.sleep(KEEP_S + 1)
    await checks.check()


def test_an_unused_group_is_removed_with_its_retry_topic() -> None:
    async def test(broker: SimulatedBroker) -> None:
        checks, peer = unused(broker), FakePeer()
        broker.topics.put(TopicConfig("T", 4, 4))
        heartbeat(broker, peer, "g")
        await pass_the_time(checks)
        assert broker.groups.get("g") is not None, "it has a member"

        broker.clients.remove_connection(peer)
        await checks.check()
        await asyncio.sleep(KEEP_S - 1)
        await checks.check()
        assert broker.groups.get("g") is not None
        await asyncio.sleep(2)
        await checks.check()
        assert broker.groups.get("g") is None
        assert broker.topics.get("%RETRY%g") is None
        assert broker.topics.get("T") is not None

        heartbeat(broker, peer, "g")
        assert broker.groups.get("g") is not None, "its next use makes it again"

    run_with_broker(test, config=config())  # type: ignore[arg-type]


def test_the_time_counts_from_the_last_use_of_a_group() -> None:
    async def test(broker: SimulatedBroker) -> None:
        checks, peer = unused(broker), FakePeer()
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.get_or_create("g")
        await checks.check()
        await asyncio.sleep(KEEP_S - 1)
        heartbeat(broker, peer, "g")
        await checks.check()
        broker.clients.remove_connection(peer)
        await asyncio.sleep(KEEP_S - 1)
        await checks.check()
        assert broker.groups.get("g") is not None

    run_with_broker(test, config=config())  # type: ignore[arg-type]


def test_a_group_with_settings_bans_offsets_or_retries_is_kept() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.topics.put(TopicConfig("%RETRY%has-retries", 1, 1))
        for name in ("has-offset", "has-retries", "is-forbidden", "CID_RMQ_SYS_x", "nothing"):
            broker.groups.get_or_create(name)
        broker.groups.put(SubscriptionGroup("has-settings", retry_max_times=3))
        broker.offsets.commit("has-offset", "T", 0, 0)
        broker.groups.set_read_forbidden("is-forbidden", "T", is_forbidden=True)
        await broker.store_messages([broker.draft(topic="%RETRY%has-retries", queue_id=0)])

        await pass_the_time(unused(broker))

        assert set(broker.groups.names()) >= {
            "has-offset", "has-retries", "is-forbidden", "CID_RMQ_SYS_x", "has-settings",
        }  # fmt: skip
        assert broker.groups.get("nothing") is None
        assert broker.offsets.query("has-offset", "T", 0) == 0

    run_with_broker(test, config=config())  # type: ignore[arg-type]


def test_no_group_is_removed_without_automatic_creation() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.put(SubscriptionGroup("made-by-request"))
        await pass_the_time(unused(broker))
        assert broker.groups.get("made-by-request") is not None

    run_with_broker(
        test,
        config=config(auto_create_subscription_group=False),  # type: ignore[arg-type]
    )


def test_offsets_are_removed_with_their_topic_and_kept_for_a_deleted_group() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.offsets.commit("deleted", "T", 0, 7)
        broker.offsets.commit("g", "missing", 0, 7)
        broker.offsets.note_pulled("h", "missing", 0, 7)
        checks = unused(broker)
        await checks.check()
        assert broker.offsets.query("g", "missing", 0) == 7

        await pass_the_time(checks)

        assert broker.offsets.query("deleted", "T", 0) == 7
        assert broker.offsets.query("g", "missing", 0) is None
        assert broker.offsets.pulled("h", "missing", 0) is None

    run_with_broker(test, config=config())  # type: ignore[arg-type]
