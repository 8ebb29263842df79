"""The proxy in front of replicas whose master controllers replace: what SDKs see of a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kourou.client.administration.admin import AdminClient
from kourou.model.group import SubscriptionGroup
from kourou.proxy.cluster import MASTER_WAIT_S
from kourou.proxy.cluster import Cluster as Brokers
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType, Code, MessageType, TransactionResolution
from kourou.proxy.server import Proxy
from kourou.testing.loop import run_virtual
from tests.broker.controlling.controlled_cluster import CONTROLLER, NAMESRV, ControlledCluster
from tests.proxy.proxy_rig import GROUP, PROXY, TOPIC, Rig, TestClient

ATTEMPTS: Final = 3
"""Tries of a send, at once one after the other, as RocketMQ's SDKs make them by default."""
ORDERED: Final = "Ordered"
MIXED: Final = "Transactions"


class Failover:
    """Three replicas, a proxy, and a producer that sends until it is told to stop.

    Attributes:
        sent: bodies that were acknowledged.
        failed: answers of sends whose last try failed.
        longest_s: the longest time between two acknowledgements.
    """

    def __init__(self, cluster: ControlledCluster, rig: Rig, client: TestClient) -> None:
        self.cluster = cluster
        self.rig = rig
        self.client = client
        self.sent: list[bytes] = []
        self.failed: list[Any] = []
        self.longest_s = 0.0
        self._count = 0

    async def send(self, seconds: float, topic: str = TOPIC, **system: Any) -> None:
        """Send messages for some seconds."""
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        ends_s = last_s + seconds
        while loop.time() < ends_s:
            self._count += 1
            body = b"%d" % self._count
            answers = [await self.client.try_send(body, topic, **system)]
            while answers[-1].status.code != Code.OK and len(answers) < ATTEMPTS:
                answers.append(await self.client.try_send(body, topic, **system))
            if answers[-1].status.code == Code.OK:
                self.longest_s = max(self.longest_s, loop.time() - last_s)
                last_s = loop.time()
                self.sent.append(body)
            else:
                self.failed.append(answers[-1].status)
            await asyncio.sleep(0.01)

    async def elect_another(self) -> None:
        """Make another replica in sync the master."""
        await self.cluster.until(lambda: len(self.cluster.in_sync()) == 3)
        master = self.cluster.master()
        other = next(one for one in range(3) if one != master)
        async with AdminClient(NAMESRV, runtime=self.cluster.runtime) as admin:
            await admin.elect_master(
                CONTROLLER, cluster="", broker_name="broker-a", broker_id=other + 1
            )

    async def kill_master(self) -> None:
        """End the master like kill -9."""
        master = self.cluster.require_master()
        await self.cluster.kill(master)

    async def received(self) -> set[bytes]:
        """Receive and acknowledge all messages."""
        consumer = await self.rig.consumer(kind=ClientType.SIMPLE_CONSUMER)
        bodies: set[bytes] = set()
        while found := await consumer.receive(invisible_ms=60_000):
            assert set(await consumer.ack(*found)) == {Code.OK}
            bodies |= {one.body for one in found}
        return bodies


def with_replicas(test: Callable[[Failover], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ControlledCluster(3, min_in_sync=2) as cluster:
            for index in range(3):
                await cluster.start(index)
            await cluster.until(lambda: len(cluster.in_sync()) == 3)
            async with AdminClient(NAMESRV, runtime=cluster.runtime) as admin:
                kinds = {TOPIC: "NORMAL", ORDERED: "FIFO", MIXED: "TRANSACTION"}
                for topic, kind in kinds.items():
                    await admin.create_topic(topic, queues=2, attributes={"message.type": kind})
                await admin.create_group(SubscriptionGroup(GROUP))
            brokers = Brokers(cluster.runtime, (NAMESRV,))
            proxy = Proxy(cluster.network, brokers)
            await proxy.start(PROXY)
            master = cluster.brokers[0]
            assert master is not None
            rig = Rig(master, proxy, cluster.runtime, cluster.network)  # type: ignore[arg-type]
            try:
                await test(Failover(cluster, rig, await rig.producer()))
            finally:
                await rig.close()

    run_virtual(main(), limit_s=3_600.0)


def test_no_send_fails_while_another_master_is_elected() -> None:
    async def test(failover: Failover) -> None:
        sending = asyncio.create_task(failover.send(30))
        for _ in range(3):
            await asyncio.sleep(7)
            await failover.elect_another()
        await sending

        assert failover.failed == []
        assert failover.longest_s < MASTER_WAIT_S
        assert await failover.received() >= set(failover.sent)

    with_replicas(test)


def test_ordered_sends_wait_for_their_broker() -> None:
    async def test(failover: Failover) -> None:
        kind: dict[str, Any] = {"message_type": MessageType.FIFO, "message_group": "g"}
        sending = asyncio.create_task(failover.send(10, ORDERED, **kind))
        await asyncio.sleep(5)
        await failover.elect_another()
        await sending

        assert failover.failed == []

    with_replicas(test)


def test_sends_go_on_after_the_master_was_killed() -> None:
    async def test(failover: Failover) -> None:
        sending = asyncio.create_task(failover.send(40))
        await asyncio.sleep(5)
        await failover.kill_master()
        await sending

        assert len(failover.failed) <= 1, failover.failed
        assert failover.longest_s < 10
        assert await failover.received() >= set(failover.sent)

    with_replicas(test)


def test_message_is_acknowledged_at_the_next_master() -> None:
    async def test(failover: Failover) -> None:
        await failover.send(1)
        consumer = await failover.rig.consumer(kind=ClientType.SIMPLE_CONSUMER)
        plain, *several = await consumer.receive(invisible_ms=60_000, batch_size=10)
        await asyncio.sleep(2)
        await failover.elect_another()

        assert await consumer.ack(plain) == [Code.OK]
        await failover.elect_another()
        assert set(await consumer.ack(*several)) == {Code.OK}
        await asyncio.sleep(70)
        again = await consumer.receive(invisible_ms=60_000)
        assert not {one.body for one in again} & {one.body for one in (plain, *several)}

    with_replicas(test)


def test_transaction_is_committed_at_the_next_master() -> None:
    async def test(failover: Failover) -> None:
        client = failover.client
        half = await client.send(b"half", MIXED, message_type=MessageType.TRANSACTION)
        await failover.elect_another()
        await asyncio.sleep(3)
        await client.send(b"next", MIXED, message_type=MessageType.TRANSACTION)
        ended = v2.EndTransactionRequest(
            topic=v2.Resource(name=MIXED),
            message_id=half.message_id,
            transaction_id=half.transaction_id,
            resolution=TransactionResolution.COMMIT,
        )
        answer = await client.grpc.call("EndTransaction", ended)
        assert answer.status.code == Code.OK, answer
        consumer = await failover.rig.consumer(MIXED, kind=ClientType.SIMPLE_CONSUMER)
        found = await consumer.receive(MIXED, invisible_ms=60_000)
        assert [one.body for one in found] == [b"half"]

    with_replicas(test)


def test_types_and_groups_are_known_while_there_is_no_master() -> None:
    async def test(failover: Failover) -> None:
        await failover.send(1)
        cluster = failover.cluster
        await cluster.stop_controller()  # nobody is elected
        await failover.kill_master()
        brokers = failover.rig.proxy.cluster
        await asyncio.sleep(150)  # what the proxy has read is old
        assert (await brokers.route(TOPIC)).master_address("broker-a") is None
        metadata = brokers.metadata
        assert await metadata.topic_type(TOPIC) == "NORMAL"
        assert await metadata.group(GROUP) is not None

        await cluster.start_controller()
        failover.client = await failover.rig.producer()  # the idle connection was closed
        await failover.send(20)
        assert failover.sent
        failover.failed.clear()
        await failover.send(1)
        assert failover.failed == []

    with_replicas(test)
