"""Changes of topics and groups ride the log of a master with a controller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.queue_assignment import SetMessageRequestMode
from kourou.protocol.table_changes import (
    GroupChange,
    TableChange,
    TopicChange,
    decode_changes,
    encode_change,
    join_changes,
    member_of,
    with_member,
)
from kourou.protocol.topics import DeleteTopicRequestHeader
from kourou.testing.loop import run_virtual
from tests.broker.replication.replica_rig import ReplicaRig, send, until

PATIENT = {"ha_max_time_slave_not_catchup_ms": 60_000}
"""Keeps a slave that copies nothing in the in-sync set."""


def run(test: Callable[[ReplicaRig], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with ReplicaRig(**options) as rig:
            await rig.begin()
            await test(rig)

    run_virtual(main())


async def fill(rig: ReplicaRig, count: int = 20) -> None:
    async with rig.producer() as producer:
        for number in range(count):
            await send(producer, b"%d" % number)
    await rig.caught_up()


def test_changes_are_decoded_as_they_were_encoded() -> None:
    changes: list[TableChange] = [
        TopicChange("T", 7, TopicConfig("T", 3, 4, attributes={"a": "b"})),
        TopicChange("T", 7),
        GroupChange("G", 5, True, SubscriptionGroup("G", retry_max_times=2), {"T": 4}),
        GroupChange("G", 5),
        SetMessageRequestMode("T", "G", pop_share_queue_num=3),
    ]
    assert decode_changes(join_changes(map(encode_change, changes))) == changes


def test_member_is_found_in_the_body_that_it_was_added_to() -> None:
    body = with_member(b'{"offsetTable":{}}', "kourouLocks", b'{"locks":{}}')
    assert body == b'{"offsetTable":{},"kourouLocks":{"locks":{}}}'
    assert member_of(body, "kourouLocks") == b'{"locks":{}}'
    assert member_of(b"{}", "kourouLocks") is None


def test_change_that_a_member_does_not_have_is_refused_with_its_id() -> None:
    async def test(rig: ReplicaRig) -> None:
        topics = rig.master.components.tables.topics
        rig.network.stall(rig.ha_address(1))
        topics.put(TopicConfig("late"))
        with pytest.raises(OSError, match=r"slaveTimeout.*lack it: \[2\]"):
            await topics.persist()
        assert not topics.is_saved("late")

        rig.network.heal(rig.ha_address(1))
        await topics.persist()
        slave = rig.brokers[2].components.tables.topics
        await until(lambda: slave.get("late") == TopicConfig("late"))

    run(test, replicas=2, replication=PATIENT)


def test_change_on_a_master_alone_is_saved_at_once() -> None:
    async def test(rig: ReplicaRig) -> None:
        await rig.master.components.tables.topics.persist()

    run(test, replicas=1)


def test_deletion_that_a_failover_undoes_has_removed_nothing() -> None:
    async def test(rig: ReplicaRig) -> None:
        await fill(rig)
        before = rig.offsets(1)
        rig.network.stall(rig.ha_address(1))
        answer = await rig.ask(
            1, request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("T"))
        )
        assert "messages to it are refused until then" in (answer.remark or "")
        await rig.kill(1)
        rig.network.heal(rig.ha_address(1))

        await rig.elect(2)
        await rig.in_sync(1, 2)
        await rig.caught_up()
        topic = rig.brokers[2].components.tables.topics.get("T")
        assert topic is not None
        for broker_id in (1, 2):
            assert {key: rig.offsets(broker_id).get(key) for key in before} == before
        await rig.elect(1)
        await rig.in_sync(1, 2)
        assert rig.master.components.tables.topics.get("T") == topic

    run(test, replicas=2, replication=PATIENT)


def test_deletion_goes_on_when_the_members_have_it_after_its_request_was_answered() -> None:
    async def test(rig: ReplicaRig) -> None:
        await fill(rig)
        rig.network.stall(rig.ha_address(1))
        command = request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("T"))
        await rig.ask(1, command)
        rig.network.heal(rig.ha_address(1))
        for broker_id in (1, 2):
            topics = rig.brokers[broker_id].components.tables.topics
            await until(lambda topics=topics: topics.get("T") is None)  # type: ignore[misc]
        await asyncio.sleep(1)
        assert not any(topic == "T" for topic, _ in rig.offsets(1) | rig.offsets(2))

    run(test, replicas=2, replication=PATIENT)


def test_queue_whose_topic_is_not_known_gets_one_on_the_next_master() -> None:
    async def test(rig: ReplicaRig) -> None:
        await fill(rig)
        tables = rig.brokers[2].components.tables
        await tables.persist()
        tables.topics.delete("T")
        await tables.topics.persist()

        await rig.elect(2)
        topic = rig.master.components.tables.topics.get("T")
        assert topic is not None
        assert topic.write_queue_nums == 1 + max(
            queue_id for name, queue_id in rig.offsets(2) if name == "T"
        )

    run(test, replicas=2)
