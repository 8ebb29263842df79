"""A slave that acts for its master delivers what is due, by the masters of other broker names."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.client.sending.transaction import Transaction, TransactionState
from kourou.errors import ConfigError
from kourou.model.message import Message, MessageExt
from kourou.protocol.record.decode import decode_message
from kourou.testing.cluster import Cluster
from tests.broker.replication.test_acting_master import ACTING, acts
from tests.broker.replication.test_acting_master import run as run_acting
from tests.broker.replication.test_slave import until

MASTER, OTHER, SLAVE = 0, 1, 2
ESCAPING = dataclasses.replace(ACTING, enable_remote_escape=True, total_replicas=2)


def run(test: Callable[[Cluster], Awaitable[None]], **rules: Any) -> None:
    async def prepared(cluster: Cluster) -> None:
        async with cluster.admin() as admin:
            await admin.create_topic("T")
        await test(cluster)

    role = dataclasses.replace(ESCAPING, **rules)
    run_acting(prepared, brokers=2, slaves=1, replication=role)


def delivered(cluster: Cluster, index: int, topic: str = "T") -> list[MessageExt]:
    """Return the messages of a topic in a broker's log."""
    reader = cluster.broker(index).store.reader
    found = []
    for queue_id in reader.queues().get(topic, ()):
        for offset in range(reader.max_offset(topic, queue_id)):
            entry = reader.entry(topic, queue_id, offset)
            assert entry is not None
            record = reader.read_record(entry.physical_offset)
            assert record is not None
            found.append(decode_message(record))
    return found


def bodies(cluster: Cluster, index: int, topic: str = "T") -> list[bytes]:
    return sorted(message.body for message in delivered(cluster, index, topic))


async def send_to_master(cluster: Cluster, *messages: Message) -> None:
    """Send to the broker whose slave will act."""
    async with cluster.producer() as producer:
        queues = await producer.fetch_publish_message_queues("T")
        queue = next(queue for queue in queues if queue.broker_name == "broker-0")
        for message in messages:
            await producer.send(message, queue=queue)
    await copied(cluster)


async def copied(cluster: Cluster) -> None:
    def end(index: int) -> int:
        return cluster.broker(index).store.reader.visible_position

    await until(lambda: end(SLAVE) == end(MASTER))
    await asyncio.sleep(11)


def test_delayed_messages_are_delivered_once_by_the_slave_and_not_again_by_the_master() -> None:
    async def test(cluster: Cluster) -> None:
        messages = [Message("T", b"%d" % number, delay_level=5) for number in range(100)]
        messages[0] = dataclasses.replace(messages[0], tags="TagA", keys=("k",))
        await send_to_master(cluster, *messages)
        later = Message("T", b"later", delay_level=6)
        await send_to_master(cluster, later)
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(62)
        expected = sorted(message.body for message in messages)
        assert bodies(cluster, OTHER) == expected
        first = next(one for one in delivered(cluster, OTHER) if one.body == b"0")
        assert (first.tags, first.keys, first.properties.get("DELAY")) == ("TagA", ["k"], None)

        await cluster.restart_broker(MASTER)
        await asyncio.sleep(130)
        assert bodies(cluster, OTHER) == expected
        assert bodies(cluster, MASTER) == [b"later"]

    run(test)


def test_a_message_waits_until_another_broker_has_its_topic() -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, Message("T", b"x", delay_level=4))
        await cluster.kill_broker(OTHER)
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(60)
        await cluster.restart_broker(OTHER)
        await until(lambda: bodies(cluster, OTHER) == [b"x"], 20)

    run(test)


def test_what_the_slave_could_not_deliver_the_master_delivers() -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, Message("T", b"x", delay_level=5))
        await cluster.kill_broker(OTHER)
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(70)
        await cluster.restart_broker(MASTER)
        await until(lambda: bodies(cluster, MASTER) == [b"x"], 20)

    run(test)


def test_a_slave_that_is_killed_while_it_acts_goes_on_where_it_was() -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, Message("T", b"x", delay_level=5))
        await send_to_master(cluster, Message("T", b"y", delay_level=6))
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await until(lambda: bodies(cluster, OTHER) == [b"x"], 70)
        await asyncio.sleep(11)  # the progress is saved
        await cluster.kill_broker(SLAVE)
        await cluster.restart_broker(SLAVE)
        await until(lambda: bodies(cluster, OTHER) == [b"x", b"y"], 130)

    run(test)


def test_without_escape_nothing_is_delivered_before_the_master_is_back() -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, Message("T", b"x", delay_level=5))
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(70)
        assert bodies(cluster, OTHER) == []
        await cluster.restart_broker(MASTER)
        await until(lambda: bodies(cluster, MASTER) == [b"x"], 20)

    run(test, enable_remote_escape=False)


def test_escape_without_acting_masters_is_refused() -> None:
    with pytest.raises(ConfigError, match="enable_remote_escape needs enable_slave_acting_master"):
        ReplicationConfig(enable_remote_escape=True)


def test_a_refused_message_is_logged_with_its_topic(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, Message("T", b"x", delay_level=4))
        await cluster.kill_broker(OTHER)
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(25)
        assert "no other broker has a writable queue of topic T" in caplog.text

    with caplog.at_level(logging.WARNING):
        run(test)


def due_in(seconds: float, body: bytes) -> Message:
    return Message("T", body, delay_ms=int(seconds * 1000))


def test_scheduled_messages_are_delivered_once_by_the_slave_and_not_again_by_the_master() -> None:
    async def test(cluster: Cluster) -> None:
        early = due_in(5, b"early")
        messages = [due_in(40 + number / 10, b"%d" % number) for number in range(100)]
        await send_to_master(cluster, early, *messages, due_in(200, b"later"))
        assert bodies(cluster, MASTER) == [b"early"]
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await asyncio.sleep(60)
        expected = sorted(message.body for message in messages)
        assert bodies(cluster, OTHER) == expected

        await cluster.restart_broker(MASTER)
        await asyncio.sleep(200)
        assert bodies(cluster, OTHER) == expected
        assert bodies(cluster, MASTER) == [b"early", b"later"]

    run(test)


def test_a_master_that_returns_in_the_middle_repeats_a_second_at_most() -> None:
    async def test(cluster: Cluster) -> None:
        messages = [due_in(30 + number / 10, b"%d" % number) for number in range(200)]
        await send_to_master(cluster, *messages)
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await until(lambda: len(bodies(cluster, OTHER)) >= 70, 60)
        await cluster.restart_broker(MASTER)
        await asyncio.sleep(40)
        ours, others = bodies(cluster, MASTER), bodies(cluster, OTHER)
        assert {*ours, *others} == {message.body for message in messages}
        assert len({*ours} & {*others}) <= 11
        assert len(ours) == len({*ours})

    run(test)


def test_a_second_time_of_acting_delivers_only_what_is_due_since() -> None:
    async def test(cluster: Cluster) -> None:
        await send_to_master(cluster, due_in(30, b"a"), due_in(100, b"b"), due_in(160, b"c"))
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await until(lambda: bodies(cluster, OTHER) == [b"a"], 40)
        await asyncio.sleep(2)  # progress is counted in seconds
        await cluster.restart_broker(MASTER)
        await until(lambda: bodies(cluster, MASTER) == [b"b"], 100)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await until(lambda: bodies(cluster, OTHER) == [b"a", b"c"], 70)
        await asyncio.sleep(2)
        await cluster.restart_broker(MASTER)
        await asyncio.sleep(30)
        assert bodies(cluster, MASTER) == [b"b"]

    run(test)


def test_a_recalled_message_is_not_delivered_by_the_slave() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.producer() as producer:
            queues = await producer.fetch_publish_message_queues("T")
            queue = next(queue for queue in queues if queue.broker_name == "broker-0")
            receipt = await producer.send(due_in(40, b"recalled"), queue=queue)
            await producer.send(due_in(40, b"kept"), queue=queue)
            assert receipt.recall_handle is not None
            await producer.recall("T", receipt.recall_handle)
        await copied(cluster)
        await cluster.kill_broker(MASTER)
        await acts(cluster, SLAVE)
        await until(lambda: bodies(cluster, OTHER) == [b"kept"], 40)
        await asyncio.sleep(5)
        assert bodies(cluster, OTHER) == [b"kept"]

    run(test)


def ending_in(state: TransactionState) -> Callable[[Transaction], TransactionState]:
    return lambda _: state


def test_open_transactions_are_taken_over_by_another_broker_and_not_checked_by_the_master() -> None:
    async def test(cluster: Cluster) -> None:
        state = TransactionState.UNKNOWN
        async with cluster.transaction_producer(lambda _: state) as producer:
            queues = await producer.fetch_publish_message_queues("T")
            queue = next(queue for queue in queues if queue.broker_name == "broker-0")
            for body, end in (
                (b"open", TransactionState.UNKNOWN),
                (b"committed", TransactionState.COMMIT),
                (b"rolled back", TransactionState.ROLLBACK),
            ):
                for _ in range(5):
                    message = Message("T", body, tags="TagA")
                    await producer.send_in_transaction(message, ending_in(end), queue=queue)
            await copied(cluster)
            await cluster.kill_broker(MASTER)
            await acts(cluster, SLAVE)
            half_topic = "RMQ_SYS_TRANS_HALF_TOPIC"
            await until(lambda: bodies(cluster, OTHER, half_topic) == 5 * [b"open"])
            state = TransactionState.COMMIT
            await until(lambda: bodies(cluster, OTHER) == 5 * [b"open"], 120)
            assert {message.tags for message in delivered(cluster, OTHER)} == {"TagA"}
            await cluster.restart_broker(MASTER)
            await asyncio.sleep(120)
        assert bodies(cluster, MASTER) == 5 * [b"committed"]
        assert bodies(cluster, OTHER) == 5 * [b"open"]

    run(test)


def test_a_transaction_that_no_broker_takes_over_is_checked_by_the_master() -> None:
    async def test(cluster: Cluster) -> None:
        state = TransactionState.UNKNOWN
        async with cluster.transaction_producer(lambda _: state) as producer:
            queues = await producer.fetch_publish_message_queues("T")
            queue = next(queue for queue in queues if queue.broker_name == "broker-0")
            await producer.send_in_transaction(Message("T", b"open"), lambda _: state, queue=queue)
            await copied(cluster)
            await cluster.kill_broker(OTHER)
            await cluster.kill_broker(MASTER)
            await acts(cluster, SLAVE)
            await asyncio.sleep(30)
            state = TransactionState.COMMIT
            await cluster.restart_broker(MASTER)
            await until(lambda: bodies(cluster, MASTER) == [b"open"], 120)

    run(test)
