"""The fast path of acks gives the answers of the general path, and the broker the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.protocol.frame import encode_frame
from kourou.protocol.popping.headers import AckMessageRequestHeader
from kourou.protocol.popping.receipt_handles import ReceiptHandle, decode_receipt_handle
from kourou.protocol.popping.topic_names import real_topic
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import ClientType, Code
from kourou.proxy.plain_acks import PlainRequest, acknowledged_response, plan_of, read_ack
from kourou.proxy.status import ok
from tests.proxy.proxy_rig import GROUP, TOPIC, Rig, TestClient, nothing_received, with_rig
from tests.proxy.test_plain_sends import in_general_order

SIMPLE = ClientType.SIMPLE_CONSUMER
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def request_of(*entries: Any, group: str = GROUP, topic: str = TOPIC) -> Any:
    return v2.AckMessageRequest(
        group=v2.Resource(name=group), topic=v2.Resource(name=topic), entries=entries
    )


def entry_of(message: Any, handle: str | None = None) -> Any:
    properties = message.system_properties
    return v2.AckMessageEntry(
        message_id=properties.message_id,
        receipt_handle=properties.receipt_handle if handle is None else handle,
    )


def parts_of(plain: PlainRequest) -> list[tuple[str, str]]:
    """Return ids and handles."""
    return [(one.message_id.decode(), one.handle) for one in plain.entries]


async def received(rig: Rig, count: int, **terms: Any) -> tuple[TestClient, list[Any]]:
    """Return a consumer with messages that it has received."""
    consumer = await rig.consumer(kind=SIMPLE)
    await consumer.receive(**terms)
    producer = await rig.producer()
    for _ in range(count):
        await producer.send()
    messages = await consumer.receive(**terms)
    assert len(messages) == count
    return consumer, messages


async def ack(rig: Rig, consumer: TestClient, data: bytes, *, is_plain: bool) -> Any:
    """Return the answer to a request, which must take the path."""
    count = rig.proxy.plain_acks.count
    answer = await consumer.grpc.call("AckMessage", data)
    assert rig.proxy.plain_acks.count == count + is_plain
    return answer


async def both(
    rig: Rig, consumer: TestClient, entry: Callable[[int], Any], **names: str
) -> tuple[Any, Any]:
    """Return the answers of the fast path and of the general one, without what differs."""
    answers = []
    for at, is_plain in ((0, True), (1, False)):
        data = request_of(entry(at), **names).SerializeToString()
        answer = await ack(
            rig, consumer, data if is_plain else in_general_order(data), is_plain=is_plain
        )
        answer.entries[0].ClearField("message_id")
        answer.entries[0].ClearField("receipt_handle")
        answers.append(answer)
    return answers[0], answers[1]


def test_messages_are_acknowledged_and_answered_as_on_the_general_path() -> None:
    async def test(rig: Rig) -> None:
        consumer, messages = await received(rig, 3, invisible_ms=10_000)
        entries = [entry_of(message) for message in messages]
        plain, general = await both(rig, consumer, lambda at: entries[at])
        assert plain == general
        assert plain.status.code == Code.OK
        await asyncio.sleep(12)
        (again,) = await consumer.receive(invisible_ms=10_000)
        assert again.system_properties.message_id == entries[2].message_id
        entries = [entry_of(again)] * 2  # of the retry topic
        assert entries[0].receipt_handle.split(" ")[4] == "1"
        plain, _ = await both(rig, consumer, lambda at: entries[at])
        assert plain.status.code == Code.OK
        await asyncio.sleep(12)
        assert await consumer.receive(invisible_ms=10_000) == []

    with_rig(test)


def test_messages_of_one_request_are_acknowledged_by_one_batch() -> None:
    async def test(rig: Rig) -> None:
        consumer, messages = await received(rig, 20, invisible_ms=10_000)
        entries = [entry_of(message) for message in messages]
        plain = await ack(
            rig, consumer, request_of(*entries[:9]).SerializeToString(), is_plain=True
        )
        data = in_general_order(request_of(*entries[9:18]).SerializeToString())
        general = await ack(rig, consumer, data, is_plain=False)
        assert plain.status == general.status
        for answer, asked in ((plain, entries[:9]), (general, entries[9:18])):
            assert [one.message_id for one in answer.entries] == [one.message_id for one in asked]
            assert [one.receipt_handle for one in answer.entries] == [
                one.receipt_handle for one in asked
            ]
            assert {one.status.code for one in answer.entries} == {Code.OK}
        await asyncio.sleep(12)
        again = await consumer.receive(invisible_ms=10_000)
        left = {one.message_id for one in entries[18:]}
        assert {one.system_properties.message_id for one in again} == left

    with_rig(test)


def test_refusals_of_the_broker_are_answered_as_on_the_general_path() -> None:
    async def test(rig: Rig) -> None:
        consumer, (message,) = await received(rig, 1, invisible_ms=60_000)
        handle = decode_receipt_handle(message.system_properties.receipt_handle)
        other_queue = handle._replace(queue_id=7).encode()
        plain, general = await both(rig, consumer, lambda _: entry_of(message, other_queue))
        assert plain == general
        assert plain.status.code != Code.OK

    with_rig(test)


def test_other_requests_take_the_general_path() -> None:
    async def test(rig: Rig) -> None:
        consumer, (first, second) = await received(rig, 2, invisible_ms=10_000)
        handle = decode_receipt_handle(second.system_properties.receipt_handle)
        elsewhere = entry_of(second, handle._replace(broker_name="broker-z").encode())
        two = request_of(entry_of(first), elsewhere).SerializeToString()
        codes = [one.status.code for one in (await ack(rig, consumer, two, is_plain=False)).entries]
        assert (codes[0], codes[1] == Code.OK) == (Code.OK, False)
        far = entry_of(second, handle._replace(offset=handle.start_offset + 4_096).encode())
        apart = request_of(entry_of(first), far).SerializeToString()
        assert len((await ack(rig, consumer, apart, is_plain=False)).entries) == 2
        many = request_of(*[entry_of(second)] * 257).SerializeToString()
        assert (await ack(rig, consumer, many, is_plain=False)).status.code == Code.OK
        stranger = await rig.connect("stranger@1")
        one = request_of(entry_of(first)).SerializeToString()
        assert (await ack(rig, stranger, one, is_plain=False)).status.code == Code.OK
        nameless = await rig.connect(" ")
        refused = await ack(rig, nameless, one, is_plain=False)
        assert refused.status.code == Code.CLIENT_ID_REQUIRED
        system = request_of(entry_of(first), topic="TBW102").SerializeToString()
        assert (await ack(rig, consumer, system, is_plain=False)).status.code != Code.OK
        no_handle = request_of(entry_of(first, "1 2")).SerializeToString()
        assert (await ack(rig, consumer, no_handle, is_plain=False)).status.code != Code.OK
        await asyncio.sleep(11)
        late = await ack(rig, consumer, one, is_plain=False)
        assert late.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE

    with_rig(test)


def test_message_that_is_renewed_for_its_client_is_acknowledged() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.consumer()
        await consumer.receive()
        producer = await rig.producer()
        await producer.send()
        await producer.send()
        first, second = await consumer.receive()
        data = request_of(entry_of(first)).SerializeToString()
        assert (await ack(rig, consumer, data, is_plain=True)).status.code == Code.OK
        await nothing_received(consumer, 14)
        data = request_of(entry_of(second)).SerializeToString()  # with its first handle
        assert (await ack(rig, consumer, data, is_plain=False)).status.code == Code.OK
        await nothing_received(consumer, 50)

    with_rig(test)


@pytest.mark.parametrize("messages", [1, 3])
def test_loss_of_the_connection_to_the_broker_is_answered(messages: int) -> None:
    async def test(rig: Rig) -> None:
        consumer, found = await received(rig, messages, invisible_ms=60_000)
        count = rig.proxy.plain_acks.count
        call = consumer.grpc.open("AckMessage", 9.0)
        call.send(request_of(*map(entry_of, found)), ends=True)
        for _ in range(1_000):
            if rig.proxy.plain_acks.count > count:
                break
            await asyncio.sleep(0.000_01)
        assert not call.messages
        members = rig.broker.components.context.clients.consumer_group(GROUP)
        assert members is not None
        for peer in list(members.members):
            peer.close("test")
        answer = await call.next()
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        assert len(answer.entries) == messages
        assert all("connection" in one.status.message for one in answer.entries)
        for message in found:
            assert await consumer.ack(message) == [Code.OK]  # the client tries again

    with_rig(test)


@given(
    group=texts,
    topic=texts,
    messages=st.lists(st.tuples(texts, texts), min_size=1, max_size=4),
    more=st.binary(max_size=20),
)
def test_requests_are_read_as_by_the_generated_classes(
    group: str, topic: str, messages: list[tuple[str, str]], more: bytes
) -> None:
    entries = [v2.AckMessageEntry(message_id=name, receipt_handle=text) for name, text in messages]
    data = request_of(*entries, group=group, topic=topic).SerializeToString()
    plain = read_ack(data)
    if (
        group
        and topic
        and all(name and text and f"{name}{text}".isascii() for name, text in messages)
    ):
        assert isinstance(plain, PlainRequest)
        assert parts_of(plain) == messages
        named = parse(v2.AckMessageRequest, plain.head)
        assert (named.group.name, named.topic.name) == (group, topic)
        results = [
            v2.AckMessageResultEntry(message_id=name, receipt_handle=text, status=ok())
            for name, text in messages
        ]
        response = v2.AckMessageResponse(status=ok(), entries=results)
        assert acknowledged_response(plain.entries) == response.SerializeToString()
    for other in (data + more, data[: len(data) // 2] + more):
        read = read_ack(other)
        if read is not None and plan_of(read.head, "0", "b") is not None:
            expected = parse(v2.AckMessageRequest, other)
            assert parts_of(read) == [
                (one.message_id, one.receipt_handle) for one in expected.entries
            ]


@given(
    group=st.text("ab%-_", min_size=1, max_size=9),
    topic=st.text("ab%-_", min_size=1, max_size=9),
    broker=st.text('b%é"\\ ', max_size=9),
    kind=st.sampled_from("012"),
    queue_id=st.integers(min_value=0, max_value=2**31 - 1),
    offset=st.integers(min_value=0, max_value=2**62),
)
def test_the_broker_gets_the_requests_of_the_general_path(
    group: str, topic: str, broker: str, kind: str, queue_id: int, offset: int
) -> None:
    receipt = ReceiptHandle(1, 2, 3, 4, kind, broker, queue_id, offset)
    head = request_of(group=group, topic=topic).SerializeToString()
    plan = plan_of(head, kind, broker)
    header = AckMessageRequestHeader(
        consumer_group=group,
        topic=real_topic(topic, group, kind),
        queue_id=queue_id,
        extra_info=receipt.encode(),
        offset=offset,
        broker_name=broker,
    )
    command = request(RequestCode.ACK_MESSAGE, header)
    command.opaque = 77
    assert plan is not None
    handle = receipt._replace(commit_log_offset=5).encode()
    assert plan.frame(handle, queue_id, offset, 77) == encode_frame(command)
