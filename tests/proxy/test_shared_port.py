"""Two proxies on one port: calls that reach the process without the client's settings."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from kourou.clock import SystemClock
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType, Code, MessageType, TransactionResolution
from kourou.remoting.network import TcpNetwork, parse_address
from kourou.testing.process import Serving, run_command
from tests.proxy.grpc_client import GrpcClient
from tests.proxy.proxy_rig import TestClient, consumer_settings, producer_settings

pytestmark = pytest.mark.slow

SIMPLE = ClientType.SIMPLE_CONSUMER
CONNECTIONS_MAX: Final = 100
"""Connections to open until each process has one: the system chooses the process by their ports."""
TYPES: Final = {"plain": "NORMAL", "payments": "TRANSACTION", "pushed": "NORMAL"}


class Shared:
    """A broker, and two proxies that share a port.

    Attributes:
        address: of the port.
    """

    def __init__(self, broker: Serving, homes: Path, stack: ExitStack) -> None:
        self._namesrv, self._homes, self._stack = broker.namesrv, homes, stack
        self._connections: list[GrpcClient] = []
        self._proxies = [self._start(0)]
        self.address = self._proxies[0].grpc
        self._proxies.append(self._start(int(self.address.rpartition(":")[2])))

    def _start(self, port: int) -> Serving:
        started = Serving.start_proxy(self._namesrv, self._homes, "--reuse-port", port=port)
        return self._stack.enter_context(started)

    def replace(self, index: int) -> None:
        """Kill one of the proxies, and start another one in its place."""
        self._proxies[index].stop(signal.SIGKILL)
        self._proxies[index] = self._start(int(self.address.rpartition(":")[2]))

    async def connect(self, client_id: str, group: str = "") -> TestClient:
        """Return a client with a connection of its own."""
        metadata = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON"}
        grpc = await GrpcClient.connect(TcpNetwork(), parse_address(self.address), metadata)
        self._connections.append(grpc)
        client = TestClient(SystemClock(), grpc)
        client.group = group
        return client

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        """Run a test, and close its connections."""

        async def main() -> None:
            try:
                async with asyncio.timeout(60):
                    await test()
            finally:
                for connection in self._connections:
                    connection.close()
                self._connections.clear()
                await asyncio.sleep(0.1)  # the transports end

        asyncio.run(main())

    async def elsewhere(self, client: TestClient, kind: ClientType) -> TestClient:
        """Return a second connection of a client, to the process without its settings."""
        client_id = client.grpc.metadata["x-mq-client-id"]
        for _ in range(CONNECTIONS_MAX):
            other = await self.connect(client_id, client.group)
            if (await other.heartbeat(kind)).code == Code.UNRECOGNIZED_CLIENT_TYPE:
                return other
        raise AssertionError(f"{CONNECTIONS_MAX} connections reached one process")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    config = tmp_path_factory.mktemp("config") / "broker.conf"
    config.write_text("transactionTimeOut=3000\ntransactionCheckInterval=1000\n")
    with ExitStack() as stack:
        store = tmp_path_factory.mktemp("store")
        started = Serving.start(store, "--no-console", "--config", str(config))
        broker = stack.enter_context(started)
        for topic, kind in TYPES.items():
            attribute = ("--attribute", f"message.type={kind}")
            created = run_command("topic", "create", topic, *attribute, "--namesrv", broker.namesrv)
            assert created.code == 0, created.err
        yield Shared(broker, tmp_path_factory.mktemp("homes"), stack)


def test_heartbeat_at_the_other_process_asks_for_settings(shared: Shared) -> None:
    async def test() -> None:
        settings = producer_settings("plain")
        client = await shared.connect("producer@heartbeat")
        await client.settle(settings)
        other = await shared.elsewhere(client, ClientType.PRODUCER)  # 40015
        await other.settle(settings)
        assert (await other.heartbeat(ClientType.PRODUCER)).code == Code.OK

    shared.run(test)


def test_receive_at_the_other_process_is_answered_until_settings_come(shared: Shared) -> None:
    async def test() -> None:
        settings = consumer_settings(SIMPLE, "receivers", "plain")
        client = await shared.connect("consumer@receive", "receivers")
        await client.settle(settings)
        await client.receive("plain", invisible_ms=10_000)  # the group begins here
        other = await shared.elsewhere(client, SIMPLE)
        async with asyncio.timeout(3):
            status, found = await other.try_receive("plain", invisible_ms=10_000)
        assert (status.code, found) == (Code.INTERNAL_SERVER_ERROR, [])
        await other.settle(settings)
        await client.send(b"1", "plain", message_id="RECEIVE")
        assert [one.body for one in await other.receive("plain", invisible_ms=10_000)] == [b"1"]

    shared.run(test)


def test_message_is_acknowledged_at_the_other_process(shared: Shared) -> None:
    async def test() -> None:
        client = await shared.connect("consumer@ack", "ackers")
        await client.settle(consumer_settings(SIMPLE, "ackers", "plain"))
        await client.receive("plain", invisible_ms=10_000)
        await client.send(b"1", "plain", message_id="ACK")
        messages = await client.receive("plain", invisible_ms=10_000)
        other = await shared.elsewhere(client, SIMPLE)
        assert await other.ack(*messages, topic="plain") == [Code.OK]

    shared.run(test)


def test_transaction_ended_at_the_other_process_is_checked_and_not_lost(shared: Shared) -> None:
    async def end(client: TestClient, message_id: str, transaction_id: str, **terms: Any) -> int:
        asked = v2.EndTransactionRequest(
            topic=v2.Resource(name="payments"),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=TransactionResolution.COMMIT,
            **terms,
        )
        code: int = (await client.grpc.call("EndTransaction", asked)).status.code
        return code

    async def test() -> None:
        consumer = await shared.connect("consumer@transaction", "payees")
        await consumer.settle(consumer_settings(SIMPLE, "payees", "payments"))
        await consumer.receive("payments", invisible_ms=10_000)
        producer = await shared.connect("producer@transaction")
        await producer.settle(producer_settings("payments"))
        other = await shared.elsewhere(producer, ClientType.PRODUCER)
        entry = await producer.send(
            b"pay", "payments", message_type=MessageType.TRANSACTION, message_id="TRANSACTION"
        )
        code = await end(other, entry.message_id, entry.transaction_id)
        assert code == Code.INTERNAL_SERVER_ERROR
        assert producer.stream is not None
        command = (await producer.stream.next()).recover_orphaned_transaction_command
        assert command.message.body == b"pay"
        source = v2.TransactionSource.SOURCE_SERVER_CHECK
        code = await end(producer, entry.message_id, command.transaction_id, source=source)
        assert code == Code.OK
        found: list[Any] = []
        while not found:
            found = await consumer.receive("payments", invisible_ms=10_000)
        assert [one.body for one in found] == [b"pay"]

    shared.run(test)


PROGRAM = """
import sys, threading, time
from rocketmq import (
    ClientConfiguration, ConsumeResult, Credentials, FilterExpression, Message, MessageListener,
    Producer, PushConsumer,
)
from rocketmq.v5.client import client_telemetry_manager

# The SDK finds its stream closed, and resends its settings, each 5 minutes: here each 2 s.
Scheduler = client_telemetry_manager.ClientScheduler
client_telemetry_manager.ClientScheduler = lambda name, target, first_s, _, loop: Scheduler(
    name, target, first_s, 2, loop
)
configuration = ClientConfiguration("localhost:8081", Credentials())
bodies, changed = set(), threading.Condition()

class Listener(MessageListener):
    def consume(self, message):
        with changed:
            bodies.add(message.body.decode())
            changed.notify()
        return ConsumeResult.SUCCESS

producer = Producer(configuration, ("pushed",))
producer.startup()
consumer = PushConsumer(configuration, "pushers", Listener(), {"pushed": FilterExpression("*")})
consumer.startup()
numbers = iter(range(1000))

def send():
    message = Message()
    message.topic, message.body = "pushed", b"%d" % next(numbers)
    for attempt in range(60):
        try:
            producer.send(message)
            break
        except Exception:
            time.sleep(0.5)
    else:
        raise SystemExit("no send succeeded")
    return message.body.decode()

def received(body):
    with changed:
        return changed.wait_for(lambda: body in bodies, timeout=60)

while not received(send()):  # the group begins at the end of the queues
    pass
print("ready", flush=True)
for line in sys.stdin:
    print(received(send()), flush=True)
consumer.shutdown()
producer.shutdown()
"""


def test_official_client_survives_the_death_of_either_process(
    shared: Shared, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("localhost:8081", shared.address)],
        env={**os.environ, "HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for index in (0, 1):
            shared.replace(index)
            process.stdin.write("next\n")
            process.stdin.flush()
            assert process.stdout.readline() == "True\n"
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
