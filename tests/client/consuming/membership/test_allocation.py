"""Consumers assign queues by the configured strategy, including a user's own."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.model.allocation import ConfiguredQueues, NearbyMachineRooms
from kourou.model.group import ConsumeFromWhere, MessageModel
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

BODIES = [b"%d" % number for number in range(12)]


def queue_ids(consumer: Any) -> list[int]:
    return [queue.queue_id for queue in consumer.queues if queue.topic == TOPIC]


async def assert_owned_soon(w: Recording, expected: dict[PushConsumer, list[int]]) -> None:
    """Assert that the members own these queues within 25 s."""
    await w.until(
        lambda: all(queue_ids(consumer) == ids for consumer, ids in expected.items()), timeout_s=25
    )


def test_a_user_function_assigns_the_queues() -> None:
    def last_takes_all(
        queues: Sequence[MessageQueue], ids: Sequence[str], own_id: str
    ) -> Sequence[MessageQueue]:
        return queues if own_id == ids[-1] else ()

    async def main() -> None:
        async with recording() as w:
            first = w.consumer(allocation=last_takes_all, instance_name="a")
            last = w.consumer(allocation=last_takes_all, instance_name="b")
            async with first, last:
                await assert_owned_soon(w, {first: [], last: [0, 1, 2, 3]})
                await w.send(*BODIES)
                await w.until_received(*BODIES)
            assert sorted(w.received) == sorted(BODIES)

    run_virtual(main())


@pytest.mark.parametrize("allocation", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_each_message_is_delivered_to_one_of_three_members(allocation: str) -> None:
    async def main() -> None:
        async with recording(queues=8) as w:
            members = [
                w.consumer(allocation=allocation, instance_name=f"m{number}") for number in range(3)
            ]
            async with members[0], members[1], members[2]:
                await asyncio.sleep(25)
                assert sorted(itertools.chain(*map(queue_ids, members))) == list(range(8))
                await w.send(*BODIES)
                await w.until_received(*BODIES)
                assert sorted(w.received) == sorted(BODIES)

    run_virtual(main())


def test_members_hold_their_configured_queues_and_the_retry_queue() -> None:
    async def main() -> None:
        failed: list[bytes] = []

        def fail_once(message: object) -> None:
            body = w.received[-1]
            if body not in failed:
                failed.append(body)
                raise ValueError(body)

        async with recording() as w:
            route = [MessageQueue(TOPIC, "broker-0", number) for number in range(4)]
            left = w.consumer(
                fail_once, allocation=ConfiguredQueues(route[:1]), instance_name="left"
            )
            right = w.consumer(
                fail_once, allocation=ConfiguredQueues(route[1:]), instance_name="right"
            )
            async with left, right:
                await assert_owned_soon(w, {left: [0], right: [1, 2, 3]})
                await w.send(*BODIES)
                await w.until_received(*BODIES, *BODIES)
                assert sorted(w.received) == sorted([*BODIES, *BODIES])

    run_virtual(main())


def test_members_are_assigned_queues_of_their_own_room() -> None:
    async def main() -> None:
        async with recording(brokers=2, queues=2) as w:
            nearby = NearbyMachineRooms(
                lambda queue: queue.broker_name[-1], lambda client_id: client_id[-1]
            )
            in_a = w.consumer(allocation=nearby, instance_name="in-0")
            async with in_a:
                await assert_owned_soon(w, {in_a: [0, 1, 0, 1]})
                in_b = w.consumer(allocation=nearby, instance_name="in-1")
                async with in_b:
                    await assert_owned_soon(w, {in_a: [0, 1], in_b: [0, 1]})
                    assert {queue.broker_name for queue in in_a.queues if queue.topic == TOPIC} == {
                        "broker-0"
                    }

    run_virtual(main())


def test_a_failing_strategy_changes_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_broken = False

    def moody(queues: Sequence[MessageQueue], _: Sequence[str], __: str) -> Sequence[MessageQueue]:
        if is_broken:
            return [MessageQueue("another", "broker-0", 0)]
        return queues

    async def main() -> None:
        nonlocal is_broken
        async with recording() as w:
            consumer = w.consumer(allocation=moody)
            async with consumer:
                is_broken = True
                await asyncio.sleep(200)
                assert queue_ids(consumer) == [0, 1, 2, 3]
                await w.send(*BODIES)
                await w.until_received(*BODIES)

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    logged = [
        record
        for record in caplog.records
        if f"topic={TOPIC} reason=the strategy" in record.getMessage()
    ]
    assert len(logged) == 1
    assert "strategy moody returned" in logged[0].message


def test_pull_consumers_use_the_strategy_too() -> None:
    async def main() -> None:
        async with recording() as w:
            config = PullConsumerConfig(
                allocation=ConfiguredQueues([MessageQueue(TOPIC, "broker-0", 3)]),
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            )
            consumer = w.cluster.pull_consumer("consumers", config)
            consumer.subscribe(TOPIC)
            async with consumer, w.cluster.producer() as producer:
                await w.until(lambda: queue_ids(consumer) == [3])
                await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "broker-0", 3))
                assert [message.body for message in await consumer.poll()] == [b"x"]

    run_virtual(main())


def test_a_broadcasting_member_holds_every_queue_with_any_strategy() -> None:
    async def main() -> None:
        async with recording() as w:
            consumer = w.consumer(
                message_model=MessageModel.BROADCASTING,
                allocation=ConfiguredQueues([MessageQueue(TOPIC, "broker-0", 3)]),
            )
            async with consumer:
                await assert_owned_soon(w, {consumer: [0, 1, 2, 3]})

    run_virtual(main())
