"""Consumption stops at a corrupt message, loses nothing, and can be continued."""

from __future__ import annotations

import asyncio

from kourou.metrics import Sample
from kourou.model.message import Message, MessageExt
from kourou.model.queue import MessageQueue
from kourou.remoting.network import format_address
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

QUEUE = MessageQueue("T", "broker-0", 0)


def spoil(cluster: Cluster, body: bytes) -> bytes:
    """Change a byte of a body in the broker's log, and return the file's original content."""
    name = f"commitlog/{0:020d}"
    disk = cluster.disk()
    content = disk.read(name, 0, disk.size(name))
    disk.write(name, content.index(body), [b"X"])
    return content


async def sent(cluster: Cluster) -> None:
    async with cluster.producer() as producer:
        for number in range(6):
            await producer.send(Message("T", b"body-%d" % number), queue=QUEUE)


async def damaged_count(cluster: Cluster) -> float:
    """Return how many damaged messages the broker's metrics count."""
    for family in await cluster.broker().metrics():
        if family.name == "rocketmq_storage_damaged_messages_total":
            (sample,) = family.samples
            assert isinstance(sample, Sample)
            return sample.value
    raise AssertionError("the metric exists")


def test_consumption_waits_at_a_corrupt_record_until_it_is_restored() -> None:
    received: list[bytes] = []

    async def take(message: MessageExt) -> None:
        received.append(message.body)

    async def main() -> None:
        async with Cluster() as cluster:
            await sent(cluster)
            await cluster.stop_broker()
            whole = spoil(cluster, b"body-2")
            await cluster.restart_broker()
            consumer = cluster.push_consumer("g")
            consumer.subscribe("T")
            consumer.listen(take)
            async with consumer:
                await asyncio.sleep(120)
                assert received == [b"body-0", b"body-1"]
                assert await damaged_count(cluster) == 1

                cluster.disk().write(f"commitlog/{0:020d}", 0, [whole[:4096]])
                await asyncio.sleep(30)
        assert received == [b"body-%d" % number for number in range(6)]

    run_virtual(main())


def test_consumption_continues_when_the_broker_skips_corrupt_records() -> None:
    received: list[bytes] = []

    async def take(message: MessageExt) -> None:
        received.append(message.body)

    async def main() -> None:
        async with Cluster() as cluster:
            await sent(cluster)
            await cluster.stop_broker()
            whole = spoil(cluster, b"body-2")
            await cluster.restart_broker()
            consumer = cluster.push_consumer("g")
            consumer.subscribe("T")
            consumer.listen(take)
            async with consumer, cluster.admin() as admin:
                await asyncio.sleep(60)
                address = format_address(cluster.broker_address())
                await admin.update_broker_config(address, {"skipDamagedRecords": "true"})
                await asyncio.sleep(30)
            cluster.disk().write(f"commitlog/{0:020d}", 0, [whole[:4096]])
        assert received == [b"body-%d" % number for number in (0, 1, 3, 4, 5)]

    run_virtual(main())
