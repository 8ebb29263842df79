"""Remoting clients of the proxy: their requests are forwarded to the brokers, and back."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from kourou import (
    AdminClient,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    RetryLater,
    SimpleConsumer,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.errors import ConsumerNotOnlineError, MessageIllegalError
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import TopicConfig
from kourou.protocol.clients import (
    ConsumerData,
    GetConsumerListByGroupRequestHeader,
    HeartbeatData,
    HeartbeatRequestHeader,
    decode_consumer_list,
    encode_heartbeat,
)
from kourou.protocol.codes import LanguageCode, RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.connections import (
    ConsumerConnection,
    GetConsumerConnectionListRequestHeader,
    decode_consumer_connection,
)
from kourou.proxy import remoting_port as remoting_port_module
from kourou.proxy.cluster import Cluster as Brokers
from kourou.proxy.member_messages import (
    EXPIRY_S,
    REGISTER,
    SYNC_TOPIC,
    UNREGISTER,
    MemberChange,
    decode_member_change,
    encode_member_change,
)
from kourou.proxy.member_sync import MemberSync
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType
from kourou.proxy.remoting_port import RemotingPort
from kourou.proxy.remoting_session import ASK_S
from kourou.remoting.network import Address, format_address
from kourou.remoting.pool import ConnectionPool
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from tests.proxy.proxy_rig import GROUP, TOPIC, Rig
from tests.proxy.test_cluster_mode import NAMES, create, with_brokers
from tests.proxy.test_member_messages import RECORDED

FIRST: Final[Address] = ("127.0.0.1", 18080)
SECOND: Final[Address] = ("127.0.0.1", 28080)
PAYMENTS: Final = "Payments"


@asynccontextmanager
async def remoting_port(cluster: Cluster, address: Address) -> AsyncIterator[None]:
    """Run the remoting port of a proxy."""
    brokers = Brokers(cluster.runtime, (cluster.namesrv_addr,))
    port = RemotingPort(cluster.runtime, brokers)
    await port.start(address)
    try:
        yield
    finally:
        await port.stop()
        await brokers.close()


def with_proxies(test: Callable[[Cluster], Awaitable[None]], **options: Any) -> None:
    """Run a test with two brokers that have the topic TOPIC, and two proxies."""

    async def main() -> None:
        async with Cluster(brokers=len(NAMES), **options) as cluster:
            await create(cluster, TopicConfig(TOPIC, 2, 2))
            async with remoting_port(cluster, FIRST), remoting_port(cluster, SECOND):
                await test(cluster)

    run_virtual(main(), limit_s=3_600.0)


def through(proxy: Address, cluster: Cluster) -> dict[str, Any]:
    """Return the arguments of a client of a proxy."""
    return {"namesrv_addr": f"{proxy[0]}:{proxy[1]}", "runtime": cluster.runtime}


def push_consumer(proxy: Address, cluster: Cluster, group: str) -> PushConsumer:
    return PushConsumer(
        group, **through(proxy, cluster), run_blocking=cluster.runtime.offload, disk=cluster.disk()
    )


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - brokers have no event for it
            await asyncio.sleep(0.1)


def test_clients_see_the_proxy_as_the_only_broker() -> None:
    async def test(cluster: Cluster) -> None:
        async with AdminClient(**through(FIRST, cluster)) as admin:
            route = await admin.topic_route(TOPIC)
        assert sorted(broker.broker_name for broker in route.broker_datas) == list(NAMES)
        addresses = {text for one in route.broker_datas for text in one.broker_addrs.values()}
        assert addresses == {"127.0.0.1:18080"}

    with_proxies(test)


def test_push_consumer_receives_and_retries_what_a_producer_sends() -> None:
    async def test(cluster: Cluster) -> None:
        received: Counter[bytes] = Counter()
        consumer = push_consumer(FIRST, cluster, "pushers")
        consumer.subscribe(TOPIC)

        async def take(message: MessageExt) -> None:
            received[message.body] += 1
            if message.body == b"3" and received[b"3"] == 1:
                raise RetryLater

        consumer.listen(take)
        async with Producer("senders", **through(FIRST, cluster)) as producer, consumer:
            bodies = [b"%d" % number for number in range(12)]
            stored = [await producer.send(Message(TOPIC, body)) for body in bodies]
            assert {one.queue.broker_name for one in stored} == set(NAMES)
            await until(lambda: received == Counter(bodies) + Counter([b"3"]))

    with_proxies(test)


def test_members_at_two_proxies_share_the_queues() -> None:
    async def test(cluster: Cluster) -> None:
        received: Counter[bytes] = Counter()
        takers: dict[str, set[tuple[str, int]]] = {}

        def started(proxy: Address) -> PushConsumer:
            consumer = push_consumer(proxy, cluster, "sharers")
            consumer.subscribe(TOPIC)

            async def take(message: MessageExt) -> None:
                received[message.body] += 1
                queue = (message.broker_name, message.queue_id)
                takers.setdefault(consumer.client_id, set()).add(queue)

            consumer.listen(take)
            return consumer

        async with (
            started(FIRST),
            started(SECOND),
            Producer("senders", **through(FIRST, cluster)) as producer,
        ):
            await asyncio.sleep(45)  # both have seen each other
            bodies = [b"%d" % number for number in range(24)]
            for body in bodies:
                await producer.send(Message(TOPIC, body))
            await until(lambda: received.keys() == set(bodies))
            assert received == Counter(bodies)
            assert sorted(map(len, takers.values())) == [2, 2]

    with_proxies(test)


def test_simple_consumer_pops_and_acknowledges() -> None:
    async def test(cluster: Cluster) -> None:
        async with (
            SimpleConsumer("poppers", **through(SECOND, cluster)) as consumer,
            Producer("senders", **through(FIRST, cluster)) as producer,
        ):
            consumer.subscribe(TOPIC)
            assert await consumer.receive(wait_ms=5_000) == []
            for number in range(8):
                await producer.send(Message(TOPIC, b"%d" % number))
            found: set[bytes] = set()
            while len(found) < 8:
                for message in await consumer.receive(invisible_ms=10_000):
                    found.add(message.body)
                    await consumer.ack(message)
            await asyncio.sleep(30)
            assert await consumer.receive(wait_ms=5_000) == []

    with_proxies(test)


def test_transactions_end_and_are_checked_at_their_brokers() -> None:
    checked: list[bytes] = []

    def check(message: MessageExt) -> TransactionState:
        checked.append(message.body)
        return TransactionState.COMMIT

    async def test(cluster: Cluster) -> None:
        kind = {"message.type": "TRANSACTION"}
        await create(cluster, TopicConfig(PAYMENTS, 1, 1, attributes=kind))
        received: Counter[bytes] = Counter()
        consumer = push_consumer(FIRST, cluster, "payees")
        consumer.subscribe(PAYMENTS)

        async def take(message: MessageExt) -> None:
            received[message.body] += 1

        consumer.listen(take)
        producer = TransactionProducer(
            "payers",
            **through(SECOND, cluster),
            check=check,
            run_blocking=cluster.runtime.offload,
        )
        outcomes = {
            b"commit": TransactionState.COMMIT,
            b"rollback": TransactionState.ROLLBACK,
            b"unknown": TransactionState.UNKNOWN,
        }
        async with producer, consumer:
            for body, state in outcomes.items():

                async def work(_: Transaction, state: TransactionState = state) -> TransactionState:
                    return state

                await producer.send_in_transaction(Message(PAYMENTS, body), work)
            await until(lambda: received == Counter([b"commit", b"unknown"]))
            await asyncio.sleep(60)
            assert received == Counter([b"commit", b"unknown"])
        assert set(checked) == {b"unknown"}

    with_proxies(test, transactions=TransactionConfig(timeout_ms=6_000, check_interval_ms=3_000))


def test_message_of_another_type_is_refused() -> None:
    async def test(cluster: Cluster) -> None:
        await create(cluster, TopicConfig("Fifo", 1, 1, attributes={"message.type": "FIFO"}))
        async with Producer("senders", **through(FIRST, cluster)) as producer:
            with pytest.raises(MessageIllegalError):
                await producer.send(Message("Fifo", b"normal"))

    with_proxies(test)


def test_broker_asks_a_client_through_the_proxy() -> None:
    async def test(cluster: Cluster) -> None:
        consumer = push_consumer(FIRST, cluster, "asked")
        consumer.subscribe(TOPIC)

        async def take(_: MessageExt) -> None:
            pass

        consumer.listen(take)
        async with consumer, AdminClient(cluster.namesrv_addr, runtime=cluster.runtime) as admin:
            await until(lambda: bool(consumer.queues))
            info = await admin.running_info("asked", consumer.client_id)
        assert TOPIC in {subscription.topic for subscription in info.subscriptions}

    with_proxies(test)


def test_member_leaves_its_group_with_its_connection() -> None:
    async def test(cluster: Cluster) -> None:
        consumer = push_consumer(FIRST, cluster, "leavers")
        consumer.subscribe(TOPIC)

        async def take(_: MessageExt) -> None:
            pass

        consumer.listen(take)

        def members(index: int) -> list[str]:
            found = cluster.broker(index).components.context.clients.consumer_group("leavers")
            return [] if found is None else found.client_ids()

        async with consumer:
            await until(lambda: all(members(index) for index in range(len(NAMES))))
        await until(lambda: not any(members(index) for index in range(len(NAMES))))

    with_proxies(test)


def test_members_at_proxies_of_rocketmq_share_the_queues() -> None:
    """A member that no broker knows takes its part, and leaves it by the end of its heartbeats."""

    async def test(cluster: Cluster) -> None:
        await until(lambda: cluster.broker(0).components.context.topics.get(SYNC_TOPIC) is not None)
        await asyncio.sleep(5)  # the proxies read the topic
        consumer = push_consumer(FIRST, cluster, "sharers")
        consumer.subscribe(TOPIC)

        async def take(_: MessageExt) -> None:
            pass

        consumer.listen(take)

        def shared() -> int:
            return sum(queue.topic == TOPIC for queue in consumer.queues)

        async with consumer, Producer("others", cluster.namesrv_addr, runtime=cluster.runtime) as p:
            await until(lambda: shared() == 4)
            change = MemberChange(
                REGISTER, "java@1", "sharers", "10.0.0.9%8080%8081", language="JAVA", version=513
            )
            await p.send(Message(SYNC_TOPIC, encode_member_change(change)))
            started_s = asyncio.get_running_loop().time()
            await until(lambda: shared() == 2)
            assert asyncio.get_running_loop().time() - started_s < 5
            await asyncio.sleep(EXPIRY_S)
            await until(lambda: shared() == 4)

    with_proxies(test)


async def announced(cluster: Cluster, *bodies: str) -> None:
    """Send messages to the topic of the proxies."""
    async with Producer("others", cluster.namesrv_addr, runtime=cluster.runtime) as producer:
        for body in bodies:
            await producer.send(Message(SYNC_TOPIC, body.encode()))


async def connections(cluster: Cluster, group: str) -> ConsumerConnection:
    """Ask a proxy for the members of a group.

    Raises:
        ConsumerNotOnlineError: there are none.
    """
    brokers = Brokers(cluster.runtime, (cluster.namesrv_addr,))
    header = GetConsumerConnectionListRequestHeader(group)
    asked = request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
    try:
        answer = await brokers.pool.request(format_address(FIRST), asked, 3.0)
    finally:
        await brokers.close()
    raise_for_response(answer)
    return decode_consumer_connection(answer.body)


async def ask_members(pool: ConnectionPool, group: str) -> RemotingCommand:
    """Ask a proxy for the ids of a group's members, as long as clients wait for the answer."""
    header = GetConsumerListByGroupRequestHeader(group)
    asked = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    return await pool.request(format_address(FIRST), asked, 3.0)


@asynccontextmanager
async def member(cluster: Cluster, group: str) -> AsyncIterator[ConnectionPool]:
    """Return the connections of a member of a group that sends a heartbeat every 30 s."""
    brokers = Brokers(cluster.runtime, (cluster.namesrv_addr,))
    consumer = ConsumerData(group, subscriptions=(SubscriptionData(TOPIC),))
    body = encode_heartbeat(HeartbeatData("member@1", consumers=(consumer,)))

    async def send_heartbeats() -> None:
        while True:
            asked = request(RequestCode.HEART_BEAT, HeartbeatRequestHeader(), body)
            raise_for_response(await brokers.pool.request(format_address(FIRST), asked, 3.0))
            await asyncio.sleep(30)

    sending = asyncio.create_task(send_heartbeats())
    await asyncio.sleep(1)
    try:
        yield brokers.pool
    finally:
        is_failed = sending.done()
        sending.cancel()
        await brokers.close()
        assert not is_failed, "a heartbeat was not answered"


def test_broker_that_is_down_does_not_delay_the_answers_of_the_others() -> None:
    async def test(cluster: Cluster) -> None:
        async with member(cluster, "sharers") as pool:
            cluster.network.stall(cluster.broker_address(1))
            times = []
            for _ in range(5):
                began_s = asyncio.get_running_loop().time()
                answer = await ask_members(pool, "sharers")
                times.append(asyncio.get_running_loop().time() - began_s)
                assert decode_consumer_list(answer.body) == ["member@1"]
                await asyncio.sleep(40)
            assert times[0] < ASK_S + 0.1
            assert max(times[1:]) < 0.1
            cluster.network.heal(cluster.broker_address(1))
            await asyncio.sleep(35)
            found = cluster.broker(1).components.context.clients.consumer_group("sharers")
            assert found is not None

    with_proxies(test)


def test_members_of_a_group_are_no_empty_list_while_no_broker_answers() -> None:
    async def test(cluster: Cluster) -> None:
        async with member(cluster, "sharers") as pool:
            assert (await ask_members(pool, "sharers")).code == ResponseCode.SUCCESS
            for index in range(len(NAMES)):
                await cluster.stop_broker(index)
            answer = await ask_members(pool, "sharers")
            assert answer.code == ResponseCode.SYSTEM_ERROR

    with_proxies(test)


def test_waiting_requests_of_one_client_keep_out_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoting_port_module, "HELD_EACH_MAX", 3)

    async def test(cluster: Cluster) -> None:
        async with member(cluster, "sharers") as pool, member(cluster, "others") as other:
            for index in range(len(NAMES)):
                cluster.network.stall(cluster.broker_address(index))
            held = [asyncio.create_task(ask_members(pool, "sharers")) for _ in range(3)]
            await asyncio.sleep(0.1)
            refused = await ask_members(pool, "sharers")
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert (await ask_members(other, "others")).code == ResponseCode.SYSTEM_ERROR
            assert {(await one).code for one in held} == {ResponseCode.SYSTEM_ERROR}

    with_proxies(test)


def test_connections_of_a_group_include_members_at_proxies_of_rocketmq() -> None:
    async def test(cluster: Cluster) -> None:
        await until(lambda: cluster.broker(0).components.context.topics.get(SYNC_TOPIC) is not None)
        await asyncio.sleep(5)  # the proxies read the topic
        with pytest.raises(ConsumerNotOnlineError):
            await connections(cluster, "simple")
        await announced(cluster, RECORDED[3])
        await asyncio.sleep(1)
        there = await connections(cluster, "simple")
        assert [one.language for one in there.connections] == [LanguageCode.PYTHON]
        assert there.subscriptions["Orders"].sub_string == "*"

        consumer = push_consumer(SECOND, cluster, "simple")
        consumer.subscribe(PAYMENTS)

        async def take(_: MessageExt) -> None:
            pass

        consumer.listen(take)
        await create(cluster, TopicConfig(PAYMENTS, 1, 1))
        async with consumer:
            await asyncio.sleep(1)
            both = await connections(cluster, "simple")
        ids = {one.client_id for one in both.connections}
        assert ids == {consumer.client_id, there.connections[0].client_id}
        assert PAYMENTS in both.subscriptions

    with_proxies(test)


@asynccontextmanager
async def published(cluster: Cluster) -> AsyncIterator[list[MemberChange]]:
    """Collect what proxies tell each other, once their topic exists."""
    await until(lambda: cluster.broker(0).components.context.topics.get(SYNC_TOPIC) is not None)
    await asyncio.sleep(5)
    found: list[MemberChange] = []
    listener = PushConsumer(
        "listeners",
        cluster.namesrv_addr,
        runtime=cluster.runtime,
        run_blocking=cluster.runtime.offload,
    )
    listener.subscribe(SYNC_TOPIC)

    async def note(message: MessageExt) -> None:
        found.append(decode_member_change(message.body))

    listener.listen(note)
    async with listener:
        yield found


def test_members_are_published_for_other_proxies() -> None:
    async def test(cluster: Cluster) -> None:
        consumer = push_consumer(SECOND, cluster, "sharers")
        consumer.subscribe(TOPIC)

        async def take(_: MessageExt) -> None:
            pass

        consumer.listen(take)
        async with published(cluster) as found:
            async with consumer:
                await until(lambda: len(found) > 1)
            await until(lambda: found[-1].heartbeat_type == UNREGISTER)
        assert {one.group for one in found} == {"sharers"}
        assert {one.local_proxy_id for one in found} == {"127.0.0.1%28080%0"}
        first = found[0]
        assert (first.heartbeat_type, first.consume_type) == (REGISTER, "CONSUME_PASSIVELY")
        assert TOPIC in {subscription.topic for subscription in first.subscriptions}

    with_proxies(test)


@asynccontextmanager
async def grpc_members_published(cluster: Cluster, rig: Rig) -> AsyncIterator[list[MemberChange]]:
    """Let the proxy tell others of its gRPC members; return what it publishes."""
    members = MemberSync(rig.proxy.cluster, "127.0.0.1%0%18081", lambda _: None)
    members.start()
    async with published(cluster) as found:
        rig.proxy.announce_members(members)
        yield found
    await members.stop()


def test_grpc_consumers_are_published_for_other_proxies() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        async with grpc_members_published(cluster, rig) as found:
            consumer = await rig.consumer(kind=ClientType.SIMPLE_CONSUMER)
            await consumer.heartbeat(ClientType.SIMPLE_CONSUMER)
            await (await rig.producer()).heartbeat(ClientType.PRODUCER)
            await consumer.grpc.call(
                "NotifyClientTermination",
                v2.NotifyClientTerminationRequest(group=v2.Resource(name=GROUP)),
            )
            await until(lambda: bool(found) and found[-1].heartbeat_type == UNREGISTER)
        assert [one.heartbeat_type for one in found] == [REGISTER, REGISTER, UNREGISTER]
        first = found[0]
        assert (first.client_id, first.group, first.language) == ("consumer@1", GROUP, "PYTHON")
        assert first.consume_type == "CONSUME_ACTIVELY"
        assert [one.topic for one in first.subscriptions] == [TOPIC]
        for one in found:
            channel = json.loads(one.channel_data or "")
            assert channel["type"] == "GRPC_V2"
            assert json.loads(channel["extendAttribute"])["clientType"] == "SIMPLE_CONSUMER"

    with_brokers(test)


def test_former_connection_of_a_grpc_consumer_leaves_the_members_of_other_proxies() -> None:
    async def test(cluster: Cluster, rig: Rig) -> None:
        async with grpc_members_published(cluster, rig) as found:
            for _ in range(2):
                await rig.consumer(kind=ClientType.SIMPLE_CONSUMER)
            await until(lambda: len(found) == 3)
        (left,) = (one.channel_data for one in found if one.heartbeat_type == UNREGISTER)
        there = [one.channel_data for one in found if one.heartbeat_type == REGISTER]
        addresses = [json.loads(one or "")["remoteAddress"] for one in (left, *there)]
        assert addresses[0] in addresses[1:]
        assert len(set(addresses)) == 2

    with_brokers(test)


def test_grpc_consumers_of_rocketmqs_proxies_are_members_in_spite_of_damaged_messages() -> None:
    first, joined, left = RECORDED[0], RECORDED[3], RECORDED[4]

    async def test(cluster: Cluster, rig: Rig) -> None:
        changed: list[str] = []
        members = MemberSync(rig.proxy.cluster, "127.0.0.1%0%18081", changed.append)
        members.start()
        await until(lambda: cluster.broker(0).components.context.topics.get(SYNC_TOPIC) is not None)
        await asyncio.sleep(5)  # it reads the topic
        async with Producer("others", cluster.namesrv_addr, runtime=cluster.runtime) as producer:

            async def send(*bodies: bytes) -> None:
                for body in bodies:
                    await producer.send(Message(SYNC_TOPIC, body))

            damaged = (first[:-1].encode(), b"\x00" + first.encode(), b"[]", b"{}", b"\xff" * 9)
            await send(*damaged, first.encode(), joined.encode())
            await until(lambda: len(changed) == 2)
            assert set(changed) == {"pushers", "simple"}
            (client_id,) = members.of("simple")
            assert client_id == decode_member_change(joined.encode()).client_id
            await send(left.encode())
            await until(lambda: not members.of("simple"))
            assert len(members.of("pushers")) == 1
        await members.stop()

    with_brokers(test)


def test_request_in_progress_is_answered_when_the_proxy_stops() -> None:
    async def main() -> None:
        async with Cluster(brokers=len(NAMES), sync_ms=(300.0, 300.0)) as cluster:
            await create(cluster, TopicConfig(TOPIC, 2, 2))
            async with Producer("senders", **through(FIRST, cluster)) as producer:
                async with remoting_port(cluster, FIRST):
                    await producer.send(Message(TOPIC, b"first"))
                    sending = asyncio.create_task(producer.send(Message(TOPIC, b"last")))
                    await asyncio.sleep(0.1)
                    assert not sending.done()
                assert (await sending).queue.topic == TOPIC

    run_virtual(main())


def test_broker_that_restarts_is_used_again() -> None:
    async def test(cluster: Cluster) -> None:
        received: set[bytes] = set()
        consumer = push_consumer(FIRST, cluster, "survivors")
        consumer.subscribe(TOPIC)

        async def take(message: MessageExt) -> None:
            received.add(message.body)

        consumer.listen(take)
        async with consumer, Producer("senders", **through(FIRST, cluster)) as producer:
            await producer.send(Message(TOPIC, b"before"))
            await until(lambda: b"before" in received)
            await cluster.kill_broker(1)
            for number in range(8):
                await producer.send(Message(TOPIC, b"%d" % number))
            await cluster.restart_broker(1)
            await asyncio.sleep(40)
            names = set()
            for number in range(8, 16):
                receipt = await producer.send(Message(TOPIC, b"%d" % number))
                names.add(receipt.queue.broker_name)
            assert names == set(NAMES)
            await until(lambda: received >= {b"%d" % number for number in range(16)})

    with_proxies(test)
