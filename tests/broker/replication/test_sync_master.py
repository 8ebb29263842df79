"""A send to a SYNC_MASTER is acknowledged when slaves have it, on the fast and the general path."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.replication.replication_config import BrokerRole, ReplicationConfig
from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import SendReceipt, SendStatus
from kourou.client.sending.producer import Producer
from kourou.client.sending.transaction import TransactionState
from kourou.errors import ConfigError, RemoteSystemError
from kourou.model.message import Message
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.broker.replication.test_slave import MASTER, SLAVE, assert_equal, caught_up, until

PATIENT = ProducerConfig(send_timeout_ms=10_000)
FLUSH_MODES = pytest.mark.parametrize("flush", FlushDiskType)


def run(test: Callable[[Cluster], Awaitable[None]], *, seed: int = 0, **options: Any) -> None:
    rules = {"in_sync_replicas": 2} | options.pop("replication", {})
    config = ReplicationConfig(broker_role=BrokerRole.SYNC_MASTER, **rules)

    async def main() -> None:
        async with Cluster(seed=seed, slaves=1, replication=config, **options) as cluster:
            await test(cluster)

    run_virtual(main())


async def send(producer: Producer, **options: Any) -> SendReceipt:
    return await producer.send(Message("T", b"hello", **options))


def stored_by_slave(cluster: Cluster) -> int:
    return cluster.broker(SLAVE).store.reader.written_position


@FLUSH_MODES
@pytest.mark.parametrize("kind", ["plain", "general", "batch"])
def test_an_acknowledged_message_is_stored_by_the_slave(flush: FlushDiskType, kind: str) -> None:
    async def test(cluster: Cluster) -> None:
        reader = cluster.broker(MASTER).store.reader
        async with cluster.producer() as producer:
            await send(producer)
            for _ in range(20):
                if kind == "batch":
                    await producer.send_batch([Message("T", b"a"), Message("T", b"b")])
                else:
                    priority = 1 if kind == "general" else None
                    receipt = await send(producer, priority=priority)
                    assert receipt.status is SendStatus.SEND_OK
                assert stored_by_slave(cluster) == reader.written_position

    run(test, flush_disk_type=flush)


@FLUSH_MODES
@pytest.mark.parametrize("kind", ["plain", "general"])
def test_a_send_without_its_slave_is_answered_with_flush_slave_timeout(
    flush: FlushDiskType, kind: str
) -> None:
    async def test(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        priority = 1 if kind == "general" else None
        async with cluster.producer(config=PATIENT) as producer:
            for _ in range(10):
                await send(producer, priority=priority)
            await caught_up(cluster)
            await cluster.kill_broker(SLAVE)
            began_s = loop.time()
            receipt = await send(producer, priority=priority)
            assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT
            assert 2.9 < loop.time() - began_s < 3.2
            no_wait = await send(producer, wait_store_ok=False)
            assert no_wait.status is SendStatus.SEND_OK
            await cluster.restart_broker(SLAVE)
            await caught_up(cluster)
            assert (await send(producer)).status is SendStatus.SEND_OK
        await caught_up(cluster)
        assert_equal(cluster)

    run(test, flush_disk_type=flush)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("end", ["kill_broker", "crash_broker"])
def test_no_acknowledged_message_is_on_the_master_only(seed: int, end: str) -> None:
    async def test(cluster: Cluster) -> None:
        rng, acknowledged = random.Random(seed), set[tuple[int, int]]()

        async def produce() -> None:
            async with cluster.producer(config=PATIENT) as producer:
                for number in range(1000):
                    receipt = await producer.send(Message("T", b"%d" % number))
                    if receipt.status is SendStatus.SEND_OK:
                        acknowledged.add((receipt.queue.queue_id, receipt.queue_offset))
                    await asyncio.sleep(rng.random() / 50)

        sending = asyncio.create_task(produce())
        for _ in range(3):
            await asyncio.sleep(rng.random())
            await getattr(cluster, end)(SLAVE)
            await cluster.restart_broker(SLAVE)
        await asyncio.sleep(rng.random())
        await getattr(cluster, end)(SLAVE)
        await asyncio.sleep(rng.random() / 5)
        await cluster.crash_broker(MASTER)  # the slave is all that is left
        await cluster.restart_broker(SLAVE)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        reader = cluster.broker(SLAVE).store.reader
        await until(lambda: reader.visible_position == reader.written_position)
        lost = [key for key in acknowledged if reader.max_offset("T", key[0]) <= key[1]]
        assert len(acknowledged) > 20
        assert lost == []

    run(test, seed=seed)


def test_a_committed_transaction_is_stored_by_the_slave() -> None:
    async def test(cluster: Cluster) -> None:
        async def check(_: object) -> TransactionState:
            return TransactionState.COMMIT

        async with cluster.transaction_producer(check) as producer:
            await send(producer)
            receipt = await producer.send_in_transaction(
                Message("T", b"in"), lambda _: TransactionState.COMMIT
            )
            assert receipt.is_confirmed
            end = cluster.broker(MASTER).store.reader.written_position
            assert stored_by_slave(cluster) > 0
        await caught_up(cluster)
        assert end <= stored_by_slave(cluster)
        assert_equal(cluster)

    run(test)


def test_sends_wait_for_as_many_brokers_as_are_in_sync() -> None:
    async def test(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        async with cluster.producer(config=PATIENT) as producer:
            await send(producer)
            await caught_up(cluster)
            host, port = cluster.broker_address(MASTER)
            cluster.network.stall((host, port + 1))
            waiting = asyncio.create_task(send(producer))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            began_s = loop.time()
            cluster.network.cut((host, port + 1))
            assert (await waiting).status is SendStatus.SEND_OK
            assert (await send(producer)).status is SendStatus.SEND_OK
            assert loop.time() - began_s < 1

            cluster.network.heal((host, port + 1))
            await caught_up(cluster)
            assert (await send(producer)).status is SendStatus.SEND_OK
            assert stored_by_slave(cluster) == cluster.broker(MASTER).store.reader.written_position

    run(test, replication={"enable_auto_in_sync_replicas": True})


@pytest.mark.parametrize("in_sync_replicas", [1, 3])
def test_sends_are_refused_while_too_few_brokers_are_in_sync(in_sync_replicas: int) -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.producer(config=ProducerConfig(refused_attempts_max=1)) as producer:
            await caught_up(cluster)
            assert (await send(producer)).status is SendStatus.SEND_OK
            await cluster.kill_broker(SLAVE)
            with pytest.raises(RemoteSystemError, match=r"1 brokers are in sync, fewer than 2"):
                await send(producer)
            await cluster.restart_broker(SLAVE)
            await caught_up(cluster)
            assert (await send(producer)).status is SendStatus.SEND_OK
            assert stored_by_slave(cluster) == cluster.broker(MASTER).store.reader.written_position

    rules = {"in_sync_replicas": in_sync_replicas, "min_in_sync_replicas": 2}
    run(test, replication={"enable_auto_in_sync_replicas": True} | rules)


def test_a_slave_of_an_allowed_network_copies() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.producer() as producer:
            assert (await send(producer)).status is SendStatus.SEND_OK
        await caught_up(cluster)
        assert_equal(cluster)

    run(test, replication={"ha_allowed_addresses": ("10.0.0.7", "127.0.0.0/8")})


def test_one_in_sync_replica_waits_for_no_slave() -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.producer() as producer:
            await cluster.kill_broker(SLAVE)
            began_s = asyncio.get_running_loop().time()
            assert (await send(producer)).status is SendStatus.SEND_OK
            assert asyncio.get_running_loop().time() - began_s < 1

    run(test, replication={"in_sync_replicas": 1})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"broker_role": BrokerRole.ASYNC_MASTER}, "only with broker_role SYNC_MASTER"),
        ({}, "only with broker_role SYNC_MASTER"),
        (
            {"broker_role": BrokerRole.SYNC_MASTER, "ha_slaves_max": 2, "in_sync_replicas": 4},
            "it must be at most 3",
        ),
        ({"slave_timeout_ms": 0}, "slave_timeout_ms is 0"),
    ],
)
def test_copies_that_are_impossible_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ReplicationConfig(**({"in_sync_replicas": 2} | options))
