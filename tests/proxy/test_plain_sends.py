"""The fast path of sends gives the answers and the messages of the general path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kourou.model.topic import TopicConfig
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import Code, MessageType
from kourou.proxy.plain_sends import stored_response
from kourou.proxy.status import ok
from tests.proxy.grpc_client import ClientCall
from tests.proxy.proxy_rig import Mode, Rig, TestClient, with_rig
from tests.proxy.test_plain_requests import encoded, message


def in_general_order(request: bytes) -> bytes:
    """Return a request for the general path: an unknown field follows its last one."""
    return request + b"\xf8\x3f\x01"


async def warm(rig: Rig) -> TestClient:
    """Return a producer, with route and connection known to the proxy."""
    producer = await rig.producer()
    await producer.send()
    return producer


async def answers(rig: Rig, producer: TestClient, request: bytes) -> list[Any]:
    """Send a request on the fast path and on the general one; return the answers."""
    found = []
    for data, grows in ((request, 1), (in_general_order(request), 0)):
        count = rig.proxy.plain_sends.count
        found.append(await producer.grpc.call("SendMessage", data))
        assert rig.proxy.plain_sends.count == count + grows
    return found


async def in_flight(rig: Rig, producer: TestClient) -> ClientCall:
    """Return a call on the fast path that the broker has not answered."""
    count = rig.proxy.plain_sends.count
    call = producer.grpc.open("SendMessage", 9.0)
    call.send(encoded(message()), ends=True)
    for _ in range(1_000):
        if rig.proxy.plain_sends.count > count:
            break
        await asyncio.sleep(0.000_01)
    assert not call.messages
    return call


@pytest.mark.usefixtures("each_mode")
def test_plain_messages_are_stored_and_answered_as_on_the_general_path() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await warm(rig), await rig.consumer()
        await consumer.receive()
        sent = message(tag="a", keys=["k1", "k2"], user_properties={"color": "réd"})
        plain, general = await answers(rig, producer, encoded(sent))
        assert plain.status.code == Code.OK
        assert general.entries[0].offset == plain.entries[0].offset + 1
        general.entries[0].offset = plain.entries[0].offset
        assert plain == general
        first, second = await consumer.receive()
        for one in (first, second):
            for field in ("receipt_handle", "store_timestamp", "queue_offset"):
                one.system_properties.ClearField(field)
        assert first == second
        assert list(first.system_properties.keys) == ["k1", "k2"]
        assert first.user_properties["color"] == "réd"

    with_rig(test)


@pytest.mark.usefixtures("each_mode")
def test_refusals_of_the_broker_are_answered_as_on_the_general_path() -> None:
    async def test(rig: Rig) -> None:
        producer = await warm(rig)
        plain, general = await answers(rig, producer, encoded(message(body=b"x" * 5_000)))
        assert plain.status.code == Code.INTERNAL_SERVER_ERROR
        assert plain == general

    with_rig(test, max_message_size_bytes=4_000)


def test_messages_of_another_type_than_the_topics_take_the_general_path() -> None:
    async def test(rig: Rig) -> None:
        producer = await warm(rig)
        await rig.create(TopicConfig("Ordered", 1, 1, attributes={"message.type": "FIFO"}))
        count = rig.proxy.plain_sends.count
        for topic, group in (("Orders", "g"), ("Ordered", "")):
            answer = await producer.try_send(topic=topic, message_group=group)
            assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert rig.proxy.plain_sends.count == count

    with_rig(test)


@pytest.mark.usefixtures("each_mode")
def test_messages_of_a_group_share_the_queue_of_the_general_path() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(TopicConfig("Ordered", 8, 8, attributes={"message.type": "FIFO"}))
        producer = await rig.producer("Ordered")
        for group in ("a", "b", "c", "d"):
            terms: dict[str, Any] = {"message_type": MessageType.FIFO, "message_group": group}
            await producer.send(topic="Ordered", **terms)
            sent = message(**terms)
            sent.topic.name = "Ordered"
            plain, general = await answers(rig, producer, encoded(sent))
            # Of the first message, of the plain one, of the general one.
            offset = plain.entries[0].offset
            assert (plain.status.code, general.entries[0].offset) == (Code.OK, offset + 1)

    with_rig(test)


def test_a_call_without_client_id_is_refused() -> None:
    async def test(rig: Rig) -> None:
        await warm(rig)
        nameless = await rig.connect(" ")
        answer = await nameless.grpc.call("SendMessage", encoded(message()))
        assert answer.status.code == Code.CLIENT_ID_REQUIRED

    with_rig(test)


def test_a_broker_in_the_process_gets_messages_without_frames() -> None:
    async def test(rig: Rig) -> None:
        producer = await warm(rig)
        local = rig.proxy.cluster.local_sends("{}:{}".format(*rig.broker.address))
        assert local is not None
        await producer.send()  # creates the queue, which the fast paths leave to the general path
        declined = local.declined
        for connection in rig.proxy.cluster.pool.connections():
            connection.abort("test")
        count = rig.proxy.plain_sends.count
        assert await producer.send()
        assert (rig.proxy.plain_sends.count, local.declined) == (count + 1, declined)

    with_rig(test)


def test_loss_of_the_connection_to_the_broker_is_answered() -> None:
    async def test(rig: Rig) -> None:
        producer = await warm(rig)
        call = await in_flight(rig, producer)
        for connection in rig.proxy.cluster.pool.connections():
            connection.abort("test")
        answer = await call.next()
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        assert "connection" in answer.status.message
        assert await producer.send()

    with_rig(test, mode=Mode.CLUSTER)


def test_answer_of_a_cancelled_call_is_dropped() -> None:
    async def test(rig: Rig) -> None:
        producer = await warm(rig)
        call = await in_flight(rig, producer)
        call.cancel()
        entry = await producer.send()
        assert entry.offset == 2  # the cancelled one is stored too

    with_rig(test)


def test_response_is_that_of_the_generated_classes() -> None:
    for offset in (0, 1, 127, 128, 1 << 40):
        for transaction_id in ("", "T" * 34):
            entry = v2.SendResultEntry(
                status=ok(), message_id="M" * 34, transaction_id=transaction_id, offset=offset
            )
            expected = v2.SendMessageResponse(status=ok(), entries=[entry]).SerializeToString()
            assert stored_response(b"M" * 34, transaction_id.encode(), offset) == expected
