"""Topics, groups and request modes are right on the next master, however late they were changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kourou.broker.controlling.switching_broker import SwitchingBroker
from kourou.client.administration.admin import AdminClient
from kourou.client.send_receipt import SendStatus
from kourou.model.group import SubscriptionGroup
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import request
from kourou.protocol.popping.headers import PopMessageRequestHeader
from kourou.protocol.queue_assignment import MessageRequestMode
from kourou.protocol.record.decode import decode_messages
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.steady_time import steady_ms
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import NAMESRV, ControlledCluster

Test = Callable[[ControlledCluster, AdminClient], Awaitable[None]]


def run(test: Test, replicas: int = 2) -> None:
    """Run a test with replicas that are all in sync."""

    async def main() -> None:
        async with ControlledCluster(replicas) as cluster:
            for index in range(replicas):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == replicas)
            async with AdminClient(NAMESRV, runtime=cluster.runtime) as admin:
                await test(cluster, admin)

    run_virtual(main())


async def fail_over(cluster: ControlledCluster) -> SwitchingBroker:
    """Kill the master at once, start it again, and return the next one when both are in sync."""
    old = cluster.require_master()
    await cluster.kill(old)
    await cluster.until(lambda: cluster.master() not in (old, None))
    await cluster.start(old)
    await cluster.until(lambda: len(cluster.in_sync()) == len(cluster.brokers))
    return cluster.master_broker()


def queues(broker: SwitchingBroker, topic: str) -> dict[int, list[int]]:
    """Return the log positions of the entries of each queue."""
    reader = broker.store.reader
    return {
        queue_id: [
            entry.physical_offset
            for offset in range(reader.max_offset(topic, queue_id))
            if (entry := reader.entry(topic, queue_id, offset)) is not None
        ]
        for queue_id in reader.queues().get(topic, ())
    }


async def send(cluster: ControlledCluster, topic: str, count: int = 1) -> list[int]:
    """Send messages; return their queue offsets."""
    offsets = []
    async with cluster.producer() as producer:
        for number in range(count):
            receipt = await producer.send(Message(topic, b"%d" % number))
            assert receipt.status is SendStatus.SEND_OK
            offsets.append(receipt.queue_offset)
    return offsets


def test_topic_created_just_before_the_kill_exists_afterwards() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("new", queues=3, order=True)
        topic = cluster.master_broker().components.tables.topics.get("new")
        master = await fail_over(cluster)
        assert master.components.tables.topics.get("new") == topic

    run(test)


def test_topic_created_by_a_send_exists_after_the_kill_with_its_message() -> None:
    async def test(cluster: ControlledCluster, _: AdminClient) -> None:
        await send(cluster, "auto")
        topic = cluster.master_broker().components.tables.topics.get("auto")
        master = await fail_over(cluster)
        assert master.components.tables.topics.get("auto") == topic
        assert sum(map(len, queues(master, "auto").values())) == 1

    run(test)


def test_topic_deleted_just_before_the_kill_is_gone_on_all_replicas() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("old", queues=1)
        await send(cluster, "old", 3)
        await admin.delete_topic("old")
        master = await fail_over(cluster)
        await asyncio.sleep(1)
        for broker in cluster.brokers:
            assert broker is not None
            assert broker.components.tables.topics.get("old") is None
            assert queues(broker, "old") == {}
        await admin.create_topic("old", queues=1)
        assert await send(cluster, "old") == [0]
        assert list(map(len, queues(master, "old").values())) == [1]

    run(test)


def test_topic_made_again_just_before_the_kill_has_its_new_messages_only() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("again", queues=1)
        await send(cluster, "again", 3)
        await admin.delete_topic("again")
        await admin.create_topic("again", queues=2)
        sent = await send(cluster, "again", 3)
        before = queues(cluster.master_broker(), "again")
        master = await fail_over(cluster)
        topic = master.components.tables.topics.get("again")
        assert topic is not None
        assert topic.write_queue_nums == 2
        assert sorted(sent) in ([0, 0, 1], [0, 1, 2])
        assert [queues(broker, "again") for broker in cluster.brokers if broker] == [before] * 2

    run(test)


def test_deleted_topic_stays_deleted_after_restarts_of_all_replicas() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("old", queues=1)
        await send(cluster, "old", 3)
        await admin.delete_topic("old")
        for index in (0, 1):
            await cluster.kill(index)
        for index in (0, 1):
            await cluster.start(index)
        await cluster.until(lambda: len(cluster.in_sync()) == 2, 60)
        for broker in cluster.brokers:
            assert broker is not None
            assert broker.components.tables.topics.get("old") is None
            assert queues(broker, "old") == {}

    run(test)


def test_group_created_changed_or_deleted_just_before_the_kill_is_so_afterwards() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_group(SubscriptionGroup("gone"))
        offsets = cluster.master_broker().components.tables.offsets
        offsets.commit("gone", "T", 0, 7)
        await asyncio.sleep(2)
        await admin.create_group(SubscriptionGroup("kept"))
        await admin.delete_group("gone", clean_offsets=True)
        master = await fail_over(cluster)
        tables = master.components.tables
        assert tables.groups.get("kept") == SubscriptionGroup("kept")
        assert tables.groups.get("gone") is None
        assert tables.offsets.query("gone", "T", 0) is None

    run(test)


def test_request_mode_set_just_before_the_kill_is_in_force_afterwards() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("T", queues=1)
        await admin.create_group(SubscriptionGroup("G"))
        await admin.set_request_mode("T", "G", is_pop=True)
        master = await fail_over(cluster)
        mode = master.components.tables.modes.get("T", "G")
        assert mode is not None
        assert mode.mode is MessageRequestMode.POP

    run(test)


def test_offsets_and_locks_of_a_second_ago_are_on_the_next_master() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("T", queues=1)
        await admin.create_group(SubscriptionGroup("G"))
        await send(cluster, "T", 5)
        tables = cluster.master_broker().components.tables
        tables.offsets.commit("G", "T", 0, 4)
        tables.offsets.commit("cleaned", "T", 0, 4)
        queue = MessageQueue("T", "broker-a", 0)
        assert tables.locks.locks.lock("G", "holder", [queue], steady_ms()) == [queue]
        await asyncio.sleep(1.5)
        tables.offsets.remove_group("cleaned")
        await asyncio.sleep(1.5)
        tables = (await fail_over(cluster)).components.tables
        assert tables.offsets.query("G", "T", 0) == 4
        assert tables.offsets.query("cleaned", "T", 0) is None
        assert tables.locks.locks.holder("G", queue, steady_ms()) == "holder"

    run(test)


def test_read_ban_set_just_before_the_kill_is_in_force_afterwards() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("T", queues=1)
        await admin.create_group(SubscriptionGroup("G"))
        groups = cluster.master_broker().components.tables.groups
        groups.set_read_forbidden("G", "T", is_forbidden=True)
        await groups.persist()
        master = await fail_over(cluster)
        assert master.components.tables.groups.is_read_forbidden("G", "T")

    run(test)


def test_messages_popped_just_before_the_kill_are_not_popped_again() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("T", queues=1)
        await admin.create_group(SubscriptionGroup("G"))
        await send(cluster, "T", 3)
        assert await pop(cluster) == 3
        await asyncio.sleep(7)  # the tables are saved
        await send(cluster, "T", 2)
        assert await pop(cluster) == 2
        await asyncio.sleep(0.1)  # slaves have the checkpoint, and not the offsets yet
        master = await fail_over(cluster)
        assert master.components.tables.offsets.query("G", "T", 0) == 5

    run(test)


async def pop(cluster: ControlledCluster) -> int:
    """Pop messages of the topic T; return their number."""
    header = PopMessageRequestHeader("G", "T", 0, 32, 600_000, 0, 0, 0)
    pool = ConnectionPool(cluster.runtime, {}, ConnectionLimits())
    host, port = cluster.master_broker().address
    answer = await pool.request(f"{host}:{port}", request(RequestCode.POP_MESSAGE, header), 10)
    await pool.close()
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return len(decode_messages(answer.body))


def test_delayed_and_scheduled_messages_are_delivered_once_across_a_failover() -> None:
    async def test(cluster: ControlledCluster, admin: AdminClient) -> None:
        await admin.create_topic("T", queues=1)
        async with cluster.producer() as producer:
            for _ in range(3):
                await producer.send(Message("T", b"level", delay_level=1))
                await producer.send(Message("T", b"time", delay_ms=1_000))
            await asyncio.sleep(3)
            assert len(queues(cluster.master_broker(), "T")[0]) == 6
            for _ in range(2):
                await producer.send(Message("T", b"level", delay_level=2))
                await producer.send(Message("T", b"time", delay_ms=5_000))
        master = await fail_over(cluster)
        await asyncio.sleep(20)
        assert len(queues(master, "T")[0]) == 10

    run(test)
