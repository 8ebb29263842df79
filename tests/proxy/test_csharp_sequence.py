"""The calls of the official C# client, in its order, with its fields and its headers.

Source: Client.cs, Session.cs, ClientManager.cs, RpcClient.cs, Signature.cs, Producer.cs,
PublishingSettings.cs, SimpleConsumer.cs, PushConsumer.cs, MessageView.cs, StatusChecker.cs,
apache/rocketmq-clients (C# 5.2.1); GrpcProtocolHelpers.cs, grpc/grpc-dotnet.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import pytest

from kourou.auth.signature import date_time_signature
from kourou.http2 import frames
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import (
    ClientType,
    Code,
    DigestType,
    Encoding,
    FilterType,
    MessageType,
    Permission,
    TransactionResolution,
)
from kourou.proxy.times import duration, timestamp
from tests.proxy.grpc_client import ClientCall, GrpcClient
from tests.proxy.proxy_rig import GROUP, PROXY, Rig, with_rig

pytestmark = pytest.mark.usefixtures("each_mode")

REQUEST_S: Final = 3
POLL_S: Final = 15
TELEMETRY_TIMEOUT: Final = "99999999S"
"""Of the ten years that the client asks for, the most that eight digits hold."""
ENDPOINTS: Final = v2.Endpoints(
    scheme=v2.AddressScheme.IPv4, addresses=[v2.Address(host=PROXY[0], port=PROXY[1])]
)
AGENT: Final = v2.UA(version="5.2.1+da8271b5", platform="Unix 6.1.0.0", hostname="host")
"""The client names no language there."""
TOPICS: Final = {
    "normal": MessageType.NORMAL,
    "fifo": MessageType.FIFO,
    "delay": MessageType.DELAY,
    "priority": MessageType.PRIORITY,
    "transaction": MessageType.TRANSACTION,
}
EVERY: Final = v2.FilterExpression(type=FilterType.TAG, expression="*")
_ids = itertools.count(1)


class CsharpClient:
    """A client of the C# SDK.

    Attributes:
        settings: those that the proxy answered last.
        queues: of each topic, from its route.
    """

    def __init__(self, rig: Rig, grpc: GrpcClient, settings: v2.Settings, namespace: str) -> None:
        self._rig, self._grpc, self._own_settings = rig, grpc, settings
        self._client_id = f"host@1@{next(_ids)}@MQ0"
        self._namespace = namespace
        self._stream: ClientCall | None = None
        self.settings = v2.Settings()
        self.queues: dict[str, list[v2.MessageQueue]] = {}

    @classmethod
    async def start(
        cls, rig: Rig, settings: v2.Settings, topics: Sequence[str], namespace: str = ""
    ) -> Self:
        """Query the routes; the first one opens the session. Its settings follow again in 1 s."""
        grpc = await GrpcClient.connect(rig.network, PROXY)
        client = cls(rig, grpc, settings, namespace)
        for topic in topics:
            await client._fetch_route(topic)
        await asyncio.sleep(1)
        await client.heartbeat()
        await client.sync_settings()
        return client

    def _fields(self, timeout: str) -> dict[str, str]:
        date_time = "20261128T032116Z"
        signature = date_time_signature(date_time, "secret").hex().upper()
        return {
            "user-agent": "grpc-dotnet/2.80.0 (.NET 8.0.20; CLR 8.0.20; net8.0; linux; x64)",
            "grpc-timeout": timeout,
            "grpc-accept-encoding": "identity,gzip,deflate",
            "x-mq-language": "DOTNET",
            "x-mq-client-version": AGENT.version,
            "x-mq-request-id": "6f1c0a3e-1c9f-4c55-9d6f-0d3b3b0f3b11",
            "x-mq-client-id": self._client_id,
            "x-mq-namespace": self._namespace,
            "x-mq-date-time": date_time,
            "authorization": "MQv2-HMAC-SHA1 Credential=user, SignedHeaders=x-mq-date-time, "
            f"Signature={signature}",
        }

    async def call(self, rpc: str, asked: Any) -> Any:
        """Return the answer of a unary call, which must be OK."""
        call = self._grpc.open(rpc, None, self._fields(f"{REQUEST_S}S"))
        call.send(asked, ends=True)
        [answer] = await call.rest()
        assert answer.status.code == Code.OK, answer
        return answer

    def resource(self, name: str) -> v2.Resource:
        return v2.Resource(resource_namespace=self._namespace, name=name)

    async def _fetch_route(self, topic: str) -> None:
        asked = v2.QueryRouteRequest(topic=self.resource(topic), endpoints=ENDPOINTS)
        queues = list((await self.call("QueryRoute", asked)).message_queues)
        assert queues
        assert all(one.broker.endpoints == ENDPOINTS for one in queues)  # one session for all
        if self._stream is None:
            self._stream = self._grpc.open("Telemetry", None, self._fields(TELEMETRY_TIMEOUT))
            await self.sync_settings()
        self.queues[topic] = queues

    async def sync_settings(self) -> None:
        assert self._stream is not None
        self._stream.send(v2.TelemetryCommand(settings=self._own_settings))
        command = await self.next_command()
        assert command.HasField("settings"), command
        self.settings = command.settings

    async def next_command(self) -> Any:
        assert self._stream is not None
        command = await self._stream.next()
        assert command is not None, (self._stream.status, self._stream.text)
        return command

    async def heartbeat(self) -> None:
        """Send what `prepare` of each kind of client says: producers name no group."""
        asked = v2.HeartbeatRequest(client_type=self._own_settings.client_type)
        if self._group:
            asked.group.CopyFrom(self.resource(self._group))
        await self.call("Heartbeat", asked)

    @property
    def _group(self) -> str:
        return str(self._own_settings.subscription.group.name)

    def writable(self, topic: str) -> v2.MessageQueue:
        """Return a queue as the client chooses one: it checks the type of the message first."""
        assert self.settings.publishing.validate_message_type
        queues = [
            one
            for one in self.queues[topic]
            if one.permission == Permission.READ_WRITE and one.broker.id == 0
        ]
        assert all(TOPICS[topic] in one.accept_message_types for one in queues)
        return queues[0]

    async def send(self, topic: str, body: bytes, **system: Any) -> Any:
        """Send one message; return the entry of the answer."""
        message = v2.Message(
            topic=self.resource(topic),
            user_properties={"a": "b"},
            system_properties=v2.SystemProperties(
                keys=["key"],
                message_id=f"01{next(_ids):032X}",
                born_timestamp=timestamp(self._rig.now_ms()),
                born_host="host",
                body_encoding=Encoding.IDENTITY,
                queue_id=self.writable(topic).id,
                message_type=TOPICS[topic],
                **system,
            ),
            body=body,
        )
        answer = await self.call("SendMessage", v2.SendMessageRequest(messages=[message]))
        [entry] = answer.entries
        assert entry.status.code == Code.OK
        assert entry.message_id == message.system_properties.message_id
        return entry

    async def commit(self, message_id: str, transaction_id: str) -> None:
        """Commit a transaction; the client names no source, neither after a check."""
        await self.call(
            "EndTransaction",
            v2.EndTransactionRequest(
                topic=self.resource("transaction"),
                message_id=message_id,
                transaction_id=transaction_id,
                resolution=TransactionResolution.COMMIT,
            ),
        )

    async def receive(
        self, queue: v2.MessageQueue, poll_s: int, **terms: Any
    ) -> tuple[int, list[Any]]:
        """Return the code of a receive, and the messages."""
        asked = v2.ReceiveMessageRequest(
            group=self.resource(self._group),
            message_queue=queue,
            filter_expression=EVERY,
            long_polling_timeout=duration(poll_s * 1000),
            **terms,
        )
        call = self._grpc.open("ReceiveMessage", None, self._fields(f"{poll_s + REQUEST_S}S"))
        call.send(asked, ends=True)
        answers = await call.rest()
        messages = [one.message for one in answers if one.HasField("message")]
        for message in messages:
            check_readable(message)
        [code] = [one.status.code for one in answers if one.HasField("status")]
        return code, messages

    async def assignments(self, topic: str) -> list[v2.MessageQueue]:
        asked = v2.QueryAssignmentRequest(
            topic=self.resource(topic), group=self.resource(self._group), endpoints=ENDPOINTS
        )
        found = [
            one.message_queue for one in (await self.call("QueryAssignment", asked)).assignments
        ]
        assert all(one.broker.endpoints == ENDPOINTS for one in found)
        return found

    async def pushed(self, queue: v2.MessageQueue) -> tuple[int, list[Any]]:
        """Receive as a push consumer does, by the answered settings."""
        subscription = self.settings.subscription
        assert self.settings.backoff_policy.WhichOneof("strategy")  # else the client throws
        assert subscription.receive_batch_size > 0
        assert subscription.long_polling_timeout.seconds > 0
        return await self.receive(
            queue,
            subscription.long_polling_timeout.seconds,
            batch_size=subscription.receive_batch_size,
            auto_renew=True,
            attempt_id=f"attempt-{next(_ids)}",
        )

    async def ack(self, message: v2.Message) -> None:
        entry = v2.AckMessageEntry(
            message_id=message.system_properties.message_id,
            receipt_handle=message.system_properties.receipt_handle,
        )
        group, topic = self.resource(self._group), self.resource(message.topic.name)
        await self.call(
            "AckMessage", v2.AckMessageRequest(group=group, topic=topic, entries=[entry])
        )

    async def hide(self, message: v2.Message, invisible_ms: int) -> str:
        """Change the invisible time of a message; return its new receipt handle."""
        asked = v2.ChangeInvisibleDurationRequest(
            group=self.resource(self._group),
            topic=self.resource(message.topic.name),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            invisible_duration=duration(invisible_ms),
        )
        return str((await self.call("ChangeInvisibleDuration", asked)).receipt_handle)

    async def make_dead_letter(self, message: v2.Message) -> None:
        asked = v2.ForwardMessageToDeadLetterQueueRequest(
            group=self.resource(self._group),
            topic=self.resource(message.topic.name),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            delivery_attempt=message.system_properties.delivery_attempt,
            max_delivery_attempts=self.settings.backoff_policy.max_attempts,
        )
        await self.call("ForwardMessageToDeadLetterQueue", asked)

    async def shutdown(self) -> None:
        """Say that the client ends, then close the connection with the stream open."""
        asked = v2.NotifyClientTerminationRequest()
        if self._group:
            asked.group.CopyFrom(self.resource(self._group))
        await self.call("NotifyClientTermination", asked)
        self._grpc.write(frames.goaway_frame(0, frames.ErrorCode.NO_ERROR))
        self._grpc.close()


def check_readable(message: v2.Message) -> None:
    """Check what the client reads; it fails on a missing time, and on a digest in lower case."""
    system = message.system_properties
    digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    assert system.body_digest == v2.Digest(type=DigestType.MD5, checksum=digest)
    assert system.body_encoding == Encoding.IDENTITY
    assert system.HasField("born_timestamp")
    assert message.user_properties["a"] == "b"
    assert list(system.keys) == ["key"]


def producer_settings(namespace: str = "") -> v2.Settings:
    immediately = v2.ExponentialBackoff(initial=duration(0), max=duration(0), multiplier=1)
    topics = [v2.Resource(resource_namespace=namespace, name=topic) for topic in TOPICS]
    return v2.Settings(
        client_type=ClientType.PRODUCER,
        access_point=ENDPOINTS,
        request_timeout=duration(REQUEST_S * 1000),
        backoff_policy=v2.RetryPolicy(max_attempts=3, exponential_backoff=immediately),
        publishing=v2.Publishing(topics=topics, validate_message_type=True),
        user_agent=AGENT,
    )


def consumer_settings(kind: ClientType, topic: str, namespace: str = "") -> v2.Settings:
    name = v2.Resource(resource_namespace=namespace, name=topic)
    subscription = v2.Subscription(
        group=v2.Resource(resource_namespace=namespace, name=GROUP),
        subscriptions=[v2.SubscriptionEntry(topic=name, expression=EVERY)],
    )
    if kind == ClientType.SIMPLE_CONSUMER:
        subscription.long_polling_timeout.CopyFrom(duration(POLL_S * 1000))
    return v2.Settings(
        client_type=kind,
        access_point=ENDPOINTS,
        request_timeout=duration(REQUEST_S * 1000),
        subscription=subscription,
        user_agent=AGENT,
    )


@asynccontextmanager
async def producing(rig: Rig, namespace: str = "") -> AsyncIterator[CsharpClient]:
    """Create the topics, and run a producer of all."""
    await rig.create(
        *(
            TopicConfig(topic, 2, 2, attributes={"message.type": kind.name})
            for topic, kind in TOPICS.items()
        )
    )
    client = await CsharpClient.start(rig, producer_settings(namespace), list(TOPICS), namespace)
    yield client
    await client.shutdown()


@asynccontextmanager
async def consuming(
    rig: Rig, kind: ClientType, topic: str, namespace: str = ""
) -> AsyncIterator[CsharpClient]:
    settings = consumer_settings(kind, topic, namespace)
    client = await CsharpClient.start(rig, settings, [topic], namespace)
    assert len(rig.registered(GROUP)) == 1
    yield client
    await client.shutdown()
    assert rig.registered(GROUP) == []


def test_producer_sends_all_types() -> None:
    async def test(rig: Rig) -> None:
        async with producing(rig) as client:
            # The client accepts this strategy only, and fails without one of the fields.
            backoff = client.settings.backoff_policy.exponential_backoff
            assert client.settings.backoff_policy.HasField("exponential_backoff")
            assert backoff.HasField("initial")
            assert backoff.HasField("max")
            assert client.settings.publishing.max_body_size == 4 * 1024 * 1024
            assert not client.settings.metric.on

            await client.send("normal", b"one", tag="tag")
            await client.send("fifo", b"one", message_group="group")
            await client.send("priority", b"one", priority=3)
            later = timestamp(rig.now_ms() + 60_000)
            delayed = await client.send("delay", b"recalled", delivery_timestamp=later)
            asked = v2.RecallMessageRequest(
                topic=client.resource("delay"), recall_handle=delayed.recall_handle
            )
            assert (await client.call("RecallMessage", asked)).message_id == delayed.message_id
            entry = await client.send("transaction", b"committed")
            await client.commit(entry.message_id, entry.transaction_id)

    with_rig(test)


def test_orphaned_transaction_is_committed() -> None:
    async def test(rig: Rig) -> None:
        async with (
            producing(rig) as client,
            consuming(rig, ClientType.PUSH_CONSUMER, "transaction") as consumer,
        ):
            entry = await client.send("transaction", b"orphaned")
            command = (await client.next_command()).recover_orphaned_transaction_command
            check_readable(command.message)
            assert command.message.system_properties.message_id == entry.message_id
            await client.commit(entry.message_id, command.transaction_id)

            [queue] = await consumer.assignments("transaction")
            code, [message] = await consumer.pushed(queue)
            assert (code, message.body) == (Code.OK, b"orphaned")
            await consumer.ack(message)

    with_rig(test)


def test_simple_consumer_receives_hides_and_acknowledges() -> None:
    async def test(rig: Rig) -> None:
        async with (
            producing(rig) as producer,
            consuming(rig, ClientType.SIMPLE_CONSUMER, "normal") as client,
        ):
            await producer.send("normal", b"one")
            queue = client.queues["normal"][0]
            terms = {"batch_size": 16, "auto_renew": False, "invisible_duration": duration(10_000)}

            code, [message] = await client.receive(queue, POLL_S, **terms)

            assert (code, message.body) == (Code.OK, b"one")
            message.system_properties.receipt_handle = await client.hide(message, 20_000)
            await client.ack(message)
            assert await client.receive(queue, POLL_S, **terms) == (Code.MESSAGE_NOT_FOUND, [])

    with_rig(test)


def test_push_consumer_receives_a_failed_message_again() -> None:
    async def test(rig: Rig) -> None:
        async with (
            producing(rig) as producer,
            consuming(rig, ClientType.PUSH_CONSUMER, "normal") as client,
        ):
            await producer.send("normal", b"failing")
            [queue] = await client.assignments("normal")

            _, [failed] = await client.pushed(queue)
            await client.hide(failed, 1_000)
            _, [again] = await client.pushed(queue)

            attempts = [one.system_properties.delivery_attempt for one in (failed, again)]
            assert attempts == [1, 2]
            await client.ack(again)

    with_rig(test)


def test_fifo_consumer_continues_after_a_dead_letter() -> None:
    async def test(rig: Rig) -> None:
        group = SubscriptionGroup(GROUP, consume_message_orderly=True)
        await rig.create(groups=(group,))
        async with (
            producing(rig) as producer,
            consuming(rig, ClientType.PUSH_CONSUMER, "fifo") as client,
        ):
            assert client.settings.subscription.fifo
            assert client.settings.backoff_policy.max_attempts > 0
            for body in (b"failing", b"next"):
                await producer.send("fifo", body, message_group="group")
            queues = await client.assignments("fifo")
            assert [one.id for one in queues] == [0, 1]
            own = producer.writable("fifo").id

            _, messages = await client.pushed(queues[own])
            assert [one.body for one in messages] == [b"failing", b"next"]
            await client.make_dead_letter(messages[0])
            await client.ack(messages[1])
            await producer.send("fifo", b"last", message_group="group")
            _, [last] = await client.pushed(queues[own])
            assert last.body == b"last"
            await client.ack(last)

    with_rig(test)


def test_namespace_is_echoed() -> None:
    async def test(rig: Rig) -> None:
        async with (
            producing(rig, "INSTANCE") as producer,
            consuming(rig, ClientType.PUSH_CONSUMER, "normal", "INSTANCE") as client,
        ):
            topics = producer.settings.publishing.topics
            assert {one.resource_namespace for one in topics} == {"INSTANCE"}
            assert client.settings.subscription.group.resource_namespace == "INSTANCE"
            [queue] = await client.assignments("normal")
            assert queue.topic.resource_namespace == "INSTANCE"
            await producer.send("normal", b"one")
            _, [message] = await client.pushed(queue)
            await client.ack(message)

    with_rig(test)


def test_stream_of_ten_years_stays_open() -> None:
    async def test(rig: Rig) -> None:
        async with consuming(rig, ClientType.PUSH_CONSUMER, "normal") as client:
            for _ in range(3):
                for _ in range(30):
                    await asyncio.sleep(10)
                    await client.heartbeat()
                await client.sync_settings()

    async def with_topic(rig: Rig) -> None:
        await rig.create(TopicConfig("normal", 2, 2))
        await test(rig)

    with_rig(with_topic)
