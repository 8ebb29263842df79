"""Consumers of the proxy: receives, acknowledgments, renewal, and messages of departed clients."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest

from kourou.client.calls_send import Outgoing, send_command
from kourou.errors import CodecMissingError, ServiceNotAvailableError, SystemBusyError
from kourou.model import properties as names
from kourou.model.group import SubscriptionGroup
from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.compression import CompressionType, compress
from kourou.protocol.popping.receipt_handles import ReceiptHandle
from kourou.protocol.record import decode as record_decode
from kourou.proxy import plain_messages
from kourou.proxy.bodies import EncodedBody, encoded_body
from kourou.proxy.clients import CLIENT_LOST_S
from kourou.proxy.deliveries import Deliveries
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType, Code
from kourou.proxy.received_writes import WriteLimits
from tests.proxy.proxy_rig import GROUP, TOPIC, Mode, Rig, nothing_received, with_rig

pytestmark = pytest.mark.usefixtures("each_mode")

SIMPLE = ClientType.SIMPLE_CONSUMER


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def test_message_is_not_received_again_after_its_ack() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        await producer.send(b"one")
        [message] = await consumer.receive(invisible_ms=10_000)
        assert await consumer.ack(message) == [Code.OK]
        assert await consumer.ack(message) == [Code.OK]
        await asyncio.sleep(15)
        assert await consumer.receive(invisible_ms=10_000) == []

    with_rig(test)


def test_receives_take_the_fast_path_of_the_broker() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        for _ in range(3):
            await producer.send(b"one")
            await consumer.ack(*await consumer.receive(invisible_ms=30_000))
        declined = rig.broker.components.popping.fast_pops.declined
        del declined["cut off"]
        assert declined == {"group": 1}, "only the first pop, which creates the group"

    with_rig(test)


def test_messages_acknowledged_by_one_call_are_not_received_again() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        for body in (b"1", b"2", b"3"):
            await producer.send(body)
        messages = await consumer.receive(invisible_ms=10_000)
        assert await consumer.ack(*messages[1:]) == [Code.OK, Code.OK]
        await asyncio.sleep(15)
        assert bodies(await consumer.receive(invisible_ms=10_000)) == [b"1"]

    with_rig(test)


def test_redelivered_messages_acknowledged_by_one_call_are_not_received_again() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        for body in (b"1", b"2"):
            await producer.send(body)
        assert len(await consumer.receive(invisible_ms=10_000)) == 2
        await asyncio.sleep(15)
        again = await consumer.receive(invisible_ms=10_000)
        assert bodies(again) == [b"1", b"2"]
        assert await consumer.ack(*again) == [Code.OK, Code.OK]
        await asyncio.sleep(15)
        assert await consumer.receive(invisible_ms=10_000) == []

    with_rig(test)


def test_message_is_received_again_after_its_invisible_duration() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        await producer.send(b"one")
        [first] = await consumer.receive(invisible_ms=10_000)
        await asyncio.sleep(12)
        [again] = await consumer.receive(invisible_ms=10_000)
        assert again.body == b"one"
        assert again.system_properties.delivery_attempt == 2
        assert await consumer.ack(first) == [Code.INVALID_RECEIPT_HANDLE]

    with_rig(test)


def test_receive_returns_a_message_sent_while_it_waits() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        loop = asyncio.get_running_loop()
        call = consumer.receiving()
        await asyncio.sleep(2)
        sent_s = loop.time()
        await producer.send(b"late")
        answers = await call.rest()
        assert answers[0].status.code == Code.OK
        assert answers[1].message.body == b"late"
        assert loop.time() - sent_s < 0.2

    with_rig(test)


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_message_for_an_ended_receive_is_visible_within_two_seconds(end: str) -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        consumer = await rig.consumer(client_id="leaver")
        other = await rig.consumer(client_id="other")
        call = consumer.receiving()
        await asyncio.sleep(1)
        if end == "cancel":
            call.cancel()
        else:
            consumer.grpc.close()
        await asyncio.sleep(0.1)
        await producer.send(b"one")
        await asyncio.sleep(2)
        assert bodies(await other.receive()) == [b"one"]

    with_rig(test)


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_message_sent_after_the_end_of_a_receive_is_visible_at_once(
    end: str,
) -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        consumer = await rig.consumer(client_id="leaver")
        other = await rig.consumer(client_id="other")
        call = consumer.receiving()
        await asyncio.sleep(1)
        if end == "cancel":
            call.cancel()
        else:
            consumer.grpc.close()
        await asyncio.sleep(0.1)
        await producer.send(b"one")
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        assert bodies(await other.receive()) == [b"one"]
        assert loop.time() - started_s < 0.1

    with_rig(test)


def test_cancelled_receive_leaves_the_other_receives_of_its_client() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(TopicConfig("Bills", 1, 1))
        producer, consumer = await rig.producer(TOPIC, "Bills"), await rig.consumer(TOPIC, "Bills")
        cancelled, waiting = consumer.receiving(), consumer.receiving("Bills")
        await asyncio.sleep(1)
        cancelled.cancel()
        await asyncio.sleep(0.1)
        await producer.send(b"bill", "Bills")
        await producer.send(b"order")
        assert [one.message.body for one in await waiting.rest()][1:-1] == [b"bill"]
        await asyncio.sleep(2)
        assert bodies(await consumer.receive()) == [b"order"]

    with_rig(test)


@pytest.mark.parametrize("invisible_ms", [None, 30_000])
@pytest.mark.parametrize("end", ["cancel", "close"])
def test_messages_that_a_slow_client_did_not_read_are_visible_soon(
    end: str, invisible_ms: int | None
) -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        slow = await rig.consumer(client_id="slow", window=25_000)
        other = await rig.consumer(client_id="other", kind=SIMPLE)
        for number in range(8):
            await producer.send(b"%d" % number * 10_000)
        call = slow.receiving(invisible_ms=invisible_ms)
        await asyncio.sleep(4)
        assert len(call.messages) == 3, "the status and two messages fit into its window"
        if end == "cancel":
            call.cancel()
        else:
            slow.grpc.close()
        await asyncio.sleep(2)
        found = bodies(await other.receive(invisible_ms=10_000))
        assert {body[:1] for body in found} == {b"%d" % number for number in range(2, 8)}

    with_rig(test)


def test_messages_beyond_the_limit_of_a_slow_client_are_visible_soon() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        slow = await rig.consumer(client_id="slow", window=1_000)
        other = await rig.consumer(client_id="other", kind=SIMPLE)
        for number in range(8):
            await producer.send(b"%d" % number * 10_000)
        calls = [slow.receiving(batch_size=2, invisible_ms=60_000) for _ in range(3)]
        await asyncio.sleep(3)
        found = bodies(await other.receive(invisible_ms=60_000))
        assert len(found) == 8 - 2 * 2 - 1, "the last receive has only the message in its stream"
        assert [len(call.messages) for call in calls] == [1, 1, 1]  # their status

    with_rig(test, write_limits=WriteLimits(connection_bytes_max=25_000))


def test_bodies_are_decompressed_one_at_a_time_as_the_client_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decompressed: list[int] = []

    def counting(body: bytes, *terms: Any) -> EncodedBody:
        encoded = encoded_body(body, *terms)
        decompressed.append(len(encoded.body))
        return encoded

    monkeypatch.setattr(plain_messages, "encoded_body", counting)

    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        consumer = await rig.consumer(window=25_000)
        consumer.grpc.metadata["x-mq-language"] = "RUST"
        assert await consumer.receive() == []
        for _ in range(4):
            await producer.send(gzip.compress(bytes(100_000)), body_encoding=v2.Encoding.GZIP)
        call = consumer.receiving()
        await asyncio.sleep(1)
        assert decompressed == [100_000]
        call.read_on(1_000_000)
        answers = await call.rest()
        assert [len(answer.message.body) for answer in answers[1:-1]] == [100_000] * 4
        assert decompressed == [100_000] * 4

    with_rig(test)


@pytest.mark.parametrize("group", [GROUP, "ordered"])
def test_body_that_the_client_can_decompress_needs_no_package_of_the_proxy(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_package(*_: Any, **__: Any) -> bytes:
        raise CodecMissingError("zstandard")

    monkeypatch.setattr(record_decode, "decompress", without_package)
    body = compress(b"plain", 3, CompressionType.ZSTD)

    async def test(rig: Rig) -> None:
        await rig.create(groups=(SubscriptionGroup("ordered", consume_message_orderly=True),))
        consumer = await rig.consumer(group=group, kind=SIMPLE)
        consumer.grpc.metadata["x-mq-language"] = "JAVA"
        assert await consumer.receive(invisible_ms=10_000) == []
        outgoing = Outgoing(
            TOPIC, ("id",), body, f"{names.UNIQ_KEY}\x01id",
            sys_flag=CompressionType.ZSTD.sys_flag,
        )  # fmt: skip
        command = send_command(outgoing, MessageQueue(TOPIC, "broker-a", 0), TOPIC, 1, 4)
        cluster = rig.proxy.cluster
        await cluster.pool.request(await cluster.address(TOPIC, "broker-a"), command, 3.0)
        [message] = await consumer.receive(invisible_ms=10_000)
        assert message.body == body
        assert message.system_properties.body_encoding == v2.Encoding.GZIP

    with_rig(test)


def test_held_messages_are_visible_soon_after_their_consumer_terminated() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        consumer = await rig.consumer(client_id="leaver")
        other = await rig.consumer(client_id="other")
        await producer.send(b"one")
        assert bodies(await consumer.receive()) == [b"one"]
        asked = v2.NotifyClientTerminationRequest(group=v2.Resource(name=GROUP))
        await consumer.grpc.call("NotifyClientTermination", asked)
        await asyncio.sleep(2)
        assert bodies(await other.receive()) == [b"one"]

    with_rig(test)


def test_messages_that_a_consumer_reads_after_its_termination_are_visible_soon() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        slow = await rig.consumer(client_id="slow", window=25_000)
        other = await rig.consumer(client_id="other")
        for number in range(4):
            await producer.send(b"%d" % number * 10_000)
        call = slow.receiving()
        await asyncio.sleep(1)
        assert len(call.messages) == 3, "the status and two messages fit into its window"
        asked = v2.NotifyClientTerminationRequest(group=v2.Resource(name=GROUP))
        await slow.grpc.call("NotifyClientTermination", asked)
        call.read_on(100_000)
        assert len(await call.rest()) == 1 + 4 + 1
        await asyncio.sleep(2)
        assert len(await other.receive()) == 4

    with_rig(test)


def test_held_messages_of_a_dead_consumer_are_visible_before_it_expires() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        consumer = await rig.consumer(client_id="dead")
        other = await rig.consumer(client_id="other")
        await producer.send(b"one")
        assert bodies(await consumer.receive()) == [b"one"]
        consumer.grpc.close()
        await asyncio.sleep(CLIENT_LOST_S + 5 + 2)
        assert bodies(await other.receive()) == [b"one"]

    with_rig(test)


def test_consumer_that_reconnects_keeps_the_messages_that_it_holds() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        consumer = await rig.consumer(client_id="again")
        other = await rig.consumer(client_id="other")
        await producer.send(b"one")
        [message] = await consumer.receive()
        consumer.grpc.close()
        await asyncio.sleep(5)
        back = await rig.consumer(client_id="again")
        for _ in range(15):
            assert await other.receive() == []
            await back.heartbeat(ClientType.PUSH_CONSUMER)
        assert await back.ack(message) == [Code.OK]
        for _ in range(15):
            assert await other.receive() == []

    with_rig(test)


def test_renewed_message_stays_invisible_and_is_acknowledged_by_its_first_handle() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        await producer.send(b"one")
        [message] = await consumer.receive()
        await nothing_received(consumer, 30)
        assert await consumer.ack(message) == [Code.OK]
        await nothing_received(consumer, 50)

    with_rig(test)


def test_messages_are_renewed_in_the_group_of_their_receive() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        other = await rig.consumer(group="audit", client_id="other")
        assert await consumer.receive() == []
        assert await other.receive() == []
        await producer.send(b"one")
        consumer.group, settled = "audit", consumer.group
        [message] = await consumer.receive()
        await nothing_received(consumer, 30, other)
        assert await consumer.ack(message) == [Code.OK]
        consumer.group = settled
        [message] = await consumer.receive()
        assert message.system_properties.delivery_attempt == 1
        assert await consumer.ack(message) == [Code.OK]
        await nothing_received(consumer, 20, other)

    with_rig(test)


async def stall_next_renewal(rig: Rig) -> None:
    """Return with the renewal of a message that was received just now in progress.

    The broker answers nothing until the network is healed.
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(48)
    rig.network.stall(rig.broker.address)
    await asyncio.sleep(5.5 - loop.time() % 5)  # renewals run every 5 s since the start


def test_message_acknowledged_during_its_renewal_is_not_received_again() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        await producer.send(b"one")
        [message] = await consumer.receive()
        await stall_next_renewal(rig)
        acknowledging = asyncio.create_task(consumer.ack(message))
        await asyncio.sleep(0.5)
        rig.network.heal(rig.broker.address)
        assert await acknowledging == [Code.OK]
        await nothing_received(consumer, 30)

    with_rig(test, mode=Mode.CLUSTER)


def test_duration_changed_during_a_renewal_applies() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        await producer.send(b"one")
        [message] = await consumer.receive()
        await stall_next_renewal(rig)
        changing = asyncio.create_task(consumer.change_invisible(message, 10_000))
        await asyncio.sleep(0.5)
        rig.network.heal(rig.broker.address)
        assert (await changing).status.code == Code.OK
        await asyncio.sleep(12)
        assert bodies(await consumer.receive()) == [b"one"]

    with_rig(test, mode=Mode.CLUSTER)


def test_message_of_a_client_that_leaves_during_its_renewal_is_visible_soon() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        consumer = await rig.consumer(client_id="leaver")
        other = await rig.consumer(client_id="other")
        await producer.send(b"one")
        assert bodies(await consumer.receive()) == [b"one"]
        await stall_next_renewal(rig)
        asked = v2.NotifyClientTerminationRequest(group=v2.Resource(name=GROUP))
        terminating = asyncio.create_task(consumer.grpc.call("NotifyClientTermination", asked))
        await asyncio.sleep(0.5)
        rig.network.heal(rig.broker.address)
        await terminating
        await asyncio.sleep(2)
        assert bodies(await other.receive()) == [b"one"]

    with_rig(test, mode=Mode.CLUSTER)


def test_message_is_renewed_after_refusals_of_a_broker_that_has_no_master_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusals = [SystemBusyError(2, "[REJECTREQUEST]"), ServiceNotAvailableError(14, "unconfirmed")]
    change = Deliveries.change

    async def change_later(*terms: Any, **options: Any) -> ReceiptHandle:
        if refusals:
            raise refusals.pop()
        return await change(*terms, **options)

    monkeypatch.setattr(Deliveries, "change", change_later)

    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        await producer.send(b"one")
        [message] = await consumer.receive()
        await nothing_received(consumer, 20)
        assert refusals == []
        assert await consumer.ack(message) == [Code.OK]

    with_rig(test)


def test_all_due_messages_are_renewed_at_once() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        for number in range(300):
            await producer.send(b"%d" % number)
        received = sum([len(await consumer.receive()) for _ in range(10)])
        assert received == 300
        for _ in range(8):
            await consumer.heartbeat(ClientType.PUSH_CONSUMER)
            await asyncio.sleep(10)
        assert await consumer.receive() == []

    with_rig(test)


def test_message_of_a_push_consumer_is_visible_again_after_its_changed_duration() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer()
        await producer.send(b"one")
        [message] = await consumer.receive()
        changed = await consumer.change_invisible(message, 60_000)
        assert changed.status.code == Code.OK
        await asyncio.sleep(63)
        assert bodies(await consumer.receive()) == [b"one"]

    with_rig(test)


def test_change_of_the_invisible_duration_returns_a_handle_that_replaces_the_old_one() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        await producer.send(b"one")
        [message] = await consumer.receive(invisible_ms=10_000)
        changed = await consumer.change_invisible(message, 60_000)
        assert changed.receipt_handle != message.system_properties.receipt_handle
        await asyncio.sleep(12)
        assert await consumer.ack(message) == [Code.INVALID_RECEIPT_HANDLE]
        message.system_properties.receipt_handle = changed.receipt_handle
        assert await consumer.ack(message) == [Code.OK]
        await asyncio.sleep(60)
        assert await consumer.receive(invisible_ms=10_000) == []

    with_rig(test)


def test_forwarded_message_is_in_the_dead_letter_topic_and_not_received_again() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        await producer.send(b"bad")
        [message] = await consumer.receive(invisible_ms=10_000)
        asked = v2.ForwardMessageToDeadLetterQueueRequest(
            group=v2.Resource(name=GROUP),
            topic=message.topic,
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        answer = await consumer.grpc.call("ForwardMessageToDeadLetterQueue", asked)
        assert answer.status.code == Code.OK
        dead = rig.broker.components.context.topics.get(f"%DLQ%{GROUP}")
        assert dead is not None
        await asyncio.sleep(15)
        assert await consumer.receive(invisible_ms=10_000) == []
        [letter] = await consumer.receive(f"%DLQ%{GROUP}", invisible_ms=10_000)
        assert letter.body == b"bad"

    with_rig(test)


def test_message_that_cannot_be_acknowledged_becomes_one_dead_letter() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(TopicConfig("Shrinking", 2, 2))
        producer = await rig.producer("Shrinking")
        consumer = await rig.consumer("Shrinking", kind=SIMPLE)
        for _ in range(2):
            await producer.send(b"bad", "Shrinking")
        found = [
            *await consumer.receive("Shrinking", invisible_ms=60_000),
            *await consumer.receive("Shrinking", invisible_ms=60_000),
        ]
        [message] = [one for one in found if one.system_properties.queue_id == 1]
        await rig.create(TopicConfig("Shrinking", 1, 1))
        assert Code.OK not in await consumer.ack(message, topic="Shrinking")
        asked = v2.ForwardMessageToDeadLetterQueueRequest(
            group=v2.Resource(name=GROUP),
            topic=message.topic,
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        answer = await consumer.grpc.call("ForwardMessageToDeadLetterQueue", asked)
        assert answer.status.code == Code.OK, "clients repeat what fails, and each makes a letter"

    with_rig(test)


def test_message_becomes_a_dead_letter_after_its_last_attempt() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(groups=(SubscriptionGroup(GROUP, retry_max_times=1),))
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        await producer.send(b"bad")
        for attempt in (1, 2):
            [message] = await consumer.receive(invisible_ms=10_000)
            assert message.system_properties.delivery_attempt == attempt
            await asyncio.sleep(15)
        assert await consumer.receive(invisible_ms=10_000) == []
        assert rig.broker.components.context.topics.get(f"%DLQ%{GROUP}") is not None

    with_rig(test)


def test_ordered_messages_wait_for_the_ack_of_their_predecessors() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(
            TopicConfig("Steps", 1, 1, attributes={"message.type": "FIFO"}),
            groups=(SubscriptionGroup("ordered", consume_message_orderly=True),),
        )
        producer = await rig.producer("Steps")
        consumer = await rig.consumer("Steps", group="ordered")
        assert consumer.settings.subscription.fifo
        for body in (b"1", b"2", b"3"):
            await producer.send(body, "Steps", message_group="g")
        first = await consumer.receive("Steps", batch_size=2, attempt_id="a")
        assert bodies(first) == [b"1", b"2"]
        assert await consumer.receive("Steps", batch_size=2, attempt_id="b") == []
        again = await consumer.receive("Steps", batch_size=2, attempt_id="a")
        assert bodies(again) == [b"1", b"2"]
        assert await consumer.ack(*again, topic="Steps") == [Code.OK, Code.OK]
        assert bodies(await consumer.receive("Steps", attempt_id="c")) == [b"3"]

    with_rig(test)


def test_deliveries_of_ordered_messages_are_counted_by_message() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(
            TopicConfig("Steps", 1, 1, attributes={"message.type": "FIFO"}),
            groups=(SubscriptionGroup("ordered", consume_message_orderly=True),),
        )
        producer = await rig.producer("Steps")
        consumer = await rig.consumer("Steps", group="ordered", kind=SIMPLE)
        for body in (b"1", b"2"):
            await producer.send(body, "Steps", message_group="g")
        deliveries = []
        for acks in (False, False, True, False, True):
            [message] = await consumer.receive("Steps", batch_size=1, invisible_ms=10_000)
            deliveries.append((message.body, message.system_properties.delivery_attempt))
            if acks:
                assert await consumer.ack(message, topic="Steps") == [Code.OK]
            else:
                await asyncio.sleep(12)
        assert deliveries == [(b"1", 1), (b"1", 2), (b"1", 3), (b"2", 1), (b"2", 2)]

    with_rig(test)


@pytest.mark.parametrize(
    ("kind", "expression"), [(v2.FilterType.TAG, "red"), (v2.FilterType.SQL, "size > 5")]
)
def test_receive_returns_only_messages_that_match(kind: v2.FilterType, expression: str) -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await rig.producer(), await rig.consumer(kind=SIMPLE)
        await producer.send(b"no", tag="blue", user_properties={"size": "1"})
        await producer.send(b"yes", tag="red", user_properties={"size": "9"})
        found = await consumer.receive(invisible_ms=10_000, filter_type=kind, expression=expression)
        assert bodies(found) == [b"yes"]

    with_rig(test)


def test_unknown_filter_type_is_refused_by_its_code() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.consumer(kind=SIMPLE)
        call = consumer.receiving(invisible_ms=10_000, filter_type=99)
        status, _ = await call.rest()
        assert status.status.code == Code.ILLEGAL_FILTER_EXPRESSION

    with_rig(test)


def test_receive_that_is_not_a_message_ends_with_a_status() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.consumer()
        call = consumer.grpc.open("ReceiveMessage", 9.0)
        call.send(b"\xff\xff", ends=True)
        [answer] = await call.rest()
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR

    with_rig(test)
