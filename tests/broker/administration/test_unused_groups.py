"""Unused groups and offsets are removed, except offsets that a returning group needs."""

from __future__ import annotations

import asyncio

from kourou.broker.administration.unused_groups import UnusedGroups
from kourou.broker.wiring import build_unused_groups
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.testing.broker_parts import BrokerParts, run_with_parts, small_config
from kourou.testing.peers import FakePeer
from tests.broker.test_host_quotas import heartbeat

KEEP_S = 1_000


def unused(parts: BrokerParts) -> UnusedGroups:
    return build_unused_groups(parts.components)


def config(**options: object) -> object:
    return small_config(unused_group_ms=KEEP_S * 1000, **options)


async def pass_the_time(checks: UnusedGroups) -> None:
    """Let slightly more than `unused_group_ms` pass."""
    await checks.check()
    await asyncio.sleep(KEEP_S + 1)
    await checks.check()


def test_an_unused_group_is_removed_with_its_retry_topic() -> None:
    async def test(parts: BrokerParts) -> None:
        checks, peer = unused(parts), FakePeer()
        parts.topics.put(TopicConfig("T", 4, 4))
        heartbeat(parts, peer, "g")
        await pass_the_time(checks)
        assert parts.groups.get("g") is not None, "it has a member"

        parts.clients.remove_connection(peer)
        await checks.check()
        await asyncio.sleep(KEEP_S - 1)
        await checks.check()
        assert parts.groups.get("g") is not None
        await asyncio.sleep(2)
        await checks.check()
        assert parts.groups.get("g") is None
        assert parts.topics.get("%RETRY%g") is None
        assert parts.topics.get("T") is not None

        heartbeat(parts, peer, "g")
        assert parts.groups.get("g") is not None, "its next use makes it again"

    run_with_parts(test, config=config())  # type: ignore[arg-type]


def test_the_time_counts_from_the_last_use_of_a_group() -> None:
    async def test(parts: BrokerParts) -> None:
        checks, peer = unused(parts), FakePeer()
        parts.topics.put(TopicConfig("T", 4, 4))
        parts.groups.get_or_create("g")
        await checks.check()
        await asyncio.sleep(KEEP_S - 1)
        heartbeat(parts, peer, "g")
        await checks.check()
        parts.clients.remove_connection(peer)
        await asyncio.sleep(KEEP_S - 1)
        await checks.check()
        assert parts.groups.get("g") is not None

    run_with_parts(test, config=config())  # type: ignore[arg-type]


def test_a_group_with_settings_bans_offsets_or_retries_is_kept() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        parts.topics.put(TopicConfig("%RETRY%has-retries", 1, 1))
        for name in ("has-offset", "has-retries", "is-forbidden", "CID_RMQ_SYS_x", "nothing"):
            parts.groups.get_or_create(name)
        parts.groups.put(SubscriptionGroup("has-settings", retry_max_times=3))
        parts.offsets.commit("has-offset", "T", 0, 0)
        parts.groups.set_read_forbidden("is-forbidden", "T", is_forbidden=True)
        await parts.store_messages([parts.draft(topic="%RETRY%has-retries", queue_id=0)])

        await pass_the_time(unused(parts))

        assert set(parts.groups.names()) >= {
            "has-offset", "has-retries", "is-forbidden", "CID_RMQ_SYS_x", "has-settings",
        }  # fmt: skip
        assert parts.groups.get("nothing") is None
        assert parts.offsets.query("has-offset", "T", 0) == 0

    run_with_parts(test, config=config())  # type: ignore[arg-type]


def test_no_group_is_removed_without_automatic_creation() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.groups.put(SubscriptionGroup("made-by-request"))
        await pass_the_time(unused(parts))
        assert parts.groups.get("made-by-request") is not None

    run_with_parts(
        test,
        config=config(auto_create_subscription_group=False),  # type: ignore[arg-type]
    )


def test_offsets_are_removed_with_their_topic_and_kept_for_a_deleted_group() -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        parts.offsets.commit("deleted", "T", 0, 7)
        parts.offsets.commit("g", "missing", 0, 7)
        parts.offsets.note_pulled("h", "missing", 0, 7)
        checks = unused(parts)
        await checks.check()
        assert parts.offsets.query("g", "missing", 0) == 7

        await pass_the_time(checks)

        assert parts.offsets.query("deleted", "T", 0) == 7
        assert parts.offsets.query("g", "missing", 0) is None
        assert parts.offsets.pulled("h", "missing", 0) is None

    run_with_parts(test, config=config())  # type: ignore[arg-type]
