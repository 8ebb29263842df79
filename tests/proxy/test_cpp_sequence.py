"""The calls of the official C++ client, in its order and with its fields, over the C core of gRPC.

The client itself has no package, so its calls are replayed from its source; grpcio has the same
core and takes the same channel arguments.

Source: ClientImpl.cpp, ClientManagerImpl.cpp, TelemetryBidiReactor.cpp, ProducerImpl.cpp,
SimpleConsumerImpl.cpp, PushConsumerImpl.cpp, ProcessQueueImpl.cpp, Signature.cpp,
apache/rocketmq-clients (C++).
"""

from __future__ import annotations

import hashlib
import itertools
import queue
import ssl
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest

from kourou.auth.signature import date_time_signature
from kourou.blocking import AdminClient
from kourou.clock import SystemClock
from kourou.model.group import SubscriptionGroup
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
from kourou.testing.process import Serving
from tests.proxy.grpc_client import METHODS
from tests.proxy.proxy_rig import Mode

pytestmark = pytest.mark.slow

REQUEST_S: Final = 3.0
TELEMETRY_S: Final = 3600.0
SIMPLE_POLL_MS: Final = 5_000
CHANNEL: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", 16 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
]
TOPICS: Final = {
    "normal": MessageType.NORMAL,
    "fifo": MessageType.FIFO,
    "delay": MessageType.DELAY,
    "priority": MessageType.PRIORITY,
    "transaction": MessageType.TRANSACTION,
}
CONFIG = """
transactionTimeOut=1500
transactionCheckInterval=1000
"""
CLOCK: Final = SystemClock()
_ids = itertools.count(1)


class CppClient:
    """A client of the C++ SDK: its channel and its Telemetry stream.

    Attributes:
        settings: those that the proxy answered last.
    """

    def __init__(
        self,
        address: str,
        settings: v2.Settings,
        *,
        is_tls: bool,
        namespace: str = "",
        access_key: str = "",
    ) -> None:
        host, _, port = address.rpartition(":")
        self.namespace = namespace
        self._access_key = access_key
        self._client_id = f"host@1#{next(_ids)}_{CLOCK.now_ms()}"
        self.endpoints = endpoints_of(address)
        target = f"ipv4:{address}"
        if is_tls:  # the client accepts any certificate, grpcio only one that it is given
            shown = ssl.get_server_certificate((host, int(port))).encode()
            self._channel = grpc.secure_channel(
                target, grpc.ssl_channel_credentials(shown), CHANNEL
            )
        else:
            self._channel = grpc.insecure_channel(target, CHANNEL)
        self._commands: queue.SimpleQueue[v2.TelemetryCommand] = queue.SimpleQueue()
        self._own_settings = settings
        self._telemetry = self._method("Telemetry", "stream_stream")(
            iter(self._commands.get, None), timeout=TELEMETRY_S, metadata=self._metadata()
        )
        self.settings = self.sync_settings()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        fields = {
            "x-mq-language": "CPP",
            "x-mq-client-id": self._client_id,
            "x-mq-namespace": self.namespace,
            "x-mq-client-version": "5.0.0",
            "x-mq-protocol-version": "v2",
            "x-mq-date-time": date_time,
        }
        if self._access_key:
            signature = date_time_signature(date_time, "secret").hex().upper()
            fields["authorization"] = (
                f"MQv2-HMAC-SHA1 Credential={self._access_key}/cn-hangzhou/RocketMQ, "
                f"SignedHeaders=x-mq-date-time, Signature={signature}"
            )
        return tuple(fields.items())

    def _method(self, rpc: str, kind: str) -> Any:
        method = METHODS[rpc]
        return getattr(self._channel, kind)(
            method.path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=method.response.FromString,
        )

    def sync_settings(self) -> Any:
        """Send the settings, at the start and every 5 minutes; return the answer."""
        self._commands.put(v2.TelemetryCommand(settings=self._own_settings))
        answer = self.next_command()
        assert answer.HasField("settings")
        return answer.settings

    def next_command(self) -> Any:
        return next(self._telemetry)

    def call(self, rpc: str, asked: Any) -> Any:
        """Return the answer of a unary call, which must be OK."""
        answer = self._method(rpc, "unary_unary")(
            asked, timeout=REQUEST_S, metadata=self._metadata()
        )
        assert answer.status.code == Code.OK, answer
        return answer

    def resource(self, name: str) -> v2.Resource:
        return v2.Resource(resource_namespace=self.namespace, name=name)

    def route(self, topic: str) -> list[v2.MessageQueue]:
        """Return the queues; each must be at the address that has a session already."""
        asked = v2.QueryRouteRequest(topic=self.resource(topic), endpoints=self.endpoints)
        queues = list(self.call("QueryRoute", asked).message_queues)
        assert queues
        assert all(one.topic.name == topic for one in queues)
        assert all(one.broker.endpoints == self.endpoints for one in queues)
        return queues

    def assignments(self, topic: str, group: str) -> list[v2.MessageQueue]:
        asked = v2.QueryAssignmentRequest(
            topic=self.resource(topic), group=self.resource(group), endpoints=self.endpoints
        )
        answer = self.call("QueryAssignment", asked)
        queues = [one.message_queue for one in answer.assignments]
        assert all(one.broker.endpoints == self.endpoints for one in queues)
        assert all(one.permission == Permission.READ_WRITE for one in queues)
        return queues

    def receive(self, asked: v2.ReceiveMessageRequest, wait_ms: int) -> tuple[int, list[Any]]:
        """Return the code of a receive, and the messages."""
        answers = self._method("ReceiveMessage", "unary_stream")(
            asked, timeout=wait_ms / 1000 + REQUEST_S, metadata=self._metadata()
        )
        code, messages = 0, []
        for answer in answers:
            if answer.HasField("status"):
                code = answer.status.code
            elif answer.HasField("message"):
                check_readable(answer.message)
                messages.append(answer.message)
        return code, messages

    def shutdown(self) -> None:
        """Cancel the stream and close the channel: nothing else is said to the proxy."""
        self._telemetry.cancel()
        self._channel.close()


def check_readable(message: v2.Message) -> None:
    """Check what the client needs of a message: a wrong digest ends the process."""
    system = message.system_properties
    digest = hashlib.md5(message.body, usedforsecurity=False).hexdigest().upper()
    assert system.body_digest == v2.Digest(type=DigestType.MD5, checksum=digest)
    assert system.body_encoding == Encoding.IDENTITY
    assert system.HasField("born_timestamp")
    assert system.receipt_handle


@pytest.fixture(scope="module", params=Mode, ids=lambda mode: mode.value)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Return the gRPC address of a broker's process, or of a proxy before it."""
    directory = tmp_path_factory.mktemp("cpp")
    config = directory / "broker.conf"
    config.write_text(CONFIG)
    is_local = request.param is Mode.LOCAL
    options = ("--config", str(config), "--no-console")
    with Serving.start(directory / "store", *options, grpc=is_local) as broker:
        create_resources(broker.namesrv)
        if is_local:
            yield broker.grpc
            return
        with Serving.start_proxy(broker.namesrv, directory / "home") as proxy:
            yield proxy.grpc


def create_resources(namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        for topic, kind in TOPICS.items():
            admin.create_topic(topic, attributes={"message.type": kind.name})
        admin.create_group(SubscriptionGroup("ordered", consume_message_orderly=True))


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def is_tls(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def producer(
    address: str, *, is_tls: bool, namespace: str = "", access_key: str = "", topics: Any = TOPICS
) -> CppClient:
    """Start a producer: settings, then the routes, then a heartbeat."""
    client = CppClient(
        address,
        v2.Settings(
            client_type=ClientType.PRODUCER,
            access_point=endpoints_of(address),
            request_timeout=duration(3_000),
            publishing=v2.Publishing(
                topics=[v2.Resource(resource_namespace=namespace, name=one) for one in topics],
                max_body_size=4 * 1024 * 1024,
                validate_message_type=False,
            ),
            user_agent=user_agent(),
        ),
        is_tls=is_tls,
        namespace=namespace,
        access_key=access_key,
    )
    for topic in topics:
        client.route(topic)
    client.call("Heartbeat", v2.HeartbeatRequest(client_type=ClientType.PRODUCER))
    return client


def consumer(
    address: str, kind: ClientType, group: str, topic: str, *, is_tls: bool, namespace: str = ""
) -> CppClient:
    """Start a consumer: settings, then the route, then a heartbeat."""
    every = v2.FilterExpression(type=FilterType.TAG, expression="*")
    name = v2.Resource(resource_namespace=namespace, name=topic)
    subscription = v2.Subscription(
        group=v2.Resource(name=group),  # its namespace is set later
        subscriptions=[v2.SubscriptionEntry(topic=name, expression=every)],
    )
    if kind == ClientType.PUSH_CONSUMER:
        subscription.long_polling_timeout.CopyFrom(duration(30_000))
        subscription.receive_batch_size = 32
    client = CppClient(
        address,
        v2.Settings(
            client_type=kind,
            access_point=endpoints_of(address),
            request_timeout=duration(3_000),
            subscription=subscription,
            user_agent=user_agent(),
        ),
        is_tls=is_tls,
        namespace=namespace,
    )
    client.route(topic)
    asked = v2.HeartbeatRequest(group=client.resource(group), client_type=kind)
    client.call("Heartbeat", asked)
    return client


def endpoints_of(address: str) -> v2.Endpoints:
    host, _, port = address.rpartition(":")
    return v2.Endpoints(
        scheme=v2.AddressScheme.IPv4, addresses=[v2.Address(host=host, port=int(port))]
    )


def user_agent() -> v2.UA:
    return v2.UA(language=v2.Language.CPP, version="5.0.0", platform="Linux", hostname="host")


def send(client: CppClient, topic: str, body: bytes, **system: Any) -> Any:
    """Send one message to a queue that is writable; return the entry of the answer."""
    queues = [one for one in client.route(topic) if one.permission == Permission.READ_WRITE]
    message_id = f"01{next(_ids):032X}"
    message = v2.Message(
        topic=client.resource(topic),
        user_properties={"a": "b"},
        system_properties=v2.SystemProperties(
            keys=["key"],
            born_timestamp=timestamp(CLOCK.now_ms()),
            born_host="host",
            message_type=TOPICS[topic],
            body_encoding=Encoding.IDENTITY,
            message_id=message_id,
            queue_id=queues[0].id,
            **system,
        ),
        body=body,
    )
    [entry] = client.call("SendMessage", v2.SendMessageRequest(messages=[message])).entries
    assert entry.message_id == message_id
    return entry


def send_delayed(client: CppClient, body: bytes, delay_ms: int) -> Any:
    """Send a message with a delivery time; return the entry of the answer."""
    at_ms = CLOCK.now_ms() + delay_ms
    # The client writes the time there too, cut to 32 bits.
    attempt = (at_ms + 2**31) % 2**32 - 2**31
    return send(
        client, "delay", body, delivery_timestamp=timestamp(at_ms), delivery_attempt=attempt
    )


def end_transaction(client: CppClient, message_id: str, transaction_id: str) -> None:
    client.call(
        "EndTransaction",  # it names no source, neither after a check
        v2.EndTransactionRequest(
            topic=client.resource("transaction"),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=TransactionResolution.COMMIT,
        ),
    )


def ack(client: CppClient, group: str, message: v2.Message) -> None:
    entry = v2.AckMessageEntry(
        message_id=message.system_properties.message_id,
        receipt_handle=message.system_properties.receipt_handle,
    )
    client.call(
        "AckMessage",
        v2.AckMessageRequest(
            group=client.resource(group),
            topic=client.resource(message.topic.name),
            entries=[entry],
        ),
    )


def hide(client: CppClient, group: str, message: v2.Message, invisible_ms: int) -> str:
    """Change the invisible time of a message; return its new receipt handle."""
    answer = client.call(
        "ChangeInvisibleDuration",
        v2.ChangeInvisibleDurationRequest(
            group=client.resource(group),
            topic=client.resource(message.topic.name),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
            invisible_duration=duration(invisible_ms),
        ),
    )
    return str(answer.receipt_handle)


def test_producer_sends_all_types(served: str, *, is_tls: bool) -> None:
    client = producer(served, is_tls=is_tls)
    assert client.settings.publishing.max_body_size == 4 * 1024 * 1024
    assert not client.settings.metric.on
    assert not client.settings.metric.HasField("endpoints")

    send(client, "normal", b"one", tag="tag")
    send(client, "fifo", b"one", message_group="group")
    send(client, "priority", b"one", priority=3)
    delayed = send_delayed(client, b"recalled", 60_000)
    recalled = client.call(
        "RecallMessage",
        v2.RecallMessageRequest(
            topic=client.resource("delay"), recall_handle=delayed.recall_handle
        ),
    )
    assert recalled.message_id == delayed.message_id
    entry = send(client, "transaction", b"committed")
    end_transaction(client, entry.message_id, entry.transaction_id)
    assert client.sync_settings() == client.settings
    client.shutdown()


def test_producer_commits_an_orphaned_transaction(served: str, *, is_tls: bool) -> None:
    client = producer(served, is_tls=is_tls, topics=["transaction"])
    entry = send(client, "transaction", b"orphaned")

    command = client.next_command().recover_orphaned_transaction_command

    check_readable_half(command.message, b"orphaned", entry.message_id)
    end_transaction(client, entry.message_id, command.transaction_id)
    client.shutdown()


def check_readable_half(message: v2.Message, body: bytes, message_id: str) -> None:
    assert message.body == body
    assert message.topic.name == "transaction"
    assert message.system_properties.message_id == message_id
    assert message.system_properties.body_encoding == Encoding.IDENTITY


def simple_receive(
    client: CppClient, group: str, assigned: v2.MessageQueue, tag: str
) -> tuple[int, list[Any]]:
    asked = v2.ReceiveMessageRequest(
        group=client.resource(group),
        message_queue=assigned,
        filter_expression=v2.FilterExpression(type=FilterType.TAG, expression=tag),
        batch_size=16,
        invisible_duration=duration(10_000),
        long_polling_timeout=duration(SIMPLE_POLL_MS),
        auto_renew=False,
    )
    return client.receive(asked, SIMPLE_POLL_MS)


def test_simple_consumer_receives_hides_and_acknowledges(served: str, *, is_tls: bool) -> None:
    group, tag = f"simple-{is_tls}", f"{is_tls}"
    sender = producer(served, is_tls=is_tls, topics=["normal"])
    client = consumer(served, ClientType.SIMPLE_CONSUMER, group, "normal", is_tls=is_tls)
    [assigned] = client.assignments("normal", group)
    send(sender, "normal", b"kept", tag=tag)

    code, [message] = simple_receive(client, group, assigned, tag)

    assert (code, message.body) == (Code.OK, b"kept")
    message.system_properties.receipt_handle = hide(client, group, message, 10_000)
    ack(client, group, message)
    client.shutdown()
    sender.shutdown()


def test_delayed_message_arrives_once(served: str) -> None:
    sender = producer(served, is_tls=True, topics=["delay"])
    client = consumer(served, ClientType.SIMPLE_CONSUMER, "waiting", "delay", is_tls=True)
    [assigned] = client.assignments("delay", "waiting")
    send_delayed(sender, b"delayed", 1_000)

    code, [message] = simple_receive(client, "waiting", assigned, "*")

    assert (code, message.body) == (Code.OK, b"delayed")
    assert message.system_properties.delivery_attempt == 1
    ack(client, "waiting", message)
    assert simple_receive(client, "waiting", assigned, "*") == (Code.MESSAGE_NOT_FOUND, [])
    client.shutdown()
    sender.shutdown()


def pushed(client: CppClient, group: str, queue_: v2.MessageQueue) -> tuple[int, list[Any]]:
    """Receive as a push consumer does: the deadline alone bounds the poll."""
    subscription = client.settings.subscription
    asked = v2.ReceiveMessageRequest(
        group=client.resource(group),
        message_queue=queue_,
        filter_expression=v2.FilterExpression(type=FilterType.TAG, expression="*"),
        batch_size=subscription.receive_batch_size,
        auto_renew=True,
        invisible_duration=duration(30_000),
        attempt_id=f"attempt-{next(_ids)}",
    )
    assert subscription.receive_batch_size > 0
    poll_ms = subscription.long_polling_timeout.seconds * 1000
    assert poll_ms > 0
    return client.receive(asked, poll_ms)


def test_push_consumer_receives_a_failed_message_again(served: str, *, is_tls: bool) -> None:
    group = f"push-{is_tls}"
    sender = producer(served, is_tls=is_tls, topics=["priority"])
    client = consumer(served, ClientType.PUSH_CONSUMER, group, "priority", is_tls=is_tls)
    assert not client.settings.subscription.fifo
    assert client.settings.backoff_policy.WhichOneof("strategy") == "customized_backoff"
    [assigned] = client.assignments("priority", group)
    sent = send(sender, "priority", b"failing", priority=1)

    attempts: list[int] = []
    while len(attempts) < 2:
        code, messages = pushed(client, group, assigned)
        assert code == Code.OK
        for message in messages:
            system = message.system_properties
            if system.message_id != sent.message_id:
                ack(client, group, message)
                continue
            attempts.append(system.delivery_attempt)
            if system.delivery_attempt == 1:
                hide(client, group, message, 1_000)
            else:
                ack(client, group, message)
    assert attempts == [1, 2]
    client.shutdown()
    sender.shutdown()


def test_ordered_group_is_assigned_its_queues(served: str) -> None:
    sender = producer(served, is_tls=True, topics=["fifo"])
    client = consumer(served, ClientType.PUSH_CONSUMER, "ordered", "fifo", is_tls=True)
    assert client.settings.subscription.fifo
    queues = client.assignments("fifo", "ordered")
    assert [one.id for one in queues] == list(range(len(queues)))
    bodies = [b"%d" % number for number in range(4)]
    for body in bodies:
        send(sender, "fifo", body, message_group="in order")

    received: list[bytes] = []
    while received[-4:] != bodies:
        _, messages = pushed(client, "ordered", queues[0])
        for message in messages:
            received.append(message.body)
            ack(client, "ordered", message)
    client.shutdown()
    sender.shutdown()


def test_namespace_and_credentials_are_echoed_or_ignored(served: str) -> None:
    """The client takes over the namespace of the answered settings, so it must be its own."""
    sender = producer(
        served, is_tls=True, namespace="INSTANCE", access_key="user", topics=["normal"]
    )
    client = consumer(
        served, ClientType.SIMPLE_CONSUMER, "spaced", "normal", is_tls=True, namespace="INSTANCE"
    )

    topics = sender.settings.publishing.topics
    assert [one.resource_namespace for one in topics] == ["INSTANCE"]
    entries = client.settings.subscription.subscriptions
    assert [one.topic.resource_namespace for one in entries] == ["INSTANCE"]
    assert client.assignments("normal", "spaced")[0].topic.resource_namespace == "INSTANCE"
    send(sender, "normal", b"spaced")
    client.shutdown()
    sender.shutdown()
