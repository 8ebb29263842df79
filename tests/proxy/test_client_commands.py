"""Administration of consumers that are connected by gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kourou.errors import RemoteError
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import LanguageCode, version_name
from kourou.protocol.running_info import ConsumeResult
from kourou.proxy.client_commands import COMMAND_S
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType, Code
from kourou.proxy.status import ok
from tests.proxy.proxy_rig import GROUP, TOPIC, Rig, TestClient, with_rig

ID = "consumer@1"


async def answer_stacks(consumer: TestClient, text: str, nonce: str | None = None) -> None:
    """Answer the next command of the proxy by the stacks of threads."""
    assert consumer.stream is not None
    asked = (await consumer.stream.next()).print_thread_stack_trace_command
    trace = v2.ThreadStackTrace(nonce=asked.nonce if nonce is None else nonce)
    trace.thread_stack_trace = text
    consumer.stream.send(v2.TelemetryCommand(status=ok(), thread_stack_trace=trace))


async def message_id_of(rig: Rig, entry: Any) -> str:
    """Return the offset id of a sent message."""
    async with rig.admin() as admin:
        found = await admin.message_at(MessageQueue(TOPIC, "broker-a", 0), entry.offset)
        return found.offset_msg_id


def test_running_info_has_the_settings_of_the_client() -> None:
    async def test(rig: Rig) -> None:
        await rig.consumer()
        async with rig.admin() as admin:
            info = await admin.running_info(GROUP, ID)
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_CONSUMEORDERLY"] == "false"
        assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) <= rig.now_ms()
        assert [(one.topic, one.sub_string) for one in info.subscriptions] == [(TOPIC, "*")]
        assert info.jstack is None

    with_rig(test)


def test_member_of_an_ordered_group_consumes_in_order() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(groups=(SubscriptionGroup(GROUP, consume_message_orderly=True),))
        producer, consumer = await rig.producer(), await rig.consumer()
        assert consumer.stream is not None
        offset_id = await message_id_of(rig, await producer.send(b"again"))
        async with rig.admin() as admin:
            info = await admin.running_info(GROUP, ID)
            asking = asyncio.create_task(admin.consume_directly(GROUP, ID, offset_id))
            command = (await consumer.stream.next()).verify_message_command
            answer = v2.VerifyMessageResult(nonce=command.nonce)
            consumer.stream.send(v2.TelemetryCommand(status=ok(), verify_message_result=answer))
            done = await asking
        assert info.properties["PROP_CONSUMEORDERLY"] == "true"
        assert (done.consume_result, done.order) == (ConsumeResult.SUCCESS, True)

    with_rig(test)


def test_member_without_a_stream_is_busy() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.consumer()
        assert consumer.stream is not None
        consumer.stream.end()
        await asyncio.sleep(1)
        async with rig.admin() as admin:
            assert (await admin.running_info(GROUP, ID)).jstack is None
            with pytest.raises(RemoteError, match="has no Telemetry stream now"):
                await admin.running_info(GROUP, ID, stack=True)

    with_rig(test)


def test_stacks_are_requested_from_the_client() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.consumer()
        answering = asyncio.create_task(answer_stacks(consumer, "main\n  run"))
        async with rig.admin() as admin:
            info = await admin.running_info(GROUP, ID, stack=True)
        await answering
        assert info.jstack == "main\n  run"

    with_rig(test)


@pytest.mark.parametrize("answers", [False, True])
def test_client_that_does_not_answer_is_busy(answers: bool) -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.consumer()
        answering = None
        if answers:
            answering = asyncio.create_task(answer_stacks(consumer, "late", "another number"))
        loop = asyncio.get_running_loop()
        async with rig.admin() as admin:
            started_s = loop.time()
            with pytest.raises(RemoteError, match="did not answer a command within 5 s"):
                await admin.running_info(GROUP, ID, stack=True)
            assert COMMAND_S <= loop.time() - started_s < COMMAND_S + 1
        if answering is not None:
            await answering

    with_rig(test)


def test_answer_of_another_client_is_ignored() -> None:
    async def test(rig: Rig) -> None:
        consumer, other = await rig.consumer(), await rig.consumer(client_id="other")
        assert consumer.stream is not None
        assert other.stream is not None
        async with rig.admin() as admin:
            asking = asyncio.create_task(admin.running_info(GROUP, ID, stack=True))
            asked = (await consumer.stream.next()).print_thread_stack_trace_command
            for stream, text in ((other.stream, "forged"), (consumer.stream, "true")):
                trace = v2.ThreadStackTrace(nonce=asked.nonce, thread_stack_trace=text)
                stream.send(v2.TelemetryCommand(status=ok(), thread_stack_trace=trace))
                await asyncio.sleep(0.1)
            assert (await asking).jstack == "true"

    with_rig(test)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (Code.OK, ConsumeResult.SUCCESS),
        (Code.FAILED_TO_CONSUME_MESSAGE, ConsumeResult.LATER),
        (Code.MESSAGE_CORRUPTED, ConsumeResult.RETURN_NULL),
        (Code.NOT_IMPLEMENTED, None),
    ],
)
def test_message_is_consumed_directly_by_the_client(
    code: Code, result: ConsumeResult | None
) -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        assert consumer.stream is not None
        offset_id = await message_id_of(rig, await producer.send(b"again"))
        async with rig.admin() as admin:
            asking = asyncio.create_task(admin.consume_directly(GROUP, ID, offset_id))
            command = (await consumer.stream.next()).verify_message_command
            assert command.message.body == b"again"
            answer = v2.VerifyMessageResult(nonce=command.nonce)
            status = v2.Status(code=code, message="because")
            consumer.stream.send(v2.TelemetryCommand(status=status, verify_message_result=answer))
            if result is None:
                with pytest.raises(RemoteError, match="NOT_IMPLEMENTED because"):
                    await asking
            else:
                done = await asking
                assert (done.consume_result, done.order) == (result, False)

    with_rig(test)


def test_reset_of_a_group_acts_in_the_broker() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        consumer = await rig.consumer(kind=ClientType.SIMPLE_CONSUMER)
        for body in (b"1", b"2"):
            await producer.send(body)
        messages = await consumer.receive(invisible_ms=10_000)
        await consumer.ack(*messages)
        await asyncio.sleep(10)
        async with rig.admin() as admin:
            await admin.reset_offset(GROUP, TOPIC, to="earliest")
            again = await consumer.receive(invisible_ms=10_000)
            assert [message.body for message in again] == [b"1", b"2"]
            await consumer.ack(*again)
            for body in (b"3", b"4"):
                await producer.send(body)
            await admin.skip_backlog(GROUP, TOPIC)
        assert await consumer.receive(invisible_ms=10_000) == []

    with_rig(test)


@pytest.mark.parametrize(("text", "version"), [("5.0.8", "V5_0_8"), ("unknown", "V5_5_0")])
def test_member_has_the_language_and_version_of_its_client(text: str, version: str) -> None:
    async def test(rig: Rig) -> None:
        await rig.consumer(version=text)
        member = rig.broker.components.context.clients.member(GROUP, ID)
        assert member is not None
        assert (member.language, version_name(member.version)) == (LanguageCode.PYTHON, version)

    with_rig(test)
