"""A slave that acts for its master serves pops; another master revives what is not acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from kourou.broker.replication.escape_bridge import RemoteQueue
from kourou.broker.replication.revive_relay import is_target, target_of
from kourou.client.consuming.simple_consumer import SimpleConsumer
from kourou.client.pop_result import PoppedMessage
from kourou.errors import KourouError
from kourou.model.message import Message
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.popping.headers import AckMessageRequestHeader, PopMessageRequestHeader
from kourou.protocol.popping.topic_names import retry_topic_v1
from kourou.testing.cluster import Cluster
from tests.broker.replication.test_acting_master import acts, is_acting
from tests.broker.replication.test_escape_bridge import (
    MASTER,
    OTHER,
    SLAVE,
    bodies,
    run,
    send_to_master,
)
from tests.broker.replication.test_slave import ask, until

GROUP = "poppers"
RETRY = retry_topic_v1(GROUP, "T")
COUNT = 12
ALL = [b"%d" % number for number in range(COUNT)]


async def prepare(cluster: Cluster) -> None:
    """Store messages at broker-0, for a group that both brokers know; its slave has both."""
    for index in (MASTER, OTHER):
        groups = cluster.broker(index).components.context.groups
        groups.get_or_create(GROUP, "")
        await groups.persist()
    await send_to_master(cluster, *[Message("T", body) for body in ALL])


async def act(cluster: Cluster) -> None:
    await cluster.kill_broker(MASTER)
    await acts(cluster, SLAVE)
    await asyncio.sleep(1)


async def end_acting(cluster: Cluster) -> None:
    await cluster.restart_broker(MASTER)
    await until(lambda: not is_acting(cluster, SLAVE), 10)
    await asyncio.sleep(3)


async def receive(
    consumer: SimpleConsumer, count: int, invisible_ms: int = 20_000
) -> list[PoppedMessage]:
    """Return so many messages."""
    got: list[PoppedMessage] = []
    async with asyncio.timeout(90):
        while len(got) < count:
            try:
                got += await consumer.receive(
                    count - len(got), invisible_ms=invisible_ms, wait_ms=2_000
                )
            except KourouError:
                await asyncio.sleep(0.5)
    return got


async def receive_for(consumer: SimpleConsumer, seconds: float) -> list[PoppedMessage]:
    """Return what comes within a time."""
    loop, got = asyncio.get_running_loop(), list[PoppedMessage]()
    end_s = loop.time() + seconds
    while loop.time() < end_s:
        try:
            got += await consumer.receive(invisible_ms=600_000, wait_ms=2_000)
        except KourouError:
            await asyncio.sleep(0.5)
    return got


def texts(messages: Iterable[PoppedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


def run_popping(test: Callable[[Cluster, SimpleConsumer], Awaitable[None]], **rules: Any) -> None:
    """Run a test with a consumer of the group."""

    async def prepared(cluster: Cluster) -> None:
        await prepare(cluster)
        async with cluster.simple_consumer(GROUP) as consumer:
            consumer.subscribe("T")
            await test(cluster, consumer)

    run(prepared, **rules)


def test_acknowledged_messages_do_not_come_back_and_the_others_do() -> None:
    async def test(cluster: Cluster, consumer: SimpleConsumer) -> None:
        await act(cluster)
        got = await receive(consumer, COUNT)
        assert texts(got) == sorted(ALL)
        assert all(is_target(message.receipt.revive_queue) for message in got)
        for message in got[::2]:
            await consumer.ack(message)
        again = await receive(consumer, COUNT // 2)
        assert texts(again) == texts(got[1::2])
        assert {message.broker_name for message in again} == {"broker-1"}
        for message in again:
            await consumer.ack(message)
        assert bodies(cluster, OTHER, RETRY) == texts(again)
        await end_acting(cluster)
        assert await receive_for(consumer, 60) == []

    run_popping(test)


@pytest.mark.parametrize("acked_at", ["the slave", "the master that is back"])
def test_what_was_popped_from_the_slave_is_not_popped_again_from_the_master(acked_at: str) -> None:
    async def test(cluster: Cluster, consumer: SimpleConsumer) -> None:
        await act(cluster)
        got = await receive(consumer, COUNT, invisible_ms=60_000)
        if acked_at == "the slave":
            for message in got[::2]:
                await consumer.ack(message)
        await end_acting(cluster)
        if acked_at != "the slave":
            for message in got[::2]:
                await consumer.ack(message)
        again = await receive_for(consumer, 90)
        assert texts(again) == texts(got[1::2])

    run_popping(test)


def test_acks_of_pops_by_the_master_are_taken_back_by_it() -> None:
    async def test(cluster: Cluster, consumer: SimpleConsumer) -> None:
        got = await receive(consumer, COUNT, invisible_ms=20_000)
        await asyncio.sleep(1)  # the slave copies the checkpoints
        await act(cluster)
        for message in got[:4]:
            await consumer.ack(message)
        await asyncio.sleep(25)  # they are due
        await end_acting(cluster)
        again = await receive_for(consumer, 60)
        assert texts(again) == texts(got[4:])
        await cluster.kill_broker(MASTER)
        await cluster.restart_broker(MASTER)
        assert await receive_for(consumer, 30) == []

    run_popping(test)


def test_acks_that_the_master_has_taken_back_outlive_it() -> None:
    async def test(cluster: Cluster, consumer: SimpleConsumer) -> None:
        got = await receive(consumer, COUNT, invisible_ms=60_000)
        await asyncio.sleep(1)
        await act(cluster)
        for message in got[:4]:
            await consumer.ack(message)
        await end_acting(cluster)
        await send_to_master(cluster, Message("T", b"x"))  # the slave forgets the acks
        await cluster.kill_broker(MASTER)
        await cluster.restart_broker(MASTER)
        again = await receive_for(consumer, 90)
        assert texts(again) == sorted([*texts(got[4:]), b"x"])

    run_popping(test)


def test_messages_that_the_master_popped_in_its_last_second_are_not_popped_from_the_slave() -> None:
    async def test(cluster: Cluster, consumer: SimpleConsumer) -> None:
        got = await receive(consumer, COUNT, invisible_ms=300_000)
        await asyncio.sleep(0.2)
        await act(cluster)
        assert await receive_for(consumer, 20) == []
        assert len(got) == COUNT

    run_popping(test)


def test_a_changed_invisible_time_counts_and_the_old_one_does_not() -> None:
    async def test(cluster: Cluster, consumer: SimpleConsumer) -> None:
        early = await receive(consumer, 1, invisible_ms=20_000)
        await asyncio.sleep(1)
        await act(cluster)
        late = await receive(consumer, COUNT - 1, invisible_ms=20_000)
        for message in (*early, late[0]):
            await consumer.change_invisible(message, 60_000)
        for message in late[1:]:
            await consumer.ack(message)
        assert await receive_for(consumer, 40) == []
        again = await receive(consumer, 2)
        assert texts(again) == texts((early[0], late[0]))
        await end_acting(cluster)
        for message in again:
            await consumer.ack(message)
        assert await receive_for(consumer, 60) == []

    run_popping(test)


def test_a_slave_that_is_killed_while_it_acts_loses_nothing() -> None:
    async def test(cluster: Cluster, consumer: SimpleConsumer) -> None:
        await act(cluster)
        got = await receive(consumer, 4, invisible_ms=30_000)
        for message in got[:2]:
            await consumer.ack(message)
        await asyncio.sleep(11)  # the offsets are saved
        await cluster.kill_broker(SLAVE)
        await cluster.restart_broker(SLAVE)
        await acts(cluster, SLAVE)
        await consumer.ack(got[2])  # by the receipt alone
        again = await receive_for(consumer, 60)
        assert texts(again) == sorted({*ALL} - {message.body for message in got[:3]})

    run_popping(test)


def test_pops_are_refused_while_no_other_master_can_store_their_checkpoints() -> None:
    async def test(cluster: Cluster, consumer: SimpleConsumer) -> None:
        await act(cluster)
        got = await receive(consumer, 2, invisible_ms=60_000)
        await cluster.kill_broker(OTHER)
        answer = await pop(cluster)
        assert answer.code == 14
        with pytest.raises(KourouError):
            await consumer.ack(got[0])
        await cluster.restart_broker(OTHER)
        await consumer.ack(got[0])
        rest = await receive(consumer, COUNT - 2, invisible_ms=600_000)
        assert texts((*got, *rest)) == sorted(ALL)
        await end_acting(cluster)
        assert texts(await receive_for(consumer, 90)) == [got[1].body]

    run_popping(test)


async def pop(cluster: Cluster, **fields: Any) -> RemotingCommand:
    """Return the answer of the slave to a pop."""
    header = PopMessageRequestHeader(
        consumer_group=GROUP,
        topic="T",
        queue_id=-1,
        max_msg_nums=32,
        invisible_time=10_000,
        poll_time=0,
        born_time=cluster.runtime.clock.now_ms(),
        init_mode=0,
        **fields,
    )
    return await ask(cluster, request(RequestCode.POP_MESSAGE, header), SLAVE)


def test_without_escape_or_a_lost_master_pops_are_refused() -> None:
    async def test(cluster: Cluster) -> None:
        await prepare(cluster)
        answer = await pop(cluster)
        assert (answer.code, "does not act" in (answer.remark or "")) == (14, True)

    run(test)

    async def without_escape(cluster: Cluster) -> None:
        await prepare(cluster)
        await act(cluster)
        answer = await pop(cluster)
        assert (answer.code, "enableRemoteEscape" in (answer.remark or "")) == (14, True)

    run(without_escape, enable_remote_escape=False)


def test_ordered_pops_and_their_acks_wait_for_the_master() -> None:
    async def test(cluster: Cluster) -> None:
        await prepare(cluster)
        await act(cluster)
        assert (await pop(cluster, order=True)).code == 14
        handle = "0 1700000000000 60000 999 0 broker-0 0 0"
        header = AckMessageRequestHeader(GROUP, "T", 0, handle, 0)
        assert (await ask(cluster, request(RequestCode.ACK_MESSAGE, header), SLAVE)).code == 14

    run(test)


def test_targets_differ_by_broker_and_queue_and_are_no_queues() -> None:
    queues = [RemoteQueue(f"broker-{n}", "", queue) for n in range(50) for queue in range(8)]
    targets = {target_of(queue) for queue in queues}
    assert len(targets) == len(queues)
    assert all(is_target(target) and target < 10**9 for target in targets)
    assert not is_target(999)
