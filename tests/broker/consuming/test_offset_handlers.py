"""Requests to query and commit offsets are answered with Java's codes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from kourou.broker.clients import Member
from kourou.broker.config import BrokerConfig
from kourou.model.topic import TopicConfig
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.offsets import (
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def run(
    test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]], config: BrokerConfig | None = None
) -> None:
    """Run `test` on a broker."""

    async def with_topic(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        await test(broker)

    run_with_broker(with_topic, config=config)


def query(broker: SimulatedBroker, queue_id: int = 0, **fields: Any) -> tuple[int, str | None]:
    """Return code and offset."""
    peer = FakePeer()
    header = replace(QueryConsumerOffsetRequestHeader("g", "T", queue_id), **fields)
    asked = peer.request(RequestCode.QUERY_CONSUMER_OFFSET, header)
    answer = peer.ask(broker.offset_handlers.on_query_consumer_offset, asked)
    assert answer is not None
    return answer.code, answer.ext_fields.get("offset")


def update(broker: SimulatedBroker, peer: FakePeer | None = None, **fields: Any) -> int:
    """Return the code."""
    peer = peer or FakePeer()
    header = replace(UpdateConsumerOffsetRequestHeader("g", "T", 0, 0), **fields)
    asked = peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    answer = peer.ask(broker.offset_handlers.on_update_consumer_offset, asked)
    assert answer is not None
    return answer.code


def test_member_does_not_commit_behind_pops_and_an_administrator_does() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for _ in range(3):
            await broker.store_messages([broker.draft()])
        broker.tables.offsets.commit_popped("g", "T", 0, 3)
        member = FakePeer(50_001)
        broker.clients.register_consumer(
            Member("m", member, 0, 0, 0), ConsumerData("g", subscriptions=())
        )
        assert update(broker, peer=member, commit_offset=1) == 0
        assert query(broker) == (0, "3")
        assert update(broker, commit_offset=1) == 0
        assert query(broker) == (0, "1")

    run(test)


def test_a_query_returns_the_committed_offset() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for _ in range(3):
            await broker.store_messages([broker.draft()])
        assert update(broker, commit_offset=3) == 0
        assert query(broker) == (0, "3")
        assert update(broker, commit_offset=1) == 0
        assert query(broker) == (0, "1")

    run(test)


def test_a_new_group_begins_at_the_start_of_a_young_queue() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft()])
        assert query(broker) == (0, "0")
        assert query(broker, set_zero_if_not_found=True) == (0, "0")
        assert query(broker, set_zero_if_not_found=False) == (22, None)

    run(test)


def test_new_group_begins_at_the_start_of_a_queue_without_messages() -> None:
    """Otherwise the client would request the queue's end and skip messages sent in between."""

    async def test(broker: SimulatedBroker) -> None:
        assert query(broker) == (0, "0")
        assert query(broker, queue_id=3) == (0, "0")
        assert query(broker, set_zero_if_not_found=False) == (22, None)

    run(test)


@pytest.mark.parametrize("fields", [{"queue_id": 4}, {"queue_id": -1}, {"topic": "NoSuchTopic"}])
def test_new_group_has_no_offset_in_a_queue_that_does_not_exist(fields: dict[str, Any]) -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert query(broker, **fields) == (22, None)

    run(test)


def test_a_queue_whose_start_is_not_in_memory_is_not_young() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(bytes(100))])
        assert query(broker) == (0, "0")
        await broker.store_messages([broker.draft(bytes(4000))])
        assert query(broker) == (22, None)

    config = small_config()
    run(test, replace(config, store=replace(config.store, resident_bytes=1000)))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"consumer_group": "bad group!"}, 26),
        ({"topic": "NoSuchTopic"}, 17),
        ({"queue_id": 4}, 29),
        ({"queue_id": -1}, 29),
        ({"commit_offset": -1}, 29),
    ],
)
def test_an_invalid_commit_is_refused(fields: dict[str, Any], code: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert update(broker, **fields) == code
        assert broker.offsets.topics_of("g") == []

    run(test)


@pytest.mark.parametrize("offset", [1, 2**63 - 1])
def test_commit_beyond_the_end_is_refused(offset: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert update(broker, commit_offset=offset) == 29
        await broker.store_messages([broker.draft()])
        assert update(broker, commit_offset=offset + (offset == 1)) == 29
        assert update(broker, commit_offset=1) == 0

    run(test)


def test_a_commit_of_an_unknown_group_creates_it_with_auto_creation() -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert update(broker) == 0
        assert broker.groups.get("g") is not None

    run(test)


def test_a_commit_of_an_unknown_group_is_refused_without_auto_creation() -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert update(broker) == 26

    run(test, small_config(auto_create_subscription_group=False))


@pytest.mark.parametrize("missing", ["commitOffset", "queueId"])
def test_a_missing_number_is_refused_with_its_own_code(missing: str) -> None:
    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        command = request(
            RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequestHeader("g", "T", 0, 7)
        )
        del command.ext_fields[missing]
        answer = peer.ask(
            broker.offset_handlers.on_update_consumer_offset, peer.request_of(command)
        )
        assert answer is not None
        assert answer.code == 29

    run(test)


def test_offsets_of_a_queue_being_drained_can_be_committed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", read_queue_nums=8, write_queue_nums=4))
        assert update(broker, queue_id=7) == 0
        broker.topics.put(TopicConfig("T", read_queue_nums=4, write_queue_nums=8))
        assert update(broker, queue_id=7) == 0

    run(test)
