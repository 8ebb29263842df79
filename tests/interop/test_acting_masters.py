"""A slave that acts for its master, where one of the two is a Java broker.

The name server is the other side's than the slave. What was committed at the slave, and delivered
by it, is not undone when the master returns. What was popped from a slave, and not acknowledged, is
revived by the master of another broker name on the other side.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kourou.blocking import AdminClient
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.simple_consumer import SimpleConsumer
from kourou.client.pop_result import PoppedMessage
from kourou.client.sending.producer import Producer
from kourou.errors import KourouError
from kourou.model.group import SubscriptionGroup
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute
from kourou.model.topic import PERM_READ
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import raise_for_response, request
from kourou.protocol.routes import GetRouteInfoRequestHeader, decode_topic_route
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from kourou.testing.process import Serving
from tests.interop.peer import free_broker_port, java_broker, start_java
from tests.replica_stores import wait_equal

QUEUE = MessageQueue("T", "broker-a", 0)
LEVELS = "1s 15s"
PATIENCE_S = 120.0
JAVA = (
    f"enableSlaveActingMaster=true\nenableRemoteEscape=true\nmessageDelayLevel={LEVELS}\n"
    "slaveReadEnable=true\nregisterNameServerPeriod=10000\ntotalReplicas=2\n"
    "haSendHeartbeatInterval=1000\n"
    # A Java master that returns finds the connection of a slave by its host.
    "brokerIP2=127.0.0.1\n"
)
KOUROU = {
    "KOUROU_BROKER_BROKER_NAME": "broker-a",
    "KOUROU_BROKER_ENABLE_SLAVE_ACTING_MASTER": "true",
    "KOUROU_BROKER_ENABLE_REMOTE_ESCAPE": "true",
    "KOUROU_BROKER_MESSAGE_DELAY_LEVEL": LEVELS,
    "KOUROU_BROKER_TOTAL_REPLICAS": "2",
    "KOUROU_BROKER_REGISTER_INTERVAL_MS": "10000",
}


async def route_of(namesrv: str) -> TopicRoute:
    """Return the route of the topic."""
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
    header = GetRouteInfoRequestHeader("T", accept_standard_json_only=True)
    try:
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = await pool.request(namesrv, command, 5)
        raise_for_response(answer)
        return decode_topic_route(answer.body)
    finally:
        await pool.close()


async def until(namesrv: str, is_true: Callable[[TopicRoute], bool]) -> TopicRoute:
    """Return the first route of which a condition is true."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                route = await route_of(namesrv)
            except KourouError:
                route = TopicRoute([], [])
            if is_true(route):
                return route
            await asyncio.sleep(0.2)


def has_master(address: str, name: str = "broker-a") -> Callable[[TopicRoute], bool]:
    return lambda route: route.master_address(name) == address


def perm_of(route: TopicRoute, name: str = "broker-a") -> int:
    return next(queues.perm for queues in route.queue_datas if queues.broker_name == name)


async def send_all(namesrv: str) -> None:
    """Send to broker-a."""
    async with Producer("producers", namesrv) as producer:
        for number in range(10):
            await producer.send(Message("T", b"%d" % number), queue=QUEUE)


async def send_delayed(namesrv: str) -> None:
    """Send a message to broker-a that is due in 15 s."""
    async with Producer("producers", namesrv) as producer:
        await producer.send(Message("T", b"delayed", delay_level=2), queue=QUEUE)


async def read_and_commit(namesrv: str, offset: int) -> None:
    """Read the messages by their route, and commit."""
    async with PullConsumer("readers", namesrv) as reader:
        result = await reader.pull(QUEUE, 0, timeout_ms=30_000)
        assert [message.body for message in result.messages] == [b"%d" % n for n in range(10)]
        await reader.commit_offset(QUEUE, offset)


async def committed(namesrv: str) -> int | None:
    async with PullConsumer("readers", namesrv) as reader:
        return await reader.committed(QUEUE)


async def delivered(namesrv: str, broker: str) -> list[bytes]:
    """Return the messages with a delay that are in a broker's queues now."""
    found: list[bytes] = []
    async with PullConsumer("tools", namesrv) as reader:
        for queue in await reader.fetch_subscribe_message_queues("T"):
            if queue.broker_name == broker:
                begin = await reader.min_offset(queue)
                while begin < await reader.max_offset(queue):
                    result = await reader.pull(queue, begin)
                    found += [message.body for message in result.messages]
                    begin = result.next_offset
    return [body for body in found if body == b"delayed"]


async def until_delivered(namesrv: str, broker: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await delivered(namesrv, broker):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.3)


def test_kourou_acts_for_a_java_master_that_is_registered_at_javas_name_server(
    jars: str, tmp_path: Path
) -> None:
    java = start_java(
        jars,
        tmp_path / "java",
        options=f"brokerRole=ASYNC_MASTER\n{JAVA}",
        namesrv_options="supportActingMaster=true\nnotifyMinBrokerIdChanged=true\n",
    )
    namesrv = java.namesrv_addr
    with ExitStack() as stack:
        stack.callback(java.stop)
        environ = KOUROU | {"KOUROU_BROKER_BROKER_ROLE": "SLAVE", "KOUROU_BROKER_BROKER_ID": "1"}
        slave = Serving.start(
            tmp_path / "slave", "--namesrv", namesrv, port=free_broker_port(), environ=environ
        )
        stack.callback(slave.stop)
        other = Serving.start(
            tmp_path / "other",
            *("--namesrv", namesrv),
            environ={"KOUROU_BROKER_BROKER_NAME": "broker-b"},
        )
        stack.callback(other.stop)
        with AdminClient(namesrv) as admin:
            admin.create_topic("T", queues=1)

        async def test() -> None:
            stores = tmp_path / "java" / "store", tmp_path / "slave"
            await until(namesrv, lambda route: len(route.broker_datas) == 2)
            await send_all(namesrv)
            await asyncio.sleep(11)  # the slave copies the tables
            await send_delayed(namesrv)
            await wait_equal(*stores)
            java.kill()
            route = await until(namesrv, has_master(slave.broker))
            assert perm_of(route) == PERM_READ
            await read_and_commit(namesrv, 7)
            await until_delivered(namesrv, "broker-b")
            java.run_broker()
            await until(namesrv, has_master(java.broker_addr))
            assert await committed(namesrv) == 7
            await asyncio.sleep(5)
            assert await delivered(namesrv, "broker-a") == []
            assert len(await delivered(namesrv, "broker-b")) == 1
            await send_all(namesrv)
            await wait_equal(*stores)

        asyncio.run(test())


def test_a_java_slave_acts_for_kourou_that_is_registered_at_kourous_name_server(
    jars: str, tmp_path: Path
) -> None:
    port = free_broker_port()
    with ExitStack() as stack:
        names = Serving.start_namesrv(tmp_path / "namesrv")
        stack.callback(names.stop)
        namesrv = names.namesrv
        with AdminClient(namesrv) as admin:
            for key in ("supportActingMaster", "notifyMinBrokerIdChanged"):
                admin.update_namesrv_config({key: "true"})

        def start() -> Serving:
            environ = KOUROU | {"KOUROU_BROKER_BROKER_ROLE": "ASYNC_MASTER"}
            store = tmp_path / "master"
            return Serving.start(store, "--namesrv", namesrv, port=port, environ=environ)

        master = start()
        stack.callback(lambda: master.stop())  # noqa: PLW0108 - it is another one later
        other = Serving.start(
            tmp_path / "other",
            *("--namesrv", namesrv),
            environ={"KOUROU_BROKER_BROKER_NAME": "broker-b"},
        )
        stack.callback(other.stop)
        with AdminClient(namesrv) as admin:
            admin.create_topic("T", queues=1)
        options = f"{JAVA}brokerRole=SLAVE\nbrokerId=1\n"
        java = java_broker(jars, tmp_path / "java", namesrv, options=options)
        stack.callback(java.stop)
        java.run_broker()

        async def test() -> None:
            nonlocal master
            stores = tmp_path / "java" / "store", tmp_path / "master"
            await until(namesrv, lambda route: any(1 in b.broker_addrs for b in route.broker_datas))
            await send_all(namesrv)
            copied = tmp_path / "java" / "store" / "config" / "topics.json"
            async with asyncio.timeout(PATIENCE_S):  # Java copies the tables after a minute
                while not copied.exists() or b'"T"' not in copied.read_bytes():  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            await send_delayed(namesrv)
            await wait_equal(*stores)
            master.stop(signal.SIGKILL)
            route = await until(namesrv, has_master(java.broker_addr))
            assert perm_of(route) == PERM_READ
            await read_and_commit(namesrv, 7)
            await until_delivered(namesrv, "broker-b")
            master = start()
            await until(namesrv, has_master(master.broker))
            assert await committed(namesrv) == 7
            await asyncio.sleep(5)
            assert await delivered(namesrv, "broker-a") == []
            assert len(await delivered(namesrv, "broker-b")) == 1
            await send_all(namesrv)
            await wait_equal(*stores)

        asyncio.run(test())


def test_a_kourou_master_revives_what_was_popped_from_a_java_slave_of_another_one(
    jars: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        names = Serving.start_namesrv(tmp_path / "namesrv")
        stack.callback(names.stop)
        namesrv = names.namesrv
        with AdminClient(namesrv) as admin:
            admin.update_namesrv_config({"supportActingMaster": "true"})
        environ = KOUROU | {"KOUROU_BROKER_BROKER_ROLE": "ASYNC_MASTER"}
        store = tmp_path / "master"
        master = Serving.start(
            store, "--namesrv", namesrv, port=free_broker_port(), environ=environ
        )
        stack.callback(master.stop)
        other = Serving.start(
            tmp_path / "other",
            *("--namesrv", namesrv),
            environ={"KOUROU_BROKER_BROKER_NAME": "broker-b"},
        )
        stack.callback(other.stop)
        with AdminClient(namesrv) as admin:
            admin.create_topic("T", queues=1)
            admin.create_group(SubscriptionGroup("poppers"))
        options = f"{JAVA}brokerRole=SLAVE\nbrokerId=1\n"
        java = java_broker(jars, tmp_path / "java", namesrv, options=options)
        stack.callback(java.stop)
        java.run_broker()

        async def test() -> None:
            await until(namesrv, lambda route: any(1 in b.broker_addrs for b in route.broker_datas))
            await send_all(namesrv)
            copied = tmp_path / "java" / "store" / "config" / "topics.json"
            async with asyncio.timeout(PATIENCE_S):
                while not copied.exists() or b'"T"' not in copied.read_bytes():  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            await wait_equal(tmp_path / "java" / "store", store)
            master.stop(signal.SIGKILL)
            await until(namesrv, has_master(java.broker_addr))
            async with SimpleConsumer("poppers", namesrv) as consumer:
                consumer.subscribe("T")
                first: list[PoppedMessage] = []
                async with asyncio.timeout(PATIENCE_S):
                    while len(first) < 10:
                        first += await consumer.receive(invisible_ms=15_000, wait_ms=2_000)
                assert {message.broker_name for message in first} == {"broker-a"}
                for message in first[::2]:
                    await consumer.ack(message)
                again: list[PoppedMessage] = []
                async with asyncio.timeout(PATIENCE_S):
                    while len(again) < 5:
                        again += await consumer.receive(invisible_ms=60_000, wait_ms=2_000)
                await asyncio.sleep(5)
                again += await consumer.receive(invisible_ms=60_000, wait_ms=2_000)
            assert {message.broker_name for message in again} == {"broker-b"}
            assert sorted(message.body for message in again) == sorted(
                message.body for message in first[1::2]
            )

        asyncio.run(test())


def test_a_java_master_revives_what_was_popped_from_a_kourou_slave_of_another_one(
    jars: str, tmp_path: Path
) -> None:
    port = free_broker_port()
    with ExitStack() as stack:
        names = Serving.start_namesrv(tmp_path / "namesrv")
        stack.callback(names.stop)
        namesrv = names.namesrv
        with AdminClient(namesrv) as admin:
            admin.update_namesrv_config({"supportActingMaster": "true"})

        def start(name: str, listen: int, **environ: str) -> Serving:
            settings = KOUROU | {f"KOUROU_BROKER_{key}": environ[key] for key in environ}
            directory = tmp_path / name
            return Serving.start(directory, "--namesrv", namesrv, port=listen, environ=settings)

        master = start("master", port, BROKER_ROLE="ASYNC_MASTER")
        stack.callback(lambda: master.stop())  # noqa: PLW0108 - it is another one later
        slave = start("slave", free_broker_port(), BROKER_ROLE="SLAVE", BROKER_ID="1")
        stack.callback(slave.stop)
        java = java_broker(jars, tmp_path / "java", namesrv, options="brokerName=broker-b\n")
        stack.callback(java.stop)
        java.run_broker()

        async def test() -> None:
            nonlocal master
            await until(namesrv, lambda route: len(route.broker_datas) == 2)
            await send_all(namesrv)
            await asyncio.sleep(11)  # the slave copies the tables
            await wait_equal(tmp_path / "slave", tmp_path / "master")
            master.stop(signal.SIGKILL)
            await until(namesrv, has_master(slave.broker))
            async with SimpleConsumer("poppers", namesrv) as consumer:
                consumer.subscribe("T")
                first: list[PoppedMessage] = []
                async with asyncio.timeout(PATIENCE_S):
                    while len(first) < 10:
                        first += await consumer.receive(invisible_ms=15_000, wait_ms=2_000)
                assert {message.broker_name for message in first} == {"broker-a"}
                for message in first[::2]:
                    await consumer.ack(message)
                master = start("master", port, BROKER_ROLE="ASYNC_MASTER")
                await until(namesrv, has_master(master.broker))
                await consumer.ack(first[1])  # the master sends it to where the checkpoint is
                again: list[PoppedMessage] = []
                async with asyncio.timeout(PATIENCE_S):
                    while len(again) < 4:
                        again += await consumer.receive(invisible_ms=60_000, wait_ms=2_000)
                await asyncio.sleep(5)
                again += await consumer.receive(invisible_ms=60_000, wait_ms=2_000)
            assert {message.broker_name for message in again} == {"broker-b"}
            assert sorted(message.body for message in again) == sorted(
                message.body for message in first[3::2]
            )

        with AdminClient(namesrv) as admin:
            while len(admin.cluster_info().brokers) < 2:
                time.sleep(0.1)  # noqa: TID251 - a real process
            admin.create_topic("T", queues=1)
            admin.create_group(SubscriptionGroup("poppers"))
        asyncio.run(test())
