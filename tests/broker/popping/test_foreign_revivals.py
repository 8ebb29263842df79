"""A master revives pops of another broker's slave, whose checkpoints and acks were sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.foreign_revivals import foreign_refusal
from kourou.broker.replication.foreign_messages import ForeignMessages, ForeignQueue
from kourou.model.message import Message, MessageExt
from kourou.model.properties import POP_LOG_END, encode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.popping.revive_records import (
    AckRecord,
    ack_properties,
    checkpoint_properties,
    encode_ack,
    encode_checkpoint,
)
from kourou.protocol.popping.topic_names import retry_topic_v1, revive_topic
from kourou.protocol.record.decode import decode_message
from kourou.protocol.sending import SendMessageRequestHeaderV2
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.broker.replication.test_escape_bridge import delivered
from tests.broker.replication.test_slave import ask, until

HOME, HERE = 0, 1
GROUP = "g"
RETRY = retry_topic_v1(GROUP, "T")
INVISIBLE_MS = 5_000


def run(test: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    """Run a test with ten messages in queue 0 of `broker-0`, and a group on both brokers."""

    async def main() -> None:
        async with Cluster(brokers=2, **options) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=1)
            for index in (HOME, HERE):
                await send(cluster, index, *[b"%d-%d" % (index, number) for number in range(10)])
                groups = cluster.broker(index).components.context.groups
                groups.get_or_create(GROUP, "")
                await groups.persist()
            await test(cluster)

    run_virtual(main())


async def send(cluster: Cluster, index: int, *bodies: bytes) -> None:
    async with cluster.producer() as producer:
        queues = await producer.fetch_publish_message_queues("T")
        queue = next(queue for queue in queues if queue.broker_name == f"broker-{index}")
        for body in bodies:
            await producer.send(Message("T", body, tags="A", keys=("k",)), queue=queue)


def popped(cluster: Cluster, *offsets: int, broker_name: str = "broker-0") -> PopCheckpoint:
    """Return the checkpoint of a pop of messages of `broker-0` by its slave, now."""
    now_ms = cluster.runtime.clock.now_ms()
    key = CheckpointKey("T", GROUP, 0, offsets[0], now_ms, broker_name)
    return PopCheckpoint(key, offsets, INVISIBLE_MS)


async def relay(
    cluster: Cluster, body: bytes, properties: dict[str, str], **fields: Any
) -> RemotingCommand:
    """Send a revive record to `broker-1` as a Java slave does."""
    values: dict[str, Any] = {
        "producer_group": "InnerProducerGroup_broker-0_1",
        "topic": revive_topic("DefaultCluster"),
        "default_topic": "TBW102",
        "default_topic_queue_nums": 8,
        "queue_id": 3,
        "sys_flag": 0,
        "born_timestamp": cluster.runtime.clock.now_ms(),
        "flag": 0,
        "properties": encode_properties(properties).decode(),
        "reconsume_times": 0,
    }
    header = SendMessageRequestHeaderV2(**values | fields)
    return await ask(cluster, request(RequestCode.SEND_MESSAGE_V2, header, body), HERE)


async def relay_checkpoint(cluster: Cluster, checkpoint: PopCheckpoint, **properties: str) -> None:
    record = checkpoint.record()
    given = checkpoint_properties(record) | properties
    assert (await relay(cluster, encode_checkpoint(record), given)).code == 0


async def relay_ack(cluster: Cluster, checkpoint: PopCheckpoint, offsets: Sequence[int]) -> None:
    """Acknowledge messages: one by an `ack`, several by a `bAck`."""
    key = checkpoint.key
    is_single = len(offsets) == 1
    record = AckRecord(
        key.topic, key.group, key.queue_id, key.start_offset, key.pop_time_ms, key.broker_name,
        offsets[0] if is_single else -1, None if is_single else tuple(offsets),
    )  # fmt: skip
    given = ack_properties(record, checkpoint.revive_at_ms)
    assert (await relay(cluster, encode_ack(record), given)).code == 0


def retried(cluster: Cluster) -> list[MessageExt]:
    return delivered(cluster, HERE, RETRY)


def bodies(cluster: Cluster) -> list[bytes]:
    return [message.body for message in retried(cluster)]


def in_flight(cluster: Cluster) -> int:
    return cluster.broker(HERE).components.popping.in_flight.message_count


def revive_lag(cluster: Cluster) -> int:
    return sum(loop.lag for loop in cluster.broker(HERE).components.popping.revives.loops)


async def restart(cluster: Cluster, index: int) -> None:
    await cluster.kill_broker(index)
    await cluster.restart_broker(index)


def test_unacknowledged_messages_are_fetched_and_stored_in_the_retry_topic() -> None:
    async def test(cluster: Cluster) -> None:
        checkpoint = popped(cluster, 2, 3, 4, 5, 7)
        await relay_checkpoint(cluster, checkpoint)
        await relay_ack(cluster, checkpoint, [3])
        await relay_ack(cluster, checkpoint, [4, 7])
        await asyncio.sleep(4.9)
        assert bodies(cluster) == []
        await until(lambda: len(bodies(cluster)) == 2, 2)
        first = retried(cluster)[0]
        assert bodies(cluster) == [b"0-2", b"0-5"]
        assert (first.tags, first.keys, first.reconsume_times) == ("A", ["k"], 1)
        assert revive_lag(cluster) == 0
        await asyncio.sleep(30)
        assert len(bodies(cluster)) == 2
        assert delivered(cluster, HOME, RETRY) == []

    run(test)


def test_a_pop_whose_messages_are_all_acknowledged_revives_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        checkpoint = popped(cluster, 0, 1)
        await relay_ack(cluster, checkpoint, [1])  # in any order
        await relay_checkpoint(cluster, checkpoint)
        await relay_ack(cluster, checkpoint, [0])
        await asyncio.sleep(30)
        assert bodies(cluster) == []
        assert revive_lag(cluster) == 0

    run(test)


def test_the_group_gets_them_by_pops_here() -> None:
    async def test(cluster: Cluster) -> None:
        await relay_checkpoint(cluster, popped(cluster, 9))
        async with cluster.simple_consumer(GROUP) as consumer:
            consumer.subscribe("T")
            got: set[bytes] = set()
            async with asyncio.timeout(60):
                while b"0-9" not in got or len(got) < 20:
                    for message in await consumer.receive(max_messages=32):
                        await consumer.ack(message)
                        got.add(message.body)

    run(test)


def test_messages_of_an_unreachable_broker_are_kept_and_delay_nothing_else() -> None:
    async def test(cluster: Cluster) -> None:
        await relay_checkpoint(cluster, popped(cluster, 1, 2))
        async with cluster.simple_consumer(GROUP) as consumer:
            consumer.subscribe("T")
            await cluster.kill_broker(HOME)
            received: list[MessageExt] = []
            while not received:
                received = list(await consumer.receive(max_messages=1, invisible_ms=10_000))
        await asyncio.sleep(11)
        assert bodies(cluster) == [received[0].body]  # not acknowledged
        assert revive_lag(cluster) == 0
        await asyncio.sleep(60)
        await restart(cluster, HERE)
        await cluster.restart_broker(HOME)
        await until(lambda: len(bodies(cluster)) == 3, 130)
        assert sorted(bodies(cluster)[1:]) == [b"0-1", b"0-2"]
        await asyncio.sleep(300)
        assert len(bodies(cluster)) == 3

    run(test)


@pytest.mark.parametrize("ends_at_s", [0, 4.5, 5.05, 6])
def test_a_kill_at_any_time_revives_each_message_once(ends_at_s: float) -> None:
    async def test(cluster: Cluster) -> None:
        checkpoint = popped(cluster, *range(6))
        await relay_checkpoint(cluster, checkpoint)
        await relay_ack(cluster, checkpoint, [4])
        await asyncio.sleep(ends_at_s)
        await restart(cluster, HERE)
        await until(lambda: len(bodies(cluster)) == 5, 15)
        await restart(cluster, HERE)
        await asyncio.sleep(30)
        assert sorted(bodies(cluster)) == [b"0-%d" % offset for offset in (0, 1, 2, 3, 5)]

    run(test)


@pytest.mark.parametrize("marks", [{}, {POP_LOG_END: "1000000 8"}])
def test_offsets_of_groups_here_do_not_follow_pops_elsewhere(marks: dict[str, str]) -> None:
    async def test(cluster: Cluster) -> None:
        offsets = cluster.broker(HERE).components.tables.offsets
        offsets.commit(GROUP, "T", 0, 1)
        await relay_checkpoint(cluster, popped(cluster, *range(2, 8)), **marks)
        await restart(cluster, HERE)
        found = cluster.broker(HERE).components.tables.offsets.query(GROUP, "T", 0)
        assert (found or 0) <= 1

    run(test)


def test_pops_elsewhere_are_not_in_flight_here() -> None:
    async def test(cluster: Cluster) -> None:
        for _ in range(2):
            await relay_checkpoint(cluster, popped(cluster, 2, 3))
            await asyncio.sleep(1)
            assert in_flight(cluster) == 0
            await restart(cluster, HERE)
        await cluster.kill_broker(HOME)
        for _ in range(2):  # the checkpoints are due, and their messages get new ones
            await asyncio.sleep(6)
            assert in_flight(cluster) == 0
            await restart(cluster, HERE)
            await asyncio.sleep(0.5)
            assert in_flight(cluster) == 0

    run(test)


@pytest.mark.parametrize("missing", ["topic", "group"])
def test_messages_wait_until_their_topic_and_group_exist_here(missing: str) -> None:
    async def test(cluster: Cluster) -> None:
        context = cluster.broker(HERE).components.context
        if missing == "topic":
            context.topics.delete("T")
        else:
            context.groups.delete(GROUP)
        await relay_checkpoint(cluster, popped(cluster, 6))
        await asyncio.sleep(20)
        assert bodies(cluster) == []
        if missing == "topic":
            async with cluster.admin() as admin:
                await admin.create_topic("T", queues=1)
        else:
            context.groups.get_or_create(GROUP, "")
        await until(lambda: bodies(cluster) == [b"0-6"], 60)

    run(test)


@pytest.mark.parametrize(("attempts", "records"), [(16, 2), (17, 1)])
def test_messages_that_the_broker_does_not_have_are_given_up_after_the_last_attempt(
    attempts: int, records: int
) -> None:
    async def test(cluster: Cluster) -> None:
        checkpoint = popped(cluster, 8, 90)
        checkpoint.re_puts = attempts
        await relay_checkpoint(cluster, checkpoint)
        await until(lambda: bodies(cluster) == [b"0-8"], 10)
        await asyncio.sleep(10)
        reader = cluster.broker(HERE).store.reader
        waiting = reader.max_offset(TIMER_TOPIC, 0)
        assert waiting == records
        assert revive_lag(cluster) == 0

    run(test)


def test_a_stop_does_not_wait_for_an_unreachable_broker() -> None:
    async def test(cluster: Cluster) -> None:
        await relay_checkpoint(cluster, popped(cluster, 1))
        await cluster.kill_broker(HOME)
        await asyncio.sleep(5.01)
        began_s = asyncio.get_running_loop().time()
        await cluster.stop_broker(HERE)
        assert asyncio.get_running_loop().time() - began_s < 2
        await cluster.restart_broker(HERE)
        await cluster.restart_broker(HOME)
        await until(lambda: bodies(cluster) == [b"0-1"], 60)

    run(test)


def test_only_records_of_other_brokers_may_be_sent_to_the_revive_topic() -> None:
    async def test(cluster: Cluster) -> None:
        own = popped(cluster, 1, broker_name="broker-1").record()
        other = popped(cluster, 1).record()
        given = checkpoint_properties(other)
        answer = await relay(cluster, encode_checkpoint(own), checkpoint_properties(own))
        assert answer.code == 16
        assert "broker-1" in (answer.remark or "")
        body = encode_checkpoint(other)
        assert (await relay(cluster, b"{}", given)).code == 16
        assert (await relay(cluster, body, given | {"TAGS": "x"})).code == 16
        assert (await relay(cluster, body, given, batch=True)).code == 16
        assert (await relay(cluster, body, given, topic="rmq_sys_wheel_timer")).code == 16
        assert (await relay(cluster, body, given, topic=revive_topic("Other"))).code == 16
        assert (await relay(cluster, body, given, queue_id=8)).code != 0
        assert (await relay(cluster, body, given)).code == 0

    run(test)


@pytest.mark.parametrize("name", [None, "", " ", "a\nb", "own"])
def test_a_record_without_the_name_of_another_broker_is_refused(name: str | None) -> None:
    record = AckRecord("T", GROUP, 0, 0, 1, name, 0)
    assert foreign_refusal(encode_ack(record), "ack", "own")


def test_reads_tell_expired_messages_from_those_that_are_not_there() -> None:
    async def test(cluster: Cluster) -> None:
        pool = cluster.broker(HERE).components.pool
        messages = ForeignMessages((cluster.namesrv_addr,), pool)
        read = await messages.read(ForeignQueue("broker-0", "T", 0), [0, 1, 5, 9, 10, 40])
        assert [decode_message(read.records[one]).body for one in sorted(read.records)] == [
            b"0-0", b"0-1", b"0-5", b"0-9",
        ]  # fmt: skip
        assert (read.expired, read.absent, read.reason) == (set(), {10, 40}, "")
        read = await messages.read(ForeignQueue("broker-0", "missing", 0), [3])
        assert (read.absent, read.reason) == ({3}, "")
        read = await messages.read(ForeignQueue("elsewhere", "T", 0), [3])
        assert read.left([3]) == [3]
        assert "elsewhere" in read.reason

    run(test)
