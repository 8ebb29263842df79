"""Pops of a topic with priorities read the queue of the highest one first, on both paths."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.popping.pop_config import PopConfig
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.frame import decode_frame
from kourou.protocol.popping.topic_names import retry_topic_v1
from kourou.protocol.record.decode import decode_messages
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig
from tests.broker.popping.test_fast_pops import Rig

PRIORITIES = TopicConfig(TOPIC, 4, 4, attributes={"message.type": "PRIORITY"})
ROUNDS = 12
"""Pops that start at random queues read them in an order by chance at least once in so many."""


async def pop_orders(broker: SimulatedBroker, *, is_fast: bool) -> set[bytes]:
    """Pop a message of each queue again and again; return the orders of their queue ids."""
    rig, popper = PopRig(broker), Rig(broker, is_fast=is_fast)
    orders = set()
    for _ in range(ROUNDS):
        for queue_id in (1, 3, 0, 2):
            await rig.put(b"%d" % queue_id, queue_id=queue_id)
        answer = decode_frame((await popper.pop())[4:])
        orders.add(b"".join(message.body for message in decode_messages(answer.body)))
    return orders


@pytest.mark.parametrize("is_fast", [True, False], ids=["fast", "general"])
def test_queue_of_the_highest_priority_is_read_first(*, is_fast: bool) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(PRIORITIES)
        assert await pop_orders(broker, is_fast=is_fast) == {b"3210"}

    run_with_broker(test, is_delivering=True)


def test_lower_queue_numbers_are_higher_priorities_if_configured() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(PRIORITIES)
        assert await pop_orders(broker, is_fast=True) == {b"0123"}

    config = small_config(pop=PopConfig(priority_order_asc=False))
    run_with_broker(test, config=config, is_delivering=True)


def test_priorities_have_no_effect_on_groups_whose_factor_is_zero() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(PRIORITIES)
        broker.groups.put(SubscriptionGroup(GROUP, attributes={"priority.factor": "0"}))
        assert len(await pop_orders(broker, is_fast=True)) > 1

    run_with_broker(test, is_delivering=True)


def test_failed_messages_are_read_after_those_of_all_priorities() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(PRIORITIES)
        rig = PopRig(broker)
        await rig.put(b"failed", queue_id=3)
        await rig.pop(invisible_time=1_000)
        await rig.put(*(b"%d" % number for number in range(40)), queue_id=0)
        await asyncio.sleep(3)  # it is revived
        assert broker.topics.get(retry_topic_v1(GROUP, TOPIC)) is not None
        bodies = [body for _ in range(41) for body in (await rig.pop(max_msg_nums=1)).bodies]
        assert bodies == [*(b"%d" % number for number in range(40)), b"failed"]

    run_with_broker(test, is_delivering=True)
