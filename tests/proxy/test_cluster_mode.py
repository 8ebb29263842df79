"""The proxy in front of several brokers: routes, failover, faults of brokers and networks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kourou import AdminClient
from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.proxy.cluster import ROUTE_DENIED_S, ROUTE_REFRESH_S
from kourou.proxy.cluster import Cluster as Brokers
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType, Code, MessageType, TransactionResolution
from kourou.proxy.server import Proxy
from kourou.remoting.network import parse_address
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.proxy.proxy_rig import GROUP, PROXY, TOPIC, Rig, TestClient, producer_settings

SIMPLE = ClientType.SIMPLE_CONSUMER
NAMES = ("broker-0", "broker-1")


async def create(
    cluster: Cluster, *topics: TopicConfig, groups: tuple[SubscriptionGroup, ...] = ()
) -> None:
    """Create topics and groups on all brokers."""
    for index in range(len(NAMES)):
        context = cluster.broker(index).components.context
        for topic in topics:
            context.topics.put(topic)
        for group in groups:
            context.groups.put(group)
        await context.topics.persist_and_announce()


@asynccontextmanager
async def proxied(cluster: Cluster) -> AsyncIterator[Rig]:
    """Run a proxy in front of a cluster."""
    brokers = Brokers(cluster.runtime, (cluster.namesrv_addr,))
    proxy = Proxy(cluster.network, brokers)
    await proxy.start(PROXY)
    rig = Rig(cluster.broker(), proxy, cluster.runtime, cluster.network)
    try:
        yield rig
    finally:
        await rig.close()


def with_brokers(
    test: Callable[[Cluster, Rig], Awaitable[None]],
    groups: tuple[SubscriptionGroup, ...] = (),
    **options: Any,
) -> None:
    """Run a test with two brokers that have the topic TOPIC and the groups, and a proxy."""

    async def main() -> None:
        async with Cluster(brokers=len(NAMES), **options) as cluster:
            await create(cluster, TopicConfig(TOPIC, 1, 1), groups=groups)
            async with proxied(cluster) as rig:
                await test(cluster, rig)

    run_virtual(main(), limit_s=3_600.0)


async def drain(consumer: TestClient, topic: str = TOPIC) -> Counter[bytes]:
    """Receive and acknowledge messages until both brokers have none; return their bodies."""
    return Counter(message.body for message in await acknowledged(consumer, topic))


async def acknowledged(consumer: TestClient, topic: str = TOPIC) -> list[Any]:
    """Receive messages until both brokers have none; return those that were acknowledged."""
    found: list[Any] = []
    empty = 0
    while empty < len(NAMES):
        empty = 0
        for name in NAMES:
            status, messages = await consumer.try_receive(topic, broker=name, invisible_ms=10_000)
            if status.code not in (Code.OK, Code.MESSAGE_NOT_FOUND):
                await asyncio.sleep(1)
                continue
            empty += not messages
            if messages:
                codes = await consumer.ack(*messages, topic=topic)
                found += [one for one, code in zip(messages, codes, strict=True) if code == Code.OK]
    return found


def store_host(message: Any) -> str:
    """Return the address of the broker that stored a message."""
    text: str = message.system_properties.store_host
    return text


def test_sends_and_receives_use_all_brokers() -> None:
    async def test(_: Cluster, rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        for name in NAMES:
            assert await consumer.receive(broker=name, invisible_ms=10_000) == []
        for number in range(10):
            await producer.send(b"%d" % number)
        counts = {}
        for name in NAMES:
            messages = await consumer.receive(broker=name, invisible_ms=10_000)
            counts[name] = len(messages)
            assert all(f" {name} " in one.system_properties.receipt_handle for one in messages)
            assert await consumer.ack(*messages) == [Code.OK] * len(messages)
        assert counts == dict.fromkeys(NAMES, 5)

    with_brokers(test)


def test_route_and_assignments_name_all_brokers() -> None:
    async def test(_: Cluster, rig: Rig) -> None:
        consumer = await rig.consumer()
        topic, group = v2.Resource(name=TOPIC), v2.Resource(name=GROUP)
        route = await consumer.grpc.call("QueryRoute", v2.QueryRouteRequest(topic=topic))
        assert sorted(queue.broker.name for queue in route.message_queues) == list(NAMES)
        asked = v2.QueryAssignmentRequest(topic=topic, group=group)
        found = (await consumer.grpc.call("QueryAssignment", asked)).assignments
        assert sorted(one.message_queue.broker.name for one in found) == list(NAMES)

    with_brokers(test)


def test_consumer_is_a_member_at_all_brokers() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        await rig.consumer()
        for index in range(len(NAMES)):
            members = cluster.broker(index).components.context.clients.consumer_group(GROUP)
            assert members is not None
            assert members.client_ids() == ["consumer@1"]

    with_brokers(test)


def test_acknowledgements_of_one_call_reach_both_brokers() -> None:
    async def test(_: Cluster, rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        assert await drain(consumer) == Counter()
        for number in range(4):
            await producer.send(b"%d" % number)
        messages = []
        for name in NAMES:
            messages += await consumer.receive(broker=name, invisible_ms=10_000)
        assert len(messages) == 4
        assert await consumer.ack(*messages) == [Code.OK] * 4
        await asyncio.sleep(15)
        assert await drain(consumer) == Counter()

    with_brokers(test)


def test_sends_use_the_other_broker_while_one_is_down() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        producer = await rig.producer()
        await producer.send()
        await producer.send()
        await cluster.kill_broker(1)
        for number in range(10):
            await producer.send(b"%d" % number)

    with_brokers(test)


def test_ordered_send_does_not_change_its_broker() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        await create(cluster, TopicConfig("Fifo", 1, 1, attributes={"message.type": "FIFO"}))
        producer = await rig.producer("Fifo")
        groups = [f"g{number}" for number in range(8)]
        for group in groups:
            await producer.send(b"1", "Fifo", message_group=group)
        await cluster.kill_broker(1)
        codes = Counter(
            [(await producer.try_send(b"2", "Fifo", message_group=one)).status.code
             for one in groups]
        )  # fmt: skip
        assert set(codes) == {Code.OK, Code.INTERNAL_SERVER_ERROR}
        await cluster.restart_broker(1)
        await asyncio.sleep(5)
        for group in groups:
            await producer.send(b"3", "Fifo", message_group=group)

    with_brokers(test)


def test_silent_broker_is_avoided_after_one_timeout() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        producer = await rig.producer()
        await producer.send()
        await producer.send()
        cluster.network.stall(cluster.broker_address(1))
        codes = [(await producer.try_send(b"%d" % one)).status.code for one in range(6)]
        assert sorted(codes) == [Code.OK] * 5 + [Code.PROXY_TIMEOUT]
        cluster.network.heal(cluster.broker_address(1))

    with_brokers(test)


def test_receives_continue_after_a_broker_was_killed_and_restarted() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        assert await drain(consumer) == Counter()
        await asyncio.sleep(12)  # the broker persists that the group exists
        sent = Counter(b"%d" % number for number in range(20))
        for body in sent:
            await producer.send(body)
        pending = consumer.receiving(broker=NAMES[1], invisible_ms=10_000)
        await cluster.kill_broker(1)
        answers = await pending.rest()
        assert answers[-1].HasField("delivery_timestamp")
        await cluster.restart_broker(1)
        await asyncio.sleep(15)  # the messages of the receive that was lost become visible
        assert await drain(consumer) >= sent - Counter(
            answer.message.body for answer in answers if answer.HasField("message")
        )
        assert (await consumer.heartbeat(SIMPLE)).code == Code.OK
        members = cluster.broker(1).components.context.clients.consumer_group(GROUP)
        assert members is not None
        assert members.client_ids() == ["consumer@1"]

    with_brokers(test)


def test_broker_that_moved_is_found_again() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        producer = await rig.producer()
        await cluster.stop_broker(1)
        cluster.move_broker(12_345, 1)
        await cluster.restart_broker(1)
        for number in range(4):
            await producer.send(b"%d" % number)
        await asyncio.sleep(ROUTE_REFRESH_S)
        await producer.send()
        await asyncio.sleep(12)
        stored = cluster.broker(1).store.reader.max_offset(TOPIC, 0)
        for number in range(4):
            await producer.send(b"%d" % number)
        assert cluster.broker(1).store.reader.max_offset(TOPIC, 0) > stored

    with_brokers(test)


@pytest.mark.parametrize("idle_s", [1, 400])
def test_types_and_routes_are_known_while_all_brokers_are_down(idle_s: int) -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        producer = await rig.producer()
        await producer.send()
        for index in range(len(NAMES)):
            await cluster.kill_broker(index)
        await asyncio.sleep(idle_s)
        asked = v2.QueryRouteRequest(topic=v2.Resource(name=TOPIC))
        answer = await (await rig.connect("later")).grpc.call("QueryRoute", asked)
        assert {tuple(queue.accept_message_types) for queue in answer.message_queues} == {
            (MessageType.NORMAL,)
        }
        for index in range(len(NAMES)):
            await cluster.restart_broker(index)

    with_brokers(test)


def test_change_of_a_group_reaches_its_clients() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        first = await rig.consumer()
        assert not first.settings.subscription.fifo
        await create(cluster, groups=(SubscriptionGroup(GROUP, consume_message_orderly=True),))
        await asyncio.sleep(20)
        await rig.consumer(client_id="consumer@2")
        await asyncio.sleep(1)
        third = await rig.consumer(client_id="consumer@3")
        assert third.settings.subscription.fifo

    with_brokers(test)


def test_each_broker_checks_its_transactions_with_a_client_of_the_proxy() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        topic = "Payments"
        await create(cluster, TopicConfig(topic, 1, 1, attributes={"message.type": "TRANSACTION"}))
        producer, consumer = await rig.producer(topic), await rig.consumer(topic, kind=SIMPLE)
        assert await drain(consumer, topic) == Counter()
        bodies = {b"0", b"1"}
        for body in sorted(bodies):
            await producer.send(body, topic, message_type=MessageType.TRANSACTION)
        assert producer.stream is not None
        checked: set[bytes] = set()
        while checked != bodies:
            command = (await producer.stream.next()).recover_orphaned_transaction_command
            checked.add(command.message.body)
            asked = v2.EndTransactionRequest(
                topic=v2.Resource(name=topic),
                message_id=command.message.system_properties.message_id,
                transaction_id=command.transaction_id,
                resolution=TransactionResolution.COMMIT,
                source=v2.TransactionSource.SOURCE_SERVER_CHECK,
            )
            assert (await producer.grpc.call("EndTransaction", asked)).status.code == Code.OK
        assert (await drain(consumer, topic)).keys() == bodies

    with_brokers(test, transactions=TransactionConfig(timeout_ms=6_000, check_interval_ms=3_000))


@pytest.mark.parametrize("seed", range(3))
def test_no_acknowledged_message_is_lost_or_comes_again_in_partitions(seed: int) -> None:
    """Links between the proxy and its brokers fail while clients send and receive."""

    async def test(cluster: Cluster, rig: Rig) -> None:
        rng = random.Random(seed)
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        assert await drain(consumer) == Counter()
        stored: set[bytes] = set()
        received: list[Any] = []

        async def send() -> None:
            for number in range(300):
                answer = await producer.try_send(b"%d" % number)
                if answer.status.code == Code.OK:
                    stored.add(b"%d" % number)
                await asyncio.sleep(rng.uniform(0, 0.2))

        async def fail() -> None:
            for _ in range(8):
                await asyncio.sleep(rng.uniform(0.5, 3))
                address = cluster.broker_address(rng.randrange(len(NAMES)))
                rng.choice([cluster.network.stall, cluster.network.cut])(address)
                await asyncio.sleep(rng.uniform(0.5, 6))
                cluster.network.heal(address)

        async def receive() -> None:
            while not sending.done():
                received.extend(await acknowledged(consumer))

        sending = asyncio.create_task(send())
        await asyncio.gather(sending, fail(), receive())
        await asyncio.sleep(40)  # what was popped and not acknowledged becomes visible
        received.extend(await acknowledged(consumer))
        assert len(stored) > 100
        assert stored <= {message.body for message in received}
        # A send that was repeated is a message of its own at the other broker.
        copies = Counter((message.body, store_host(message)) for message in received)
        assert copies.most_common(1)[0][1] == 1
        assert len({host for _, host in copies}) == len(NAMES)

    with_brokers(test, seed=seed)


@pytest.mark.parametrize("is_known", [True, False])
def test_clients_begin_while_a_broker_is_down(*, is_known: bool) -> None:
    """SDKs wait 3 s for the answer to their settings."""

    async def test(cluster: Cluster, rig: Rig) -> None:
        if is_known:
            await rig.consumer(client_id="earlier@1")
        cluster.network.stall(cluster.broker_address(1))
        for number in range(4):
            async with asyncio.timeout(2.5):
                await rig.producer(client_id=f"producer@{number}")
            async with asyncio.timeout(2.5):
                await rig.consumer(client_id=f"consumer@{number}", group=f"group-{number}")
        cluster.network.heal(cluster.broker_address(1))

    groups = tuple(SubscriptionGroup(f"group-{number}") for number in range(4))
    with_brokers(test, groups=groups)


def test_clients_with_many_topics_begin_while_no_name_server_answers() -> None:
    names = [TOPIC, *(f"topic-{number}" for number in range(6))]

    async def test(cluster: Cluster, rig: Rig) -> None:
        await rig.producer()
        namesrv = parse_address(cluster.namesrv_addr)
        cluster.network.stall(namesrv)
        client = await rig.connect("many@1")
        settings = producer_settings(*names)
        async with asyncio.timeout(2.5):
            await client.settle(settings)
        cluster.network.heal(namesrv)
        assert (await client.try_send()).status.code == Code.OK

    with_brokers(test)


@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_known_routes_are_returned_while_no_name_server_answers(fault: str) -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        client = await rig.producer()
        asked = v2.QueryRouteRequest(topic=v2.Resource(name=TOPIC))
        before = await client.grpc.call("QueryRoute", asked)
        namesrv = parse_address(cluster.namesrv_addr)
        getattr(cluster.network, fault)(namesrv)
        await asyncio.sleep(ROUTE_REFRESH_S)
        async with asyncio.timeout(2.5):
            assert await client.grpc.call("QueryRoute", asked) == before
        unknown = v2.QueryRouteRequest(topic=v2.Resource(name="Unknown"))
        answer = await client.grpc.call("QueryRoute", unknown)
        assert answer.status.code not in (Code.OK, Code.TOPIC_NOT_FOUND)
        cluster.network.heal(namesrv)

    with_brokers(test)


@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_acknowledgement_is_repeated_with_the_first_handle_after_a_fault(fault: str) -> None:
    """SDKs repeat it until it succeeds, or the handle is refused."""

    async def test(cluster: Cluster, rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        for name in NAMES:
            assert await consumer.receive(broker=name) == []
        await producer.send(b"one")
        [message] = [one for name in NAMES for one in await consumer.receive(broker=name)]
        for _ in range(14):  # the receipt has been renewed
            await asyncio.sleep(5)
            await consumer.heartbeat(ClientType.PUSH_CONSUMER)
        addresses = [cluster.broker_address(index) for index in range(len(NAMES))]
        for address in addresses:
            getattr(cluster.network, fault)(address)
        [failed] = await consumer.ack(message)
        assert failed not in (Code.OK, Code.INVALID_RECEIPT_HANDLE)
        for address in addresses:
            cluster.network.heal(address)

        assert await consumer.ack(message) == [Code.OK]

        for _ in range(20):
            assert await consumer.receive(broker="broker-0") == []
            assert await consumer.receive(broker="broker-1") == []
            await consumer.heartbeat(ClientType.PUSH_CONSUMER)

    with_brokers(test)


def test_deleted_topic_is_not_found_after_a_minute_until_it_is_made_again() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        await producer.send(b"before")
        asked = v2.QueryRouteRequest(topic=v2.Resource(name=TOPIC))

        async def codes() -> set[int]:
            route = await producer.grpc.call("QueryRoute", asked)
            sent = await producer.try_send(b"after")
            status, _ = await consumer.try_receive(broker="broker-0")
            return {route.status.code, sent.status.code, status.code}

        async with AdminClient(cluster.namesrv_addr, runtime=cluster.runtime) as admin:
            await admin.delete_topic(TOPIC)
        await producer.grpc.call("QueryRoute", asked)
        await asyncio.sleep(ROUTE_DENIED_S + 1)
        assert await codes() == {Code.TOPIC_NOT_FOUND}
        await create(cluster, TopicConfig(TOPIC, 3, 3))
        assert await codes() <= {Code.OK, Code.MESSAGE_NOT_FOUND}

    with_brokers(test, auto_create_topic_enable=False)
