"""Clients with credentials sign every request, for clusters that verify signatures."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import kourou
import kourou.blocking
from kourou.auth.credentials import Credentials, CredentialsFunction
from kourou.auth.signature import signature
from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig, ProducerConfig
from kourou.client.consuming.consumer_config import PullConsumerConfig, PushConsumerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.client.sending.producer import Producer
from kourou.client.sending.transaction import TransactionState
from kourou.client.sending.transaction_producer import TransactionProducer
from kourou.client.signing import SigningHook
from kourou.errors import (
    AuthenticationError,
    ConfigError,
    CredentialsError,
    InvalidMessageError,
    NoPermissionError,
    RemoteError,
    UsageError,
)
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, SerializeType, response
from kourou.protocol.frame import decode_frame, encode_frame
from kourou.remoting.admission import Admission
from kourou.remoting.network import Address, Listener, ProtocolFactory
from kourou.testing import cluster as cluster_module
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.recording import TOPIC, Recording, recording

ALICE = Credentials("alice", "alices-secret", "alices-token")
IMPOSTOR = Credentials("alice", "a-guess")
FIRST = ConsumeFromWhere.FIRST_OFFSET
BROKER_OWN = {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}
"""Requests of brokers to name servers, which do not verify signatures."""


class Verifying(MemoryNetwork):
    """Passes only requests with alice's signature to servers; others are refused as by Java."""

    passed: Counter[int]
    refused: Counter[int]

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.passed, self.refused = Counter(), Counter()

    async def listen(
        self, address: Address, factory: ProtocolFactory, *, admission: Admission | None = None
    ) -> Listener:
        return await super().listen(address, lambda: Verifier(self, factory()), admission=admission)

    def refusal(self, command: RemotingCommand) -> str | None:
        if command.is_response or command.code in BROKER_OWN:
            return None
        fields = command.ext_fields
        remark = None
        if "AccessKey" not in fields:
            remark = "username cannot be null."
        elif fields["Signature"] != signature(fields, command.body, ALICE.secret_key):
            remark = "check signature failed."
        (self.passed if remark is None else self.refused)[command.code] += 1
        return remark


class Verifier(asyncio.BufferedProtocol):
    """Verifies requests at the server's end of one connection."""

    def __init__(self, network: Verifying, inner: asyncio.BufferedProtocol) -> None:
        self._network, self._inner = network, inner
        self._space, self._held = bytearray(65_536), b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        self._held += self._space[:nbytes]
        while len(self._held) >= 4:
            end = 4 + int.from_bytes(self._held[:4])
            if len(self._held) < end:
                return
            frame, self._held = self._held[:end], self._held[end:]
            command = decode_frame(frame[4:])
            remark = self._network.refusal(command)
            if remark is None:
                self._pass_on(frame)
            elif not command.is_oneway:
                self._transport.write(encode_frame(response(command, 16, remark)))

    def _pass_on(self, data: bytes) -> None:
        while data:
            view = memoryview(self._inner.get_buffer(len(data)))
            size = min(len(view), len(data))
            view[:size], data = data[:size], data[size:]
            self._inner.buffer_updated(size)


@asynccontextmanager
async def guarded(
    monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[tuple[Recording, Verifying]]:
    """Run a cluster with the topic `T` that verifies signatures."""
    monkeypatch.setattr(cluster_module, "MemoryNetwork", Verifying)
    async with Cluster(seed=5, **options) as cluster:
        assert isinstance(cluster.network, Verifying)
        async with admin_of(cluster) as admin:
            await admin.create_topic(TOPIC, queues=2)
        yield Recording(cluster), cluster.network


def admin_of(cluster: Cluster, credentials: Credentials | None = ALICE) -> AdminClient:
    config = AdminConfig(credentials=credentials)
    return AdminClient(cluster.namesrv_addr, config=config, runtime=cluster.runtime)


def sending(given: Credentials | CredentialsFunction | None = ALICE, **more: Any) -> ProducerConfig:
    return ProducerConfig(credentials=given, **more)


def test_every_request_of_every_client_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with guarded(monkeypatch, trace_topic_enable=True) as (w, network):
            cluster, got, asked = w.cluster, [], []

            def check(message: MessageExt) -> TransactionState:
                asked.append(message)
                return TransactionState.COMMIT

            def listen(message: MessageExt) -> None:
                got.append(message.body)
                if message.body == b"again" and not message.reconsume_times:
                    raise RuntimeError("not yet")

            config = sending(enable_trace=True)
            consumer = cluster.push_consumer(
                "billing",
                PushConsumerConfig(credentials=ALICE, consume_from_where=FIRST, enable_trace=True),
            )
            consumer.subscribe(TOPIC)
            consumer.listen(listen)
            reader = cluster.pull_consumer(
                config=PullConsumerConfig(credentials=ALICE, consume_from_where=FIRST)
            )
            reader.subscribe(TOPIC)
            async with cluster.transaction_producer(check, config=config) as producer, consumer:
                await producer.send(Message(TOPIC, b"again"))
                await producer.send_batch([Message(TOPIC, b"2"), Message(TOPIC, b"3")])
                await producer.send_oneway(Message(TOPIC, b"4"))
                async with producer.transaction(Message(TOPIC, b"5")):
                    pass
                await producer.send_in_transaction(
                    Message(TOPIC, b"6"), lambda _: TransactionState.UNKNOWN
                )
                await w.until(lambda: len(got) == 7, 300.0)
                async with reader:
                    polled: list[MessageExt] = []
                    while len(polled) < 6:
                        polled += await reader.poll()
                    await reader.commit()
                assert not consumer.health().problems
            assert sorted(got) == sorted([b"again", b"again", b"2", b"3", b"4", b"5", b"6"])
            assert len(asked) == 1
            async with admin_of(cluster) as admin:
                assert (await admin.consume_stats("billing")).offsets
                assert (await admin.cluster_info()).brokers
                traces = await admin.topic_stats("RMQ_SYS_TRACE_TOPIC")
                assert sum(one.max_offset for one in traces.offsets.values()) > 0
            assert not network.refused
            assert {
                RequestCode.SEND_MESSAGE_V2,
                RequestCode.SEND_BATCH_MESSAGE,
                RequestCode.END_TRANSACTION,
                RequestCode.CONSUMER_SEND_MSG_BACK,
                RequestCode.PULL_MESSAGE,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                RequestCode.HEART_BEAT,
                RequestCode.UNREGISTER_CLIENT,
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            } <= network.passed.keys()
            assert network.passed[RequestCode.END_TRANSACTION] >= 3  # commit, unknown, check

    run_virtual(main())


@pytest.mark.parametrize("kind", list(SerializeType), ids=lambda kind: kind.name)
@pytest.mark.parametrize("naming", [{"namespace": "ns"}, {"namespace_v2": "ns"}, {}], ids=str)
def test_signature_covers_what_namespaces_and_hooks_change(
    monkeypatch: pytest.MonkeyPatch, naming: dict[str, Any], kind: SerializeType
) -> None:
    class Adds:
        def before_request(self, address: str, command: RemotingCommand) -> None:
            command.ext_fields["added"] = address
            command.ext_fields["empty"] = ""

        def after_response(
            self, address: str, command: RemotingCommand, answer: RemotingCommand
        ) -> None: ...

    async def main() -> None:
        async with guarded(monkeypatch) as (w, network):
            config = sending(request_hooks=[Adds()], serialize_type=kind, **naming)
            async with w.cluster.producer(config=config) as producer:
                await producer.send(Message(TOPIC, b"1"))
                await (await producer.submit(Message(TOPIC, b"2")))
                await producer.send_oneway(Message(TOPIC, b"3"))
            assert not network.refused

    run_virtual(main())


def test_binary_requests_are_signed_without_their_empty_fields() -> None:
    """The encoding drops empty fields, and Java verifies the text "null" in their place."""
    command = RemotingCommand(10, {"a": "", "b": "x"}, serialize_type=SerializeType.ROCKETMQ)
    SigningHook(ALICE).before_request("127.0.0.1:10911", command)
    assert command.ext_fields.keys() == {"b", "AccessKey", "SecurityToken", "Signature"}


@pytest.mark.parametrize(
    ("credentials", "texts"),
    [
        (None, ["username cannot be null", "requires signed requests", "credentials=Credentials"]),
        (IMPOSTOR, ["check signature failed", "access key alice", "correct the access key"]),
    ],
    ids=["none", "wrong secret"],
)
def test_refusal_names_the_access_key_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, credentials: Credentials | None, texts: list[str]
) -> None:
    async def main() -> None:
        errors: list[str] = []

        @asynccontextmanager
        async def refused() -> AsyncIterator[None]:
            with pytest.raises(AuthenticationError) as raised:
                yield
            errors.append(str(raised.value))

        async with guarded(monkeypatch) as (w, _):
            async with w.cluster.producer(config=sending(credentials)) as producer, refused():
                await producer.send(Message(TOPIC, b"1"))
            async with admin_of(w.cluster, credentials) as admin, refused():
                await admin.topic_list()
            config = PullConsumerConfig(credentials=credentials)
            async with w.cluster.pull_consumer(config=config) as reader, refused():
                await reader.fetch_subscribe_message_queues(TOPIC)
        assert len(errors) == 3
        for error in errors:
            assert all(text in error for text in texts)
            assert IMPOSTOR.secret_key not in error

    run_virtual(main())


def test_consumer_health_reports_refused_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with guarded(monkeypatch) as (w, network):
            given = ALICE
            config = PushConsumerConfig(
                credentials=lambda: given, consume_from_where=FIRST, heartbeat_interval_ms=1_000
            )
            consumer = w.cluster.push_consumer(config=config)
            consumer.subscribe(TOPIC)
            consumer.listen(lambda message: w.received.append(message.body))
            async with consumer:
                given = IMPOSTOR
                await w.until(lambda: network.refused[RequestCode.HEART_BEAT] > 0)
                await w.until(lambda: bool(consumer.health().problems))
                assert any(
                    re.search("rejects heartbeats: .*access key alice", one)
                    for one in consumer.health().problems
                )
                given = ALICE
                async with w.cluster.producer(config=sending()) as producer:
                    await producer.send(Message(TOPIC, b"1"))
                await w.until_received(b"1")
                await w.until(lambda: not consumer.health().problems)

    run_virtual(main())


def test_credentials_function_is_called_for_each_request_and_its_error_is_reported() -> None:
    async def main() -> None:
        async with recording() as w:
            answers: list[Callable[[], Any]] = []
            calls = 0

            def current() -> Credentials:
                nonlocal calls
                calls += 1
                found: Credentials = answers[0]() if answers else ALICE
                return found

            def fail() -> Credentials:
                raise OSError("the vault is closed")

            async with w.cluster.producer(config=sending(current)) as producer:
                await producer.send(Message(TOPIC, b"1"))
                before = calls
                await producer.send(Message(TOPIC, b"2"))
                assert calls == before + 1
                answers[:] = [fail]
                with pytest.raises(CredentialsError, match="raised OSError: the vault is closed"):
                    await producer.send(Message(TOPIC, b"3"))
                answers[:] = [lambda: ("alice", "alices-secret")]
                with pytest.raises(CredentialsError, match="returned tuple instead of") as raised:
                    await producer.send(Message(TOPIC, b"3"))
                assert "alices-secret" not in str(raised.value)
                answers.clear()
                await producer.send(Message(TOPIC, b"4"))

    run_virtual(main())


def test_each_client_takes_credentials_beside_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with guarded(monkeypatch) as (w, network):
            address = w.cluster.namesrv_addr
            common: Any = {"credentials": lambda: ALICE, "runtime": w.cluster.runtime}
            check: Any = {"check": lambda _: TransactionState.COMMIT}
            async with Producer("p", address, **common) as producer:
                await producer.send(Message(TOPIC, b"1"))
            async with TransactionProducer("t", address, **check, **common) as producer:
                await producer.send(Message(TOPIC, b"2"))
            async with PullConsumer("r", address, **common) as reader:
                assert await reader.fetch_subscribe_message_queues(TOPIC)
            consumer = PushConsumer("c", address, start="earliest", **common)
            consumer.subscribe(TOPIC)
            got: list[bytes] = []

            async def listen(message: MessageExt) -> None:
                got.append(message.body)

            consumer.listen(listen)
            async with consumer, AdminClient(address, **common) as admin:
                assert await admin.topic_list()
                await w.until(lambda: len(got) == 2)
            assert not network.refused

    run_virtual(main())


@pytest.mark.parametrize(
    "name", ["Producer", "TransactionProducer", "PushConsumer", "PullConsumer"]
)
@pytest.mark.parametrize("module", [kourou, kourou.blocking])
def test_credentials_given_twice_or_of_wrong_type_are_refused(module: Any, name: str) -> None:
    kind = getattr(module, name)
    check = {"check": lambda _: TransactionState.COMMIT} if name == "TransactionProducer" else {}
    configs: dict[str, Any] = {
        "PushConsumer": PushConsumerConfig,
        "PullConsumer": PullConsumerConfig,
    }
    config = configs.get(name, ProducerConfig)(credentials=ALICE)

    async def main() -> None:
        with pytest.raises(ConfigError, match="credentials are set twice"):
            kind("g", "localhost:9876", credentials=ALICE, config=config, **check)
        with pytest.raises(ConfigError, match="credentials is a str") as refused:
            kind("g", "localhost:9876", credentials="alices-secret", **check)
        assert "alices-secret" not in str(refused.value)

    run_virtual(main())


def test_clients_without_credentials_use_the_fast_path() -> None:
    assert ProducerConfig().all_request_hooks() == []
    assert [type(one) for one in sending().all_request_hooks()] == [SigningHook]


def test_signing_refuses_invalid_unicode() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.producer(config=sending()) as producer:
            with pytest.raises((UsageError, InvalidMessageError)):
                await producer.send(Message(TOPIC, b"1", properties={"p": "\ud800"}))

    run_virtual(main())


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (16, "username cannot be null.", AuthenticationError),
        (16, "check signature failed.", AuthenticationError),
        (16, "User:nobody is not found.", AuthenticationError),
        (16, "User:nobody not found.", AuthenticationError),
        (16, "User:alice is disabled.", AuthenticationError),
        (16, "Authentication failed. Please verify the credentials", AuthenticationError),
        (
            1,
            "org.apache.rocketmq.acl.common.AclException: No acl config for a",
            AuthenticationError,
        ),
        (1, "org...AclException: Check signature failed for accessKey=a", AuthenticationError),
        (1, "org...AclException: No default permission for T", NoPermissionError),
        (
            16,
            "User:a has no permission to access Topic:T from 1.2.3.4, no matched",
            NoPermissionError,
        ),
        (16, "the topic[User] sending message is forbidden", NoPermissionError),
    ],
)
def test_refusals_of_java_brokers_have_their_class(
    code: int, remark: str, kind: type[RemoteError]
) -> None:
    error = RemoteError.from_response(code, remark)
    assert type(error) is kind
    assert (error.code, error.remark) == (code, remark)
    assert not error.retriable
    assert str(error).startswith(f"code {code}: {remark}")
