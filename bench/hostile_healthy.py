"""Healthy clients of the servers that get garbage: one by remoting, one by gRPC."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import grpc

from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.sending.producer import Producer
from kourou.model.message import Message
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import methods
from kourou.proxy.times import duration, timestamp
from kourou.testing.process import Serving

TOPIC: Final = "healthy"
BODY: Final = bytes(1024)
_GROUP: Final = "healthy-readers"
_PATIENT: Final = ProducerConfig(send_timeout_ms=60_000)
"""Long timeout, so that slow requests count as latency and not as failures."""
_PATIENCE_S: Final = 60.0
_METADATA: Final = (("x-mq-client-id", "healthy@1"), ("x-mq-language", "PYTHON"))
_TOPIC: Final = v2.Resource(name=TOPIC)
_READERS: Final = v2.Resource(name=_GROUP)
_EVERY: Final = v2.FilterExpression(type=v2.FilterType.TAG, expression="*")
_RECEIVE: Final = v2.ReceiveMessageRequest(
    group=_READERS,
    message_queue=v2.MessageQueue(topic=_TOPIC, id=-1),
    filter_expression=_EVERY,
    batch_size=1,
    invisible_duration=duration(60_000),
    long_polling_timeout=duration(20_000),
)


class Healthy(Protocol):
    """A client with valid requests."""

    async def exchange(self) -> tuple[float, float]:
        """Send a message and read it; return the seconds of both."""


class _Puller:
    """Sends and pulls by remoting."""

    def __init__(self, producer: Producer, consumer: PullConsumer) -> None:
        self._producer = producer
        self._consumer = consumer

    async def exchange(self) -> tuple[float, float]:
        """Send a message, and pull it."""
        began_s = time.perf_counter()  # the loop's clock has a resolution of milliseconds
        receipt = await self._producer.send(Message(TOPIC, BODY))
        sent_s = time.perf_counter()
        pulled = await self._consumer.pull(receipt.queue, receipt.queue_offset)
        read_s = time.perf_counter() - sent_s
        assert pulled.messages[0].msg_id == receipt.msg_id, "another message is at the offset"
        return sent_s - began_s, read_s


@asynccontextmanager
async def remoting_client(serving: Serving) -> AsyncIterator[Healthy]:
    """Run a client of the remoting port."""
    async with (
        Producer("healthy-producers", serving.namesrv, config=_PATIENT) as producer,
        PullConsumer(_GROUP, serving.namesrv) as consumer,
    ):
        yield _Puller(producer, consumer)


class _Caller:
    """Sends, receives and acknowledges by gRPC's own library."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._methods: dict[str, Any] = {}
        for method in methods("apache.rocketmq.v2.MessagingService"):
            kind = "stream" if method.streams_requests else "unary"
            kind += "_stream" if method.streams_responses else "_unary"
            self._methods[method.path.rpartition("/")[2]] = getattr(channel, kind)(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        self._sent = 0

    async def settle(self) -> Any:  # noqa: ANN401 - grpcio has no types
        """Open the Telemetry stream of a consumer; return it."""
        entry = v2.SubscriptionEntry(topic=_TOPIC, expression=_EVERY)
        subscription = v2.Subscription(group=_READERS, subscriptions=[entry])
        stream = self._methods["Telemetry"](metadata=_METADATA)
        await stream.write(
            v2.TelemetryCommand(
                settings=v2.Settings(
                    client_type=v2.ClientType.SIMPLE_CONSUMER, subscription=subscription
                )
            )
        )
        answer = await stream.read()
        assert answer.status.code == v2.Code.OK, answer
        return stream

    async def exchange(self) -> tuple[float, float]:
        """Send a message; receive and acknowledge it."""
        began_s = time.perf_counter()
        sent = await self._call("SendMessage", self._next_send())
        sent_s = time.perf_counter()
        assert sent.status.code == v2.Code.OK, sent
        found: list[Any] = []
        while not found:
            answers = self._call("ReceiveMessage", _RECEIVE)
            found = [answer.message async for answer in answers if answer.HasField("message")]
        (properties,) = (message.system_properties for message in found)
        entry = v2.AckMessageEntry(
            message_id=properties.message_id, receipt_handle=properties.receipt_handle
        )
        acked = await self._call(
            "AckMessage", v2.AckMessageRequest(group=_READERS, topic=_TOPIC, entries=[entry])
        )
        read_s = time.perf_counter() - sent_s
        assert acked.status.code == v2.Code.OK, acked
        assert entry.message_id == sent.entries[0].message_id, "another message was received"
        return sent_s - began_s, read_s

    def _call(self, rpc: str, message: Any) -> Any:  # noqa: ANN401 - as above
        return self._methods[rpc](message, timeout=_PATIENCE_S, metadata=_METADATA)

    def _next_send(self) -> Any:  # noqa: ANN401 - as above
        self._sent += 1
        properties = v2.SystemProperties(
            message_id=f"{self._sent:034d}",
            born_timestamp=timestamp(int(time.time() * 1000)),
            born_host="healthy",
        )
        message = v2.Message(topic=_TOPIC, system_properties=properties, body=BODY)
        return v2.SendMessageRequest(messages=[message])


@asynccontextmanager
async def grpc_client(serving: Serving, topics: Mapping[str, str]) -> AsyncIterator[Healthy]:
    """Run a client of the gRPC port.

    Args:
        serving: the server.
        topics: topics to create beside that of the client, and their types.
    """
    async with AdminClient(serving.namesrv) as admin:
        for topic, kind in {TOPIC: "NORMAL", **topics}.items():
            await admin.create_topic(topic, queues=1, attributes={"message.type": kind})
    async with grpc.aio.insecure_channel(serving.grpc, [("grpc.enable_http_proxy", 0)]) as channel:
        caller = _Caller(channel)
        stream = await caller.settle()
        yield caller
        stream.cancel()
