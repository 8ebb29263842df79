"""Readers far behind are sent to a slave, and back to the master when they have caught up."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.errors import ConfigError
from kourou.model.queue import MessageQueue
from kourou.protocol.frame import decode_frame
from kourou.testing.cluster import Cluster
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.pulling.test_fast_pull import fast_path, frame, serve_fast
from tests.broker.replication.test_slave import MASTER, SLAVE, caught_up, run, send, until

READS: dict[str, Any] = {"slave_read_enable": True, "memory_bytes": 20_000}
QUEUE = MessageQueue("T", "broker-0", 0)


def suggested(broker: SimulatedBroker, offset: int, **fields: Any) -> str:
    """Return the id that both paths suggest; the fast path only for pulls that find messages."""
    answer = broker.pull(FakePeer(), queue_offset=offset, max_msg_nums=2, **fields)
    assert answer is not None
    found = answer.ext_fields["suggestWhichBrokerId"]
    fast = serve_fast(broker, frame({"queueOffset": str(offset), "maxMsgNums": "2"} | fields))
    if fast is not None:
        assert decode_frame(fast[4:]).ext_fields["suggestWhichBrokerId"] == found
    return found


async def store(broker: SimulatedBroker, count: int = 20) -> None:
    for _ in range(count):
        await broker.store_messages([broker.draft(b"x" * 1000, tags="TagA")])


@pytest.mark.parametrize(
    ("reads", "far", "near"),
    [
        (READS, "1", "0"),
        (READS | {"access_message_in_memory_max_ratio": 0}, "1", "1"),
        (READS | {"access_message_in_memory_max_ratio": 100, "memory_bytes": 10**6}, "0", "0"),
        ({"memory_bytes": 20_000}, "0", "0"),
    ],
)
def test_a_reader_beyond_the_memory_is_sent_to_a_slave(
    reads: dict[str, Any], far: str, near: str
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker)
        assert suggested(broker, 0) == far
        assert suggested(broker, 15) == near
        assert serve_fast(broker, frame({}), path=fast_path(broker)) is not None

    run_with_broker(test, config=small_config(replication=ReplicationConfig(**reads)))


def test_the_group_names_the_brokers_that_are_suggested() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker)
        group = broker.groups.get_or_create("g")
        assert group is not None
        broker.groups.put(replace(group, broker_id=3, which_broker_when_consume_slowly=2))
        assert [suggested(broker, offset) for offset in (0, 18, 99)] == ["2", "3", "3"]

    run_with_broker(test, config=small_config(replication=ReplicationConfig(**READS)))


def test_a_reader_whose_filter_selects_nothing_is_sent_away_too() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await store(broker)
        assert suggested(broker, 0, subscription="TagB") == "1"
        assert suggested(broker, 16, subscription="TagB") == "0"

    config = small_config(replication=ReplicationConfig(**READS))
    run_with_broker(test, config=replace(config, store=replace(config.store, scan_bytes_max=20)))


@pytest.mark.parametrize("ratio", [-1, 101])
def test_a_share_of_the_memory_is_a_percentage(ratio: int) -> None:
    with pytest.raises(ConfigError, match=r"in_memory_max_ratio is -?1"):
        ReplicationConfig(access_message_in_memory_max_ratio=ratio)


def pulls_of(cluster: Cluster, index: int) -> int:
    """Return how many messages of topic T the broker has returned to readers."""
    gets = cluster.broker(index).components.context.stats.gets()
    return sum(sum(item.messages for item in items) for topic, _, items in gets if topic == "T")


async def copy_tables(cluster: Cluster) -> None:
    await caught_up(cluster)
    await asyncio.sleep(11)


def test_a_pull_consumer_reads_old_messages_from_the_slave_and_returns_to_the_master() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 160)
        await copy_tables(cluster)
        async with cluster.pull_consumer() as reader:
            offset = await reader.min_offset(QUEUE)
            end = await reader.max_offset(QUEUE)
            suggestions = []
            while offset < end:
                result = await reader.pull(QUEUE, offset, max_messages=4)
                suggestions.append(result.suggested_broker_id)
                offset = result.next_offset
        assert suggestions[:3] == [1, 1, 1]
        assert suggestions[-1] == 0
        assert pulls_of(cluster, MASTER) + pulls_of(cluster, SLAVE) == end
        # The first pull and those after the last messages beyond memory are the master's.
        assert 4 * (suggestions.count(1) - 1) <= pulls_of(cluster, SLAVE) < end

    run(test, replication=READS)


def test_readers_return_to_the_master_when_the_slave_is_gone() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 160)
        await copy_tables(cluster)
        received: list[bytes] = []

        config = PushConsumerConfig(pull_batch_size=2, pull_interval_ms=20)
        consumer = cluster.push_consumer(config=config)
        consumer.subscribe("T")
        consumer.listen(lambda message: received.append(message.body))
        async with consumer, cluster.pull_consumer() as reader:
            result = await reader.pull(QUEUE, 0, max_messages=2)
            result = await reader.pull(QUEUE, result.next_offset, max_messages=2)
            await until(lambda: pulls_of(cluster, SLAVE) > 0)
            await cluster.kill_broker(SLAVE)
            result = await reader.pull(QUEUE, result.next_offset, max_messages=2, timeout_ms=9_000)
            assert result.messages
            await until(lambda: len(set(received)) == 160, timeout_s=30)

    run(test, replication=READS)


def test_a_pull_consumer_reads_from_a_slave_while_there_is_no_master() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, 12)
        await copy_tables(cluster)
        async with cluster.pull_consumer() as reader:
            assert (await reader.pull(QUEUE, 0)).messages
            await cluster.kill_broker(MASTER)
            assert (await reader.pull(QUEUE, 1, timeout_ms=9_000)).messages

    run(test, replication={"slave_read_enable": True})
