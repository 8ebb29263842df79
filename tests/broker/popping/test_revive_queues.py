"""The number of revive queues may be raised and lowered between two starts."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.popping.pop_config import PopConfig
from kourou.protocol.popping.topic_names import retry_topic_v1, revive_topic
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig

MESSAGES = 16


def with_queues(count: int) -> BrokerConfig:
    return small_config(pop=PopConfig(revive_queue_num=count))


async def pop_all_singly(broker: SimulatedBroker) -> None:
    """Pop messages one by one, so that all revive queues get checkpoints."""
    rig = PopRig(broker)
    await rig.put(*(b"%d" % number for number in range(MESSAGES)))
    queues = {(await rig.pop(max_msg_nums=1)).header.revive_qid for _ in range(MESSAGES)}
    assert queues == set(range(broker.config.pop.revive_queue_num))


async def expect_all_revived(broker: SimulatedBroker) -> None:
    await asyncio.sleep(15)
    assert broker.store.reader.max_offset(retry_topic_v1(GROUP, TOPIC), 0) == MESSAGES


def queues_of(broker: SimulatedBroker) -> tuple[int, int]:
    topic = broker.topics.get(revive_topic(broker.config.cluster_name))
    assert topic is not None
    return topic.read_queue_nums, topic.write_queue_nums


@pytest.mark.parametrize("count", [4, 8, 12])
def test_new_store_gets_as_many_queues_as_configured(count: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert queues_of(broker) == (count, count)

    run_with_broker(test, config=with_queues(count))


def test_higher_number_enlarges_the_revive_topic_of_an_existing_store() -> None:
    async def first(broker: SimulatedBroker) -> None:
        assert queues_of(broker) == (8, 8)

    async def second(broker: SimulatedBroker) -> None:
        assert queues_of(broker) == (12, 12)
        await pop_all_singly(broker)
        await expect_all_revived(broker)
        topic = revive_topic(broker.config.cluster_name)
        used = broker.store.reader.queues()[topic]
        assert set(used) == set(range(12))

    async def third(broker: SimulatedBroker) -> None:
        assert queues_of(broker) == (12, 12)

    disk = run_with_broker(first, config=with_queues(8))
    run_with_broker(second, disk, config=with_queues(12), is_delivering=True)
    run_with_broker(third, disk, config=with_queues(8), later_ms=60_000)


def test_queues_beyond_a_lower_number_are_drained() -> None:
    disk = run_with_broker(pop_all_singly, config=with_queues(8), is_delivering=True)
    run_with_broker(
        expect_all_revived, disk, config=with_queues(2), is_delivering=True, later_ms=5_000
    )


def test_checkpoints_of_a_cluster_with_another_name_are_revived() -> None:
    old = small_config(cluster_name="Old")
    disk = run_with_broker(pop_all_singly, config=old, is_delivering=True)
    new = small_config(cluster_name="New")
    run_with_broker(expect_all_revived, disk, config=new, is_delivering=True, later_ms=5_000)
