"""Requests of brokers to a push consumer, on a simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.client.consuming.consumer import Consumer
from kourou.client.consuming.listening.ordered_calls import OrderlyContext
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.offsets import (
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
    decode_consumer_status,
    encode_reset_offsets,
)
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResultRequestHeader,
    ConsumeResult,
    GetConsumerRunningInfoRequestHeader,
    decode_consume_directly_result,
    decode_consumer_running_info,
)
from kourou.remoting.connection import Connection
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from tests.client.consuming.ordered_rig import Ordered

QUEUE = MessageQueue(TOPIC, "broker-0", 0)
GROUP = "consumers"
Ask = Callable[[RemotingCommand], Coroutine[Any, Any, RemotingCommand]]


def requester(w: Recording, consumer: Consumer) -> Ask:
    """Return a function that has the broker send a request to the consumer and await the answer."""
    member = w.cluster.broker().components.context.clients.member(GROUP, consumer.client_id)
    assert member is not None
    connection = member.peer
    assert isinstance(connection, Connection)

    async def ask(command: RemotingCommand) -> RemotingCommand:
        return await connection.request(command, 5.0)

    return ask


def test_a_reset_to_a_lower_offset_delivers_again() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.consumer() as consumer:
            await w.send(b"0", b"1", b"2", b"3")
            await w.until_received(b"0", b"1", b"2", b"3")
            header = ResetOffsetRequestHeader(TOPIC, GROUP, timestamp=0, is_force=True)
            body = encode_reset_offsets({QUEUE: 2, MessageQueue(TOPIC, "other", 0): 1})
            command = request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
            await requester(w, consumer)(command)
            await w.until_received(b"0", b"1", b"2", b"2", b"3", b"3")
            await asyncio.sleep(6)
            assert (w.received.count(b"1"), await w.committed()) == (1, 4)

    run_virtual(main())


def test_a_reset_drops_deliveries_in_progress() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            released = asyncio.Event()

            async def hang_first(message: MessageExt) -> None:
                if len(w.received) == 1:
                    await released.wait()

            async with w.consumer(hang_first) as consumer:
                await w.send(b"0", b"1", b"2")
                await w.until_received(b"0", b"1", b"2")
                header = ResetOffsetRequestHeader(TOPIC, GROUP, timestamp=-1, is_force=True)
                command = request(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    header,
                    encode_reset_offsets({QUEUE: 3}),
                )
                await requester(w, consumer)(command)
                await asyncio.sleep(1)
                assert await w.committed() == 3
                released.set()
                await w.send(b"3")
                await w.until_received(b"3")
                await asyncio.sleep(6)
                assert await w.committed() == 4

    run_virtual(main())


def test_the_status_response_has_the_offsets_in_memory() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.consumer() as consumer:
            await w.send(b"0", b"1")
            await w.until_received(b"0", b"1")
            header = GetConsumerStatusRequestHeader(TOPIC, GROUP)
            command = request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, header)
            answer = await requester(w, consumer)(command)
            assert decode_consumer_status(answer.body).offsets == {QUEUE: 2}

    run_virtual(main())


def test_the_running_info_has_queues_settings_statistics_and_stacks() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.consumer() as consumer:
            await w.send(b"0", b"1")
            await w.until_received(b"0", b"1")
            await asyncio.sleep(20)
            ask = requester(w, consumer)
            header = GetConsumerRunningInfoRequestHeader(GROUP, consumer.client_id, True)
            answer = await ask(request(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
            info = decode_consumer_running_info(answer.body)
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info.properties["PROP_NAMESERVER_ADDR"] == "127.0.0.1:9876;"
            assert info.properties["pullBatchSize"] == "32"
            assert info.properties["messageModel"] == "CLUSTERING"
            assert [one.topic for one in info.subscriptions] == [f"%RETRY%{GROUP}", TOPIC]
            assert info.queues[QUEUE].commit_offset == 2
            assert info.queues[QUEUE].last_consume_timestamp > 0
            assert info.statuses[TOPIC].consume_ok_tps > 0
            assert "MainThread" in (info.jstack or "")
            assert "task listener 0\n" in (info.jstack or "")

            header = GetConsumerRunningInfoRequestHeader("stranger", consumer.client_id)
            answer = await ask(request(RequestCode.GET_CONSUMER_RUNNING_INFO, header))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == "The Consumer Group <stranger> not exist in this consumer"

    run_virtual(main())


def test_a_message_is_consumed_directly_without_being_acknowledged() -> None:
    async def main() -> None:
        async def refuse_some(_: MessageExt) -> None:
            if len(w.received) == 2:
                raise ValueError("not now")
            if len(w.received) == 3:
                raise RetryLater("busy", level=2)
            if len(w.received) == 4:
                raise DeadLetter("never")

        async with recording(queues=1) as w, w.consumer(refuse_some) as consumer:
            await w.send(b"0")
            await w.until_received(b"0")
            async with w.cluster.pull_consumer() as reader:
                raw = (await reader.pull(QUEUE, 0)).raw
            ask = requester(w, consumer)

            async def consume() -> tuple[ConsumeResult, str | None]:
                header = ConsumeMessageDirectlyResultRequestHeader(
                    GROUP, consumer.client_id, message_broker_name="broker-0"
                )
                command = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, raw)
                result = decode_consume_directly_result((await ask(command)).body)
                return result.consume_result, result.remark

            assert await consume() == (ConsumeResult.THROW_EXCEPTION, "ValueError('not now')")
            assert await consume() == (ConsumeResult.LATER, "RetryLater('busy')")
            assert await consume() == (ConsumeResult.LATER, "DeadLetter('never')")
            assert await consume() == (ConsumeResult.SUCCESS, None)
            assert w.deliveries[-1].broker_name == "broker-0"
            await asyncio.sleep(30)
            assert w.received == [b"0"] * 5, "a failed message is not sent back"

    run_virtual(main())


def test_an_ordered_listener_consumes_directly_while_its_queue_is_delivered() -> None:
    async def main() -> None:
        errors: list[Exception | None] = []
        got: list[bytes] = []

        async def listen(message: MessageExt) -> None:
            got.append(message.body)
            if errors and (error := errors.pop(0)) is not None:
                raise error

        async with recording(queues=1) as w:
            await w.send(b"0", b"1", b"2")
            consumer = Ordered(w).bare()
            consumer.listen_orderly(listen)
            async with consumer, w.cluster.admin() as admin:
                await w.until(lambda: len(got) == 3)
                async with w.cluster.pull_consumer() as reader:
                    [_, message, _] = (await reader.pull(QUEUE, 0)).messages

                async def consume(error: Exception | None) -> ConsumeResult:
                    errors.append(error)
                    result = await admin.consume_directly(
                        GROUP, consumer.client_id, message.offset_msg_id
                    )
                    assert (result.order, result.auto_commit) == (True, True)
                    assert result.remark == (None if error is None else repr(error))
                    return result.consume_result

                assert await consume(None) is ConsumeResult.SUCCESS
                assert await consume(ValueError("not now")) is ConsumeResult.THROW_EXCEPTION
                assert await consume(RetryLater("busy")) is ConsumeResult.LATER
                assert await consume(DeadLetter("never")) is ConsumeResult.LATER
                await asyncio.sleep(30)
                assert got[3:] == [b"1"] * 4, "a failed message is not redelivered"
            assert await w.committed() == 3

    run_virtual(main())


def test_consuming_directly_reports_commit_or_rollback_of_a_committing_listener() -> None:
    async def main() -> None:
        got: list[bytes] = []

        async with recording(queues=1) as w:
            await w.send(b"0", b"1")
            consumer = Ordered(w).bare()

            @consumer.listen_orderly_and_commit
            async def listen(messages: list[MessageExt], context: OrderlyContext) -> None:
                assert context.queue == QUEUE
                got.extend(message.body for message in messages)
                if len(got) == 3:
                    context.commit()
                elif len(got) == 4:
                    context.rollback()

            async with consumer, w.cluster.admin() as admin:
                await w.until(lambda: len(got) == 2)
                async with w.cluster.pull_consumer() as reader:
                    [message, _] = (await reader.pull(QUEUE, 0)).messages
                results = []
                for _ in range(3):
                    result = await admin.consume_directly(
                        GROUP, consumer.client_id, message.offset_msg_id
                    )
                    assert (result.order, result.auto_commit) == (True, False)
                    results.append(result.consume_result)
            assert results == [ConsumeResult.COMMIT, ConsumeResult.ROLLBACK, ConsumeResult.SUCCESS]
            assert got == [b"0", b"1", b"0", b"0", b"0"], "its queue was not rolled back"
            assert await w.committed() == 0, "its queue was not committed"

    run_virtual(main())


def test_consuming_directly_without_a_listener_returns_later() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            consumer = w.cluster.push_consumer()
            consumer.subscribe(TOPIC)
            async with consumer:
                await w.send(b"0")
                async with w.cluster.pull_consumer() as reader:
                    raw = (await reader.pull(QUEUE, 0)).raw
                header = ConsumeMessageDirectlyResultRequestHeader(GROUP, consumer.client_id)
                command = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, raw)
                answer = await requester(w, consumer)(command)
                result = decode_consume_directly_result(answer.body)
                assert result.consume_result is ConsumeResult.LATER
                assert "no listener" in (result.remark or "")

    run_virtual(main())
