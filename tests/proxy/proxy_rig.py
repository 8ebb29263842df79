"""A name server, a broker and the proxy in one virtual-time loop, and clients of the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Any, Final

from kourou import AdminClient
from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker
from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.clock import Clock
from kourou.http2.frames import WINDOW_BYTES_MAX
from kourou.model.group import SubscriptionGroup
from kourou.model.host import Host
from kourou.model.topic import TopicConfig
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.proxy.cluster import Cluster, LocalBroker, Metadata
from kourou.proxy.local_metadata import LocalMetadata
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType
from kourou.proxy.received_writes import WriteLimits
from kourou.proxy.server import Proxy
from kourou.proxy.times import duration, timestamp
from kourou.remoting.network import Address
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime
from tests.proxy.grpc_client import ClientCall, GrpcClient

PROXY: Final[Address] = ("127.0.0.1", 18081)
_NAMESRV: Final[Address] = ("127.0.0.1", 19876)
_MIB: Final = 1024 * 1024
TOPIC: Final = "Orders"
GROUP: Final = "billing"
LONG_POLL_S: Final = 5
RECEIVE_S: Final = 9.0


class Mode(Enum):
    """Modes of the proxy."""

    LOCAL = "local"
    CLUSTER = "cluster"


MODE: ContextVar[Mode] = ContextVar("MODE", default=Mode.LOCAL)
"""The mode of a rig that is not asked for another; see the fixture `each_mode`."""


class Rig:
    """The servers, running.

    Attributes:
        broker, proxy: the servers.
        network: that of all clients.
    """

    def __init__(
        self, broker: Broker, proxy: Proxy, runtime: Runtime, network: MemoryNetwork
    ) -> None:
        self.broker = broker
        self.proxy = proxy
        self.network = network
        self._runtime = runtime
        self._clients: list[GrpcClient] = []

    def now_ms(self) -> int:
        """Return the epoch milliseconds of all members."""
        return self._runtime.clock.now_ms()

    async def create(
        self, *topics: TopicConfig, groups: tuple[SubscriptionGroup, ...] = ()
    ) -> None:
        """Create topics and groups, known to the name server on return."""
        context = self.broker.components.context
        for topic in topics:
            context.topics.put(topic)
        for group in groups:
            context.groups.put(group)
        await context.topics.persist_and_announce()

    async def connect(
        self, client_id: str, window: int = WINDOW_BYTES_MAX, version: str = ""
    ) -> TestClient:
        """Return a connected client without settings, which reads `window` bytes of each call."""
        fields = {"x-mq-client-id": client_id, "x-mq-language": "PYTHON"}
        fields["x-mq-client-version"] = version
        client = await GrpcClient.connect(self.network, PROXY, fields, window)
        self._clients.append(client)
        return TestClient(self, client)

    async def producer(self, *topics: str, client_id: str = "producer@1") -> TestClient:
        """Return a producer whose settings the proxy has answered."""
        client = await self.connect(client_id)
        await client.settle(producer_settings(*topics or (TOPIC,)))
        return client

    async def consumer(
        self,
        *topics: str,
        group: str = GROUP,
        client_id: str = "consumer@1",
        kind: ClientType = ClientType.PUSH_CONSUMER,
        window: int = WINDOW_BYTES_MAX,
        version: str = "",
    ) -> TestClient:
        """Return a consumer whose settings the proxy has answered."""
        client = await self.connect(client_id, window, version)
        client.group = group
        await client.settle(consumer_settings(kind, group, *topics or (TOPIC,)))
        return client

    def admin(self) -> AdminClient:
        """Return an administrator of the broker."""
        return AdminClient(f"{_NAMESRV[0]}:{_NAMESRV[1]}", runtime=self._runtime)

    def registered(self, group: str) -> list[str]:
        """Return the ids of the members of a consumer group at the broker."""
        members = self.broker.components.context.clients.consumer_group(group)
        return [] if members is None else members.client_ids()

    def disconnect(self) -> None:
        """Close the connections of the clients."""
        for client in self._clients:
            client.close()
        self._clients.clear()

    async def close(self) -> None:
        """Close the connections of the clients, then the proxy."""
        self.disconnect()
        await self.proxy.stop()


def producer_settings(*topics: str) -> Any:
    """Return the settings of a producer."""
    names = [v2.Resource(name=topic) for topic in topics]
    return v2.Settings(client_type=ClientType.PRODUCER, publishing=v2.Publishing(topics=names))


def consumer_settings(kind: ClientType, group: str, *topics: str) -> Any:
    """Return the settings of a consumer of all messages."""
    every = v2.FilterExpression(type=v2.FilterType.TAG, expression="*")
    entries = [
        v2.SubscriptionEntry(topic=v2.Resource(name=topic), expression=every) for topic in topics
    ]
    subscription = v2.Subscription(group=v2.Resource(name=group), subscriptions=entries)
    return v2.Settings(client_type=kind, subscription=subscription)


class TestClient:
    """A client of the proxy, with short forms of the calls.

    Attributes:
        grpc: its connection.
        stream: its Telemetry call; None before the settings.
        settings: as the proxy answered them.
        group: of a consumer.
    """

    __test__ = False  # pytest collects classes of this name

    def __init__(self, clock: Clock, grpc: GrpcClient) -> None:
        self._clock = clock
        self.grpc = grpc
        self.stream: ClientCall | None = None
        self.settings: Any = None
        self.group = ""
        self._sent = 0

    async def settle(self, settings: Any) -> None:
        """Open the Telemetry stream, send settings and wait for the answer."""
        self.stream = self.grpc.open("Telemetry", None)
        self.stream.send(v2.TelemetryCommand(settings=settings))
        answer = await self.stream.next()
        assert answer is not None, f"{self.stream.status!r} {self.stream.text}"
        assert answer.status.code == v2.Code.OK, answer
        self.settings = answer.settings

    async def send(self, body: bytes = b"hello", topic: str = TOPIC, **system: Any) -> Any:
        """Send one message; return the entry of the answer, which must be OK."""
        answer = await self.try_send(body, topic, **system)
        assert answer.status.code == v2.Code.OK, answer
        return answer.entries[0]

    async def try_send(self, body: bytes = b"hello", topic: str = TOPIC, **system: Any) -> Any:
        """Send one message; return the answer."""
        self._sent += 1
        properties = system.pop("user_properties", {})
        system.setdefault("message_id", f"{self._sent:034d}")
        message = v2.Message(
            topic=v2.Resource(name=topic),
            user_properties=properties,
            system_properties=v2.SystemProperties(
                born_timestamp=timestamp(self._clock.now_ms()), born_host="test", **system
            ),
            body=body,
        )
        return await self.grpc.call("SendMessage", v2.SendMessageRequest(messages=[message]))

    def receiving(self, topic: str = TOPIC, **terms: Any) -> ClientCall:
        """Begin a receive with auto renewal, unless `terms` has an invisible duration in ms."""
        invisible_ms = terms.pop("invisible_ms", None)
        expression = terms.pop("expression", "*")
        kind = terms.pop("filter_type", v2.FilterType.TAG)
        broker = terms.pop("broker", "broker-a")
        if invisible_ms is not None:
            terms["invisible_duration"] = duration(invisible_ms)
        asked = v2.ReceiveMessageRequest(
            group=v2.Resource(name=self.group),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name=topic), id=-1, broker=v2.Broker(name=broker)
            ),
            filter_expression=v2.FilterExpression(type=kind, expression=expression),
            auto_renew=invisible_ms is None,
            long_polling_timeout=duration(LONG_POLL_S * 1000),
            **{"batch_size": 32, **terms},
        )
        call = self.grpc.open("ReceiveMessage", RECEIVE_S)
        call.send(asked, ends=True)
        return call

    async def receive(self, topic: str = TOPIC, **terms: Any) -> list[Any]:
        """Return received messages; an empty list after a poll without any."""
        status, messages = await self.try_receive(topic, **terms)
        assert status.code in (v2.Code.OK, v2.Code.MESSAGE_NOT_FOUND), status
        return messages

    async def try_receive(self, topic: str = TOPIC, **terms: Any) -> tuple[Any, list[Any]]:
        """Return the status of a receive, and its messages."""
        answers = await self.receiving(topic, **terms).rest()
        assert answers[-1].HasField("delivery_timestamp")
        return answers[0].status, [answer.message for answer in answers[1:-1]]

    async def ack(self, *messages: Any, topic: str = TOPIC) -> list[int]:
        """Acknowledge messages; return the codes of the entries."""
        entries = [
            v2.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        asked = v2.AckMessageRequest(
            group=v2.Resource(name=self.group), topic=v2.Resource(name=topic), entries=entries
        )
        answer = await self.grpc.call("AckMessage", asked)
        return [entry.status.code for entry in answer.entries]

    async def change_invisible(
        self,
        message: Any,
        invisible_ms: int,
        handle: str | None = None,
    ) -> Any:
        """Return the answer to a change of a message's invisible duration."""
        properties = message.system_properties
        asked = v2.ChangeInvisibleDurationRequest(
            group=v2.Resource(name=self.group),
            topic=message.topic,
            message_id=properties.message_id,
            receipt_handle=properties.receipt_handle if handle is None else handle,
            invisible_duration=duration(invisible_ms),
        )
        return await self.grpc.call("ChangeInvisibleDuration", asked)

    async def heartbeat(self, kind: ClientType) -> Any:
        """Return the status of a heartbeat."""
        asked = v2.HeartbeatRequest(group=v2.Resource(name=self.group), client_type=kind)
        return (await self.grpc.call("Heartbeat", asked)).status


async def nothing_received(
    consumer: TestClient, times: int, receiver: TestClient | None = None
) -> None:
    """Receive nothing, 5 seconds each time, while a consumer sends heartbeats.

    Args:
        consumer: sends them.
        times: how often.
        receiver: another consumer that receives; None: the same one.
    """
    for _ in range(times):
        await consumer.heartbeat(ClientType.PUSH_CONSUMER)
        assert await (receiver or consumer).receive() == []


@asynccontextmanager
async def proxy_rig(
    *,
    epoch_ms: int = EPOCH_MS,
    advertised: Host | None = None,
    metadata: Metadata | None = None,
    mode: Mode | None = None,
    write_limits: WriteLimits | None = None,
    **options: Any,
) -> AsyncIterator[Rig]:
    """Run the servers.

    Args:
        epoch_ms: time of the start.
        advertised: of the proxy.
        metadata: of the proxy; None: that of its mode.
        mode: of the proxy; None: `MODE`.
        write_limits: of the proxy; None: the defaults.
        options: of the broker.
    """
    network = MemoryNetwork(0)
    runtime = sim_runtime(0, network, epoch_ms)
    namesrv = NameServer(NamesrvConfig(listen=_NAMESRV[0], port=_NAMESRV[1]), runtime)
    await namesrv.start()
    config = BrokerConfig(
        namesrv_addr=(f"{_NAMESRV[0]}:{_NAMESRV[1]}",),
        enable_property_filter=True,
        transactions=TransactionConfig(timeout_ms=6_000, check_interval_ms=3_000),
        store=StoreConfig(commitlog_segment_bytes=16 * _MIB),
        **options,
    )
    loop = asyncio.get_running_loop()
    broker = Broker(config, SimDisk(0), runtime, lambda _: SimFlusher(loop, 0))
    await broker.start()
    local: dict[Address, LocalBroker] | None = None
    if (mode or MODE.get()) is Mode.LOCAL:
        context = broker.components.context
        metadata = metadata or LocalMetadata(context.topics, context.groups)
        local = {broker.address: broker}
    cluster = Cluster(runtime, config.namesrv_addr, metadata, local)
    proxy = Proxy(network, cluster, advertised=advertised, write_limits=write_limits)
    await proxy.start(PROXY)
    rig = Rig(broker, proxy, runtime, network)
    try:
        yield rig
    finally:
        await rig.close()
        await broker.stop()
        await namesrv.stop()


def with_rig(test: Callable[[Rig], Awaitable[None]], **terms: Any) -> None:
    """Run a test with a rig that has the topic TOPIC."""

    async def main() -> None:
        async with proxy_rig(**terms) as rig:
            await rig.create(TopicConfig(TOPIC, 1, 1))
            await test(rig)

    run_virtual(main())
