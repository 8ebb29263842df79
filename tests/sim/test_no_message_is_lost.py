"""A cluster with randomly crashing brokers: acknowledged messages are stored, and consumed.

The seed determines the run: times and durations of power losses, the disk's contents after them,
the durations of syncs and packets. A failure names its seed, which replays the run.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random

import pytest

from kourou.broker.config import FlushDiskType
from kourou.client.config import ProducerConfig
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

TOPIC = "flights"
MESSAGES = 400
SENDERS = 8
SLOW_SYNC_MS = (1.0, 30.0)
BROKEN = OSError(errno.EIO, "Input/output error")
FROM_FIRST = PushConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


async def send_all(
    producer: Producer, dice: Random, acknowledged: dict[str, tuple[MessageQueue, int]]
) -> None:
    """Send numbered messages, several at a time; record queue and offset of each receipt."""

    async def send_some(first: int) -> None:
        for number in range(first, MESSAGES, SENDERS):
            key = f"key-{number}"
            body = key.encode() + bytes(dice.randrange(2000))
            try:
                receipt = await producer.send(Message(TOPIC, body, keys=[key]), timeout_ms=1500)
            except KourouError:
                continue  # not acknowledged
            acknowledged[key] = (receipt.queue, receipt.queue_offset)
            await asyncio.sleep(dice.uniform(0, 0.02))

    await asyncio.gather(*map(send_some, range(SENDERS)))


async def crash_now_and_then(cluster: Cluster, dice: Random, *, brokers: int) -> None:
    """Crash random brokers, and start each again some milliseconds to seconds later."""
    for _ in range(4):
        await asyncio.sleep(dice.uniform(0.02, 0.5))
        index = dice.randrange(brokers)
        fate = dice.random()
        if fate < 0.2:
            # The device fails: the broker becomes read-only until it is restarted.
            cluster.disk(index).fail_after(0, BROKEN, ["sync"])
            await asyncio.sleep(dice.uniform(0.02, 0.5))
        if fate < 0.8:
            await cluster.crash_broker(index)
        else:
            await cluster.kill_broker(index)
        await asyncio.sleep(dice.uniform(0.01, 2))
        await cluster.restart_broker(index)


async def read_all(cluster: Cluster) -> dict[MessageQueue, list[MessageExt]]:
    """Return all messages of all queues, by pulling from the first to the last."""
    stored: dict[MessageQueue, list[MessageExt]] = {}
    async with cluster.pull_consumer() as reader:
        for queue in await reader.fetch_subscribe_message_queues(TOPIC):
            messages = stored.setdefault(queue, [])
            end = await reader.max_offset(queue)
            at = await reader.min_offset(queue)
            while at < end:
                result = await reader.pull(queue, at)
                assert result.next_offset > at, f"stuck at {at} of {queue}"
                messages += result.messages
                at = result.next_offset
    return stored


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition holds, `seconds` of virtual time at most."""
    for _ in range(int(seconds * 10)):
        if condition():
            return
        await asyncio.sleep(0.1)


def check_stored(
    acknowledged: dict[str, tuple[MessageQueue, int]],
    stored: dict[MessageQueue, list[MessageExt]],
) -> None:
    """Assert that acknowledged messages are at their queues and offsets, without gaps."""
    for queue, messages in stored.items():
        offsets = [message.queue_offset for message in messages]
        assert offsets == list(range(len(offsets))), f"a hole in {queue}"
    for key, (queue, offset) in acknowledged.items():
        assert stored[queue][offset].keys == [key], f"{key} is not at {offset} of {queue}"


@pytest.mark.parametrize("seed", range(12))
def test_acknowledged_messages_survive_crashes_and_are_consumed(seed: int) -> None:
    async def main() -> None:
        dice = Random(seed)
        brokers = 1 + seed % 2
        acknowledged: dict[str, tuple[MessageQueue, int]] = {}
        consumed: set[str] = set()
        async with Cluster(seed=seed, brokers=brokers, sync_ms=SLOW_SYNC_MS) as cluster:
            consumer = cluster.push_consumer(config=FROM_FIRST)
            consumer.subscribe(TOPIC)
            consumer.listen(lambda message: consumed.update(message.keys))
            config = ProducerConfig(send_timeout_ms=1500)
            async with consumer, cluster.producer(config=config) as producer:
                await asyncio.gather(
                    send_all(producer, dice, acknowledged),
                    crash_now_and_then(cluster, dice, brokers=brokers),
                )
                await until(lambda: consumed >= acknowledged.keys(), seconds=120)
            assert acknowledged, "nothing was tested"
            missing = acknowledged.keys() - consumed
            assert not missing, f"never consumed: {sorted(missing)}"
            check_stored(acknowledged, await read_all(cluster))

    run_virtual(main())


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_process_loses_no_message_in_async_flush_mode(seed: int) -> None:
    async def main() -> None:
        dice = Random(seed)
        acknowledged: dict[str, tuple[MessageQueue, int]] = {}
        async with Cluster(
            seed=seed, flush_disk_type=FlushDiskType.ASYNC_FLUSH, flush_interval_ms=100
        ) as cluster:

            async def kill() -> None:
                for _ in range(3):
                    await asyncio.sleep(dice.uniform(0.05, 0.5))
                    await cluster.kill_broker()
                    await asyncio.sleep(dice.uniform(0.01, 0.5))
                    await cluster.restart_broker()

            async with cluster.producer() as producer:
                await asyncio.gather(send_all(producer, dice, acknowledged), kill())
            assert acknowledged
            check_stored(acknowledged, await read_all(cluster))

    run_virtual(main())


@pytest.mark.parametrize("seed", range(6))
def test_a_consumed_message_survives_a_later_crash(seed: int) -> None:
    """Every consumed message is still stored at its offset after the last crash."""

    async def main() -> None:
        dice = Random(seed)
        seen: set[tuple[str, int, int]] = set()

        def note(message: MessageExt) -> None:
            seen.add((message.keys[0], message.queue_id, message.queue_offset))

        async with Cluster(seed=seed, sync_ms=SLOW_SYNC_MS) as cluster:
            consumer = cluster.push_consumer(config=FROM_FIRST)
            consumer.subscribe(TOPIC)
            consumer.listen(note)
            async with consumer, cluster.producer() as producer:
                await asyncio.gather(
                    send_all(producer, dice, {}),
                    crash_now_and_then(cluster, dice, brokers=1),
                )
                await asyncio.sleep(30)
            stored = await read_all(cluster)
            places = {
                (message.keys[0], queue.queue_id, message.queue_offset)
                for queue, messages in stored.items()
                for message in messages
            }
            assert seen
            assert seen <= places

    run_virtual(main())
