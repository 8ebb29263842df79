"""Tests of Kourou's clients with a Java broker 5.5.0 that authenticates and authorizes requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kourou import (
    AdminClient,
    AdminConfig,
    ConsumeFromWhere,
    Credentials,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    SerializeType,
    TransactionProducer,
    TransactionState,
)
from kourou.errors import AuthenticationError, NoPermissionError
from kourou.testing.process import run_command
from tests.interop.peer import JavaServer, start_java

ROOT = Credentials("root-user", "root-secret")
GUESS = Credentials("root-user", "a-guess")
NOBODY = Credentials("nobody", "root-secret")
LIMITED = Credentials("RocketMQ-reader", "12345678", None)
FIRST = ConsumeFromWhere.FIRST_OFFSET
PROVIDER = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
OPTIONS = "\n".join(
    (
        "authenticationEnabled=true",
        f"authenticationMetadataProvider={PROVIDER.format('authentication', 'Authentication')}",
        'initAuthenticationUser={"username":"root-user","password":"root-secret"}',
        'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"inner-secret"}',
        "authorizationEnabled=true",
        f"authorizationMetadataProvider={PROVIDER.format('authorization', 'Authorization')}",
        "migrateAuthFromV1Enabled=true",
        "traceTopicEnable=true",
        "transactionCheckInterval=1000",
        "transactionTimeOut=1000",
        "",
    )
)
ACCOUNTS = """\
accounts:
- accessKey: RocketMQ-reader
  secretKey: 12345678
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - Open=PUB|SUB
"""
"""A `plain_acl.yml` of RocketMQ 4, from which a broker 5 creates users at its start."""


@pytest.fixture(scope="module")
def secured(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    """Run a broker that accepts only signed requests of users with permissions."""
    home: Path = tmp_path_factory.mktemp("secured")
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    server = start_java(jars, home, options=OPTIONS)
    yield server
    server.stop()


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110 - a real broker has real time
            await asyncio.sleep(0.05)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def producing(credentials: Credentials | None = ROOT, **more: Any) -> ProducerConfig:
    return ProducerConfig(credentials=credentials, send_timeout_ms=15_000, **more)


async def make_topic(server: JavaServer, topic: str) -> None:
    config = AdminConfig(credentials=ROOT)
    async with AdminClient(server.namesrv_addr, config=config) as admin:
        await admin.create_topic(topic, queues=2)


@pytest.mark.parametrize("kind", list(SerializeType), ids=lambda kind: kind.name)
def test_signed_clients_send_consume_commit_and_trace(
    secured: JavaServer, kind: SerializeType
) -> None:
    topic, namesrv = f"Signed-{kind.name}", secured.namesrv_addr
    received: list[bytes] = []
    asked: list[str] = []
    bodies = {b"again", *(b"%d" % number for number in range(2, 8))}

    def listen(message: MessageExt) -> None:
        received.append(message.body)
        if message.body == b"again" and not message.reconsume_times:
            raise RuntimeError("not yet")

    def check(message: MessageExt) -> TransactionState:
        asked.append(message.msg_id)
        return TransactionState.COMMIT

    async def main() -> None:
        await make_topic(secured, topic)
        sending = producing(serialize_type=kind, enable_trace=True)
        consumer = PushConsumer(
            f"by-{kind.name}",
            namesrv,
            config=PushConsumerConfig(
                credentials=ROOT,
                serialize_type=kind,
                consume_from_where=FIRST,
                enable_trace=True,
                route_refresh_interval_ms=1_000,  # finds the retry topic of a new group sooner
            ),
        )
        consumer.subscribe(topic)
        consumer.listen(listen)
        producer = TransactionProducer("signing", namesrv, check=check, config=sending)
        async with producer, consumer:
            await producer.send(Message(topic, b"again", tags="ä", keys=["k"]))
            await producer.send_batch([Message(topic, b"2"), Message(topic, b"3")])
            await (await producer.submit(Message(topic, b"4")))
            await producer.send_oneway(Message(topic, b"5"))
            async with producer.transaction(Message(topic, b"6")):
                pass
            await producer.send_in_transaction(
                Message(topic, b"7"), lambda _: TransactionState.UNKNOWN
            )
            await until(lambda: set(received) >= bodies and received.count(b"again") == 2)
            assert not consumer.health().problems
        assert (
            set(received) == bodies
        )  # Java stores a message twice if a check and a commit coincide
        assert asked
        config = PullConsumerConfig(credentials=ROOT, serialize_type=kind)
        async with PullConsumer(f"by-{kind.name}", namesrv, config=config) as reader:
            queues = await reader.fetch_subscribe_message_queues(topic)
            assert sum([await reader.committed(queue) or 0 for queue in queues]) >= 7
            traces = await reader.fetch_subscribe_message_queues("RMQ_SYS_TRACE_TOPIC")
            assert sum([await reader.max_offset(queue) for queue in traces]) > 0

    run(main)


@pytest.mark.parametrize(
    ("credentials", "texts"),
    [
        (None, ["username cannot be null", "requires signed requests"]),
        (GUESS, ["check signature failed", "access key root-user", "correct the access key"]),
        (NOBODY, ["User:nobody is not found", "access key nobody", "correct the access key"]),
    ],
    ids=["none", "wrong secret", "unknown user"],
)
def test_refused_credentials_raise_an_authentication_error(
    secured: JavaServer, credentials: Credentials | None, texts: list[str]
) -> None:
    topic, namesrv = "Refusing", secured.namesrv_addr

    async def main() -> None:
        await make_topic(secured, topic)
        errors: list[str] = []
        async with Producer("refused", namesrv, config=producing(credentials)) as producer:
            for sending in (producer.send, producer.send_batch):
                message = Message(topic, b"1")
                with pytest.raises(AuthenticationError) as refused:
                    await sending(message if sending == producer.send else [message])  # type: ignore[arg-type]
                errors.append(str(refused.value))
        async with AdminClient(namesrv, config=AdminConfig(credentials=credentials)) as admin:
            with pytest.raises(AuthenticationError) as refused:
                await admin.create_topic("Never")
            errors.append(str(refused.value))
        config = PullConsumerConfig(credentials=credentials)
        async with PullConsumer("refused", namesrv, config=config) as reader:
            queues = await reader.fetch_subscribe_message_queues(topic)
            with pytest.raises(AuthenticationError) as refused:
                await reader.pull(queues[0], 0)
            errors.append(str(refused.value))
        consumer = PushConsumer(
            "refused", namesrv, config=PushConsumerConfig(credentials=credentials)
        )
        consumer.subscribe(topic)
        consumer.listen(lambda _: None)
        async with consumer:
            await until(lambda: bool(consumer.health().problems))
            errors += [one for one in consumer.health().problems if "heartbeats" in one]
        assert len(errors) == 5
        for error in errors:
            assert all(text in error for text in texts), error
            assert "root-secret" not in error
            assert "a-guess" not in error

    run(main)


def test_account_of_a_plain_acl_file_sends_only_to_permitted_topics(
    secured: JavaServer,
) -> None:
    async def main() -> None:
        await make_topic(secured, "Open")
        await make_topic(secured, "Closed")
        async with Producer("limited", secured.namesrv_addr, config=producing(LIMITED)) as producer:
            await producer.send(Message("Open", b"1"))
            with pytest.raises(NoPermissionError, match="access key RocketMQ-reader") as refused:
                await producer.send(Message("Closed", b"1"))
            assert not isinstance(refused.value, AuthenticationError)

    run(main)


def test_credentials_returned_by_a_function_may_change(secured: JavaServer) -> None:
    async def main() -> None:
        current = ROOT
        await make_topic(secured, "Rotating")
        config = ProducerConfig(credentials=lambda: current)
        async with Producer("rotating", secured.namesrv_addr, config=config) as producer:
            await producer.send(Message("Rotating", b"1"))
            current = GUESS
            with pytest.raises(AuthenticationError):
                await producer.send(Message("Rotating", b"2"))
            current = ROOT
            await producer.send(Message("Rotating", b"3"))

    run(main)


def test_commands_sign_by_environment_or_file(secured: JavaServer, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("accessKey: root-user\nsecretKey: root-secret\n")
    file.chmod(0o600)
    address = {"KOUROU_NAMESRV": secured.namesrv_addr}
    keys = {"KOUROU_ACCESS_KEY": "root-user", "KOUROU_SECRET_KEY": "root-secret"}
    assert run_command("topic", "create", "Commanded", environ=address | keys).code == 0
    by_file = address | {"KOUROU_CREDENTIALS_FILE": str(file)}
    assert run_command("send", "Commanded", "hello", environ=by_file).code == 0
    count = ("--from", "earliest", "--count", "1", "--json")
    received = run_command("receive", "Commanded", *count, environ=by_file)
    assert json.loads(received.out)["body"] == "hello"
    refused = run_command("send", "Commanded", "hello", environ=address)
    assert refused.code == 1
    assert "KOUROU_ACCESS_KEY" in refused.err


def test_spark_signs_reads_and_writes_by_a_file(
    spark: SparkSession, secured: JavaServer, tmp_path: Path
) -> None:
    topic = "SignedBySpark"
    asyncio.run(make_topic(secured, topic))

    def options(secret: str) -> dict[str, str]:
        file = tmp_path / secret
        file.write_text(f"accessKey: root-user\nsecretKey: {secret}\n")
        file.chmod(0o600)
        address = {"nameServer": secured.namesrv_addr, "topic": topic}
        return {**address, "credentialsFile": str(file)}

    rows = spark.range(0, 50, 1, 2).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS body")
    writer = rows.write.format("rocketmq").options(**options("root-secret"), writeId="signed")
    writer.mode("append").save()
    table = spark.read.format("rocketmq").options(**options("root-secret")).load()
    assert sorted(bytes(row.body) for row in table.collect()) == sorted(
        b"%d" % n for n in range(50)
    )

    with pytest.raises(PySparkException, match="AuthenticationError") as refused:
        spark.read.format("rocketmq").options(**options("a-guess")).load().count()
    assert "access key root-user" in str(refused.value)
    assert "a-guess" not in str(refused.value).replace(str(tmp_path / "a-guess"), "")
    unsigned = {"nameServer": secured.namesrv_addr, "topic": topic}
    with pytest.raises(PySparkException, match="requires signed requests"):
        spark.read.format("rocketmq").options(**unsigned).load().count()
