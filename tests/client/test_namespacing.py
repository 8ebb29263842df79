"""Clients with a namespace use plain names and are isolated from other namespaces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.client.config import AdminConfig, ProducerConfig
from kourou.client.consuming.consumer_config import PullConsumerConfig, PushConsumerConfig
from kourou.client.namespacing import NamespaceHook
from kourou.client.sending.producer import Producer
from kourou.client.sending.transaction import TransactionState
from kourou.errors import ConfigError, ReplyTimeoutError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message, MessageExt
from kourou.model.properties import decode_properties
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.running_info import ConsumeResult
from kourou.remoting.steady_time import steady_ms
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

NS = "ns"
PRODUCER = ProducerConfig(namespace=NS)


def push_config(**options: Any) -> PushConsumerConfig:
    return PushConsumerConfig(
        namespace=NS, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **options
    )


async def make_topic(cluster: Cluster) -> None:
    config = AdminConfig(namespace=NS)
    async with AdminClient(cluster.namesrv_addr, config=config, runtime=cluster.runtime) as admin:
        await admin.create_topic(TOPIC, queues=2)


def test_wire_has_qualified_names_and_client_has_plain_names() -> None:
    async def main() -> None:
        async with recording() as w:
            await make_topic(w.cluster)
            async with w.cluster.producer("orders", PRODUCER) as producer:
                receipts = [await producer.send(Message(TOPIC, b"1", tags="a"))]
                receipts += await producer.send_batch([Message(TOPIC, b"2"), Message(TOPIC, b"3")])
                receipts += [await (await producer.submit(Message(TOPIC, b"4")))]
                await producer.send_oneway(Message(TOPIC, b"5"))
                assert {receipt.queue.topic for receipt in receipts} == {TOPIC}
                queues = await producer.fetch_publish_message_queues(TOPIC)
                assert {queue.topic for queue in queues} == {TOPIC}
                await producer.send(Message(TOPIC, b"6"), queue=queues[1])
                await producer.send(Message(TOPIC, b"7"), sharding_key="k")
            async with w.cluster.pull_consumer() as reader:  # without a namespace
                outside = await reader.fetch_subscribe_message_queues(f"{NS}%{TOPIC}")
                stored = [
                    message
                    for queue in outside
                    for message in (await reader.pull(queue, 0)).messages
                ]
                assert len(stored) == 7
                assert {message.topic for message in stored} == {f"{NS}%{TOPIC}"}
                (first,) = [message for message in stored if message.body == b"1"]
                assert first.properties["INSTANCE_ID"] == NS
            got: list[MessageExt] = []
            consumer = w.cluster.push_consumer("billing", push_config())
            consumer.subscribe(TOPIC)
            consumer.listen(got.append)
            async with consumer:
                await w.until(lambda: len(got) == 7)
                assert {message.topic for message in got} == {TOPIC}
                assert {queue.topic for queue in consumer.health().queues} <= {
                    TOPIC,
                    "%RETRY%billing",
                }
                async with w.cluster.admin() as admin:
                    groups = [one.group_name for one in await admin.group_list()]
                assert f"{NS}%billing" in groups
            assert w.received == []

    run_virtual(main())


def test_failed_message_is_redelivered_within_the_namespace() -> None:
    async def main() -> None:
        async with recording() as w:
            await make_topic(w.cluster)
            got: list[MessageExt] = []

            def listener(message: MessageExt) -> None:
                got.append(message)
                if len(got) < 3:
                    raise ValueError("again")

            consumer = w.cluster.push_consumer("billing", push_config())
            consumer.subscribe(TOPIC)
            consumer.listen(listener)
            async with consumer, w.cluster.producer("orders", PRODUCER) as producer:
                await producer.send(Message(TOPIC, b"1"))
                await w.until(lambda: len(got) == 3, timeout_s=120)
            assert [(one.topic, one.reconsume_times) for one in got] == [
                (TOPIC, 0),
                (TOPIC, 1),
                (TOPIC, 2),
            ]
            async with w.cluster.admin() as admin:
                topics = await admin.topic_list()
            assert f"%RETRY%{NS}%billing" in topics
            assert "%RETRY%billing" not in topics

    run_virtual(main())


def test_ordered_consumption_and_filters_work_within_the_namespace() -> None:
    async def main() -> None:
        async with recording(enable_property_filter=True) as w:
            await make_topic(w.cluster)
            got: list[bytes] = []
            consumer = w.cluster.push_consumer("billing", push_config())
            consumer.subscribe(TOPIC, sql="a > 5")
            consumer.listen_orderly(lambda message: got.append(message.body))
            parts = w.cluster.broker().components
            async with consumer, w.cluster.producer("orders", PRODUCER) as producer:
                for number in range(4, 9):
                    message = Message(TOPIC, b"%d" % number, properties={"a": str(number)})
                    await producer.send(message, sharding_key="k")
                await w.until(lambda: len(got) == 3)
                queues = [MessageQueue(f"{NS}%{TOPIC}", "broker-0", n) for n in range(2)]
                for queue in queues:
                    holder = parts.queue_locks.holder(f"{NS}%billing", queue, steady_ms())
                    assert holder == consumer.client_id
                (known,) = parts.tables.filters.of_topic(f"{NS}%{TOPIC}")
                assert (known.group, known.expression) == (f"{NS}%billing", "a > 5")
            assert not parts.queue_locks.is_any_held(f"{NS}%billing", steady_ms())
            assert got == [b"6", b"7", b"8"]

    run_virtual(main())


def test_messages_are_isolated_between_namespaces() -> None:
    async def main() -> None:
        async with recording() as w:
            await make_topic(w.cluster)
            async with w.consumer(), w.cluster.producer("orders", PRODUCER) as producer:
                await producer.send(Message(TOPIC, b"inside"))
                await w.send(b"outside")
                await w.until_received(b"outside")
                await asyncio.sleep(5)
            assert w.received == [b"outside"]

    run_virtual(main())


def test_poll_and_commit_work_within_the_namespace() -> None:
    async def main() -> None:
        async with recording() as w:
            await make_topic(w.cluster)
            async with w.cluster.producer("orders", PRODUCER) as producer:
                await producer.send(Message(TOPIC, b"1"))
            config = PullConsumerConfig(
                namespace=NS, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            async with w.cluster.pull_consumer("pullers", config) as reader:
                reader.subscribe(TOPIC)
                messages: list[MessageExt] = []
                while not messages:
                    messages = await reader.poll(timeout_ms=1_000)
                await reader.commit()
            assert [(one.topic, one.body) for one in messages] == [(TOPIC, b"1")]
            async with w.cluster.admin() as admin:
                stats = await admin.consume_stats(f"{NS}%pullers")
            assert {queue.topic for queue in stats.offsets} >= {f"{NS}%{TOPIC}"}

    run_virtual(main())


def test_request_gets_its_reply_within_the_namespace() -> None:
    async def main() -> None:
        async with recording() as w:
            await make_topic(w.cluster)
            async with (
                w.cluster.producer("answerers", PRODUCER) as answerer,
                w.cluster.producer("askers", PRODUCER) as asker,
            ):
                consumer = w.cluster.push_consumer("answerers", push_config())
                consumer.subscribe(TOPIC)

                async def answer(question: MessageExt) -> None:
                    await answerer.reply(question, b"42")

                consumer.listen(answer)
                async with consumer:
                    reply = await asker.request(Message(TOPIC, b"?"), timeout_ms=5_000)
                    assert reply.body == b"42"
                async with w.cluster.producer("askers") as stranger:
                    with pytest.raises(ReplyTimeoutError):
                        await stranger.request(Message(TOPIC, b"?"), timeout_ms=1_000)

    run_virtual(main())


def test_transactions_end_and_are_checked_within_the_namespace() -> None:
    asked: list[tuple[str, bytes]] = []

    def ask(message: MessageExt) -> TransactionState:
        asked.append((message.topic, message.body))
        return TransactionState.COMMIT

    async def main() -> None:
        async with recording() as w:
            await make_topic(w.cluster)
            got: list[MessageExt] = []
            consumer = w.cluster.push_consumer("billing", push_config())
            consumer.subscribe(TOPIC)
            consumer.listen(got.append)
            producer = w.cluster.transaction_producer(ask, config=PRODUCER)
            async with consumer, producer:
                for state in TransactionState:
                    message = Message(TOPIC, state.name.encode())
                    half = await producer.begin_transaction(message)
                    receipt = await producer.end_transaction(half, state)
                    assert receipt.is_confirmed == (state is not TransactionState.UNKNOWN)
                await w.until(lambda: len(got) == 2, timeout_s=300)
                await asyncio.sleep(60)
            assert sorted(one.body for one in got) == [b"COMMIT", b"UNKNOWN"]
            assert asked == [(TOPIC, b"UNKNOWN")]
            assert {one.topic for one in got} == {TOPIC}

    run_virtual(main())


def test_offset_reset_by_another_client_reaches_the_member() -> None:
    async def main() -> None:
        async with recording(use_server_side_reset_offset=False) as w:
            await make_topic(w.cluster)
            got: list[bytes] = []
            consumer = w.cluster.push_consumer("billing", push_config())
            consumer.subscribe(TOPIC)
            consumer.listen(lambda message: got.append(message.body))
            async with consumer, w.cluster.producer("orders", PRODUCER) as producer:
                await producer.send(Message(TOPIC, b"1"))
                await w.until(lambda: got == [b"1"])
                await asyncio.sleep(6)  # until offsets are committed
                async with w.cluster.admin() as admin:
                    await admin.reset_offset(f"{NS}%billing", f"{NS}%{TOPIC}", to="earliest")
                await asyncio.sleep(60)
                assert got == [b"1", b"1"]

    run_virtual(main())


def test_directly_consumed_message_has_its_plain_topic() -> None:
    async def main() -> None:
        async with recording() as w:
            await make_topic(w.cluster)
            got: list[tuple[str, str | None]] = []
            consumer = w.cluster.push_consumer("billing", push_config())
            consumer.subscribe(TOPIC)
            consumer.listen(lambda one: got.append((one.topic, one.properties.get("RETRY_TOPIC"))))
            async with consumer, w.cluster.producer("orders", PRODUCER) as producer:
                sent = await producer.send(Message(TOPIC, b"1"))
                await w.until(lambda: len(got) == 1)
                async with w.cluster.admin() as admin:
                    result = await admin.consume_directly(
                        f"{NS}%billing", consumer.client_id, sent.offset_msg_id
                    )
            assert result.consume_result is ConsumeResult.SUCCESS
            assert got == [(TOPIC, None), (TOPIC, None)]

    run_virtual(main())


def test_property_with_similar_name_does_not_suppress_the_namespace() -> None:
    hook = NamespaceHook(NS)
    text = "MY_INSTANCE_ID\1x\2PGROUP\1g\2"
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, {"a": "g", "b": "T", "i": text})
    hook.before_request("b:1", command)
    properties = decode_properties(command.ext_fields["i"].encode())
    assert properties == {"MY_INSTANCE_ID": "x", "PGROUP": "ns%g", "INSTANCE_ID": NS}


def test_namespace_v2_is_sent_in_each_request() -> None:
    seen: list[RemotingCommand] = []

    class Watching:
        def before_request(self, address: str, command: RemotingCommand) -> None:
            assert address
            seen.append(command)

        def after_response(
            self, address: str, command: RemotingCommand, answer: RemotingCommand
        ) -> None:
            assert address
            assert answer.code == 0, command.code

    async def main() -> None:
        async with recording() as w:
            config = ProducerConfig(namespace_v2="ns2", request_hooks=(Watching(),))
            async with w.cluster.producer("orders", config) as producer:
                receipt = await producer.send(Message(TOPIC, b"1"))
                assert receipt.queue.topic == TOPIC
                await producer.send_oneway(Message(TOPIC, b"2"))
                await asyncio.sleep(2)
            async with w.consumer(namespace_v2="ns2"):
                await w.until_received(b"1", b"2")

    run_virtual(main())
    assert {command.code for command in seen} >= {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
    }
    for command in seen:
        assert (command.ext_fields["nsd"], command.ext_fields["ns"]) == ("true", "ns2")


def test_retried_request_is_qualified_once() -> None:
    hook = NamespaceHook(NS)
    fields = {"a": "g", "b": "%RETRY%g", "i": "RETRY_TOPIC\1T\2", "c": "TBW102"}
    command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields)
    for _ in range(2):
        hook.before_request("b:1", command)
    properties = decode_properties(command.ext_fields.pop("i").encode())
    assert command.ext_fields == {"a": "ns%g", "b": "%RETRY%ns%g", "c": "TBW102"}
    assert properties == {"RETRY_TOPIC": "ns%T", "INSTANCE_ID": NS}


def test_both_forms_of_namespace_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="set one"):
        ProducerConfig(namespace="a", namespace_v2="b")
    with pytest.raises(ConfigError, match="namespace"):
        Producer("g", "localhost:9876", config=ProducerConfig(namespace="a%b"))
