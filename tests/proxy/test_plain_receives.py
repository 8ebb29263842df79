"""The fast path of receives answers as the general path, and asks the broker for the same."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.client.calls_pop import pop_command
from kourou.errors import MalformedBodyError
from kourou.model.group import SubscriptionGroup
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import PERM_WRITE, TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import FLAG_RESPONSE, RemotingCommand
from kourou.protocol.frame import encode_frame, frame_of
from kourou.proxy.cluster import ROUTE_REFRESH_S
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.pb.v2 import ClientType, Code
from kourou.proxy.plain_receives import template_of, without_attempt
from kourou.proxy.receives import AT_END, PopTerms
from kourou.remoting.connection import Connection
from tests.proxy.grpc_client import ClientCall
from tests.proxy.proxy_rig import GROUP, TOPIC, Rig, TestClient, with_rig

SIMPLE = ClientType.SIMPLE_CONSUMER
IN_GENERAL = "attempt"
"""An attempt id that no client sends: a request with it takes the general path."""
names = st.text('ab%-_é"\\ ', min_size=1, max_size=9)


async def warm(rig: Rig, **terms: Any) -> tuple[TestClient, TestClient]:
    """Return a producer and a consumer that has the connections for its pops."""
    producer, consumer = await rig.producer(), await rig.consumer(**terms)
    await producer.send(b"first")
    await consumer.ack(*await consumer.receive())
    return producer, consumer


def count(rig: Rig) -> int:
    return rig.proxy.plain_receives.count


async def answers(
    rig: Rig, consumer: TestClient, *, is_plain: bool, **terms: Any
) -> tuple[Any, list[Any]]:
    """Return status and messages of a receive, which must take the path."""
    before = count(rig)
    attempt = str(uuid.uuid4()) if is_plain else IN_GENERAL
    found = await consumer.try_receive(attempt_id=attempt, **terms)
    assert count(rig) == before + is_plain
    return found


def without_place(message: Any) -> Any:
    """Return a message without what differs from one delivery to the next."""
    system = message.system_properties
    for name in ("message_id", "receipt_handle", "queue_offset", "born_timestamp"):
        system.ClearField(name)
    for name in ("store_timestamp", "body_digest", "invisible_duration"):
        system.ClearField(name)
    return message


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("invisible_ms", [None, 30_000])
def test_messages_and_empty_polls_are_answered_as_on_the_general_path(
    invisible_ms: int | None,
) -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await warm(rig)
        found = []
        for is_plain in (True, False):
            for body in (b"1", b"2"):
                await producer.send(body, user_properties={"color": "red"}, tag="new", keys=["k"])
            status, messages = await answers(
                rig, consumer, is_plain=is_plain, invisible_ms=invisible_ms
            )
            assert await consumer.ack(*messages) == [Code.OK] * 2
            nothing = await answers(rig, consumer, is_plain=is_plain, invisible_ms=invisible_ms)
            found.append((status, [without_place(one) for one in messages], nothing))
        assert found[0] == found[1]
        assert found[0][0].code == Code.OK

    with_rig(test)


def test_requests_of_a_consumer_share_a_plan_whatever_their_attempt_ids() -> None:
    async def test(rig: Rig) -> None:
        _, consumer = await warm(rig)
        for _ in range(3):
            await answers(rig, consumer, is_plain=True)
        assert len(rig.proxy.plain_receives._plans) == 1

    with_rig(test)


def test_messages_for_other_tags_are_acknowledged_and_the_others_delivered() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await warm(rig, kind=SIMPLE)
        same_hash = ("Aa", "BB")  # brokers filter by the hash, clients by the tag
        for tag in same_hash:
            await producer.send(tag.encode(), tag=tag)
        terms: dict[str, Any] = {"expression": "Aa", "invisible_ms": 10_000}
        _, messages = await answers(rig, consumer, is_plain=True, **terms)
        assert [message.body for message in messages] == [b"Aa"]
        await consumer.ack(*messages)
        await asyncio.sleep(15)
        status, messages = await answers(rig, consumer, is_plain=True, invisible_ms=10_000)
        assert (status.code, messages) == (Code.MESSAGE_NOT_FOUND, [])

    with_rig(test)


def test_message_that_was_delivered_too_often_becomes_a_dead_letter() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(groups=(SubscriptionGroup(GROUP, retry_max_times=0),))
        producer, consumer = await warm(rig, kind=SIMPLE)
        await producer.send(b"one")
        _, messages = await answers(rig, consumer, is_plain=True, invisible_ms=10_000)
        assert [message.body for message in messages] == [b"one"]
        await asyncio.sleep(15)
        status, messages = await answers(rig, consumer, is_plain=True, invisible_ms=10_000)
        assert (status.code, status.message) == (Code.MESSAGE_NOT_FOUND, "no match message")
        assert rig.broker.components.context.topics.get(f"%DLQ%{GROUP}") is not None

    with_rig(test)


def test_messages_above_the_window_of_the_client_are_for_others_after_its_call() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await warm(rig, window=25_000)
        for number in range(4):
            await producer.send(bytes([number]) * 10_000)
        before = count(rig)
        call = consumer.receiving()
        await asyncio.sleep(1)
        assert count(rig) == before + 1
        assert len(call.messages) == 3, "the status and two messages fit into its window"
        call.cancel()
        await asyncio.sleep(2)
        other = await rig.consumer(client_id="other@1")
        assert [one.body[0] for one in await other.receive()] == [2, 3]

    with_rig(test)


def test_other_requests_take_the_general_path() -> None:
    async def test(rig: Rig) -> None:
        await rig.create(
            TopicConfig("Ordered", 1, 1),
            groups=(SubscriptionGroup("ordered", consume_message_orderly=True),),
        )
        _, consumer = await warm(rig)
        stranger = await rig.connect("stranger@1")
        nameless = await rig.connect(" ")
        stranger.group = nameless.group = GROUP
        refused: list[tuple[TestClient, dict[str, Any], Code]] = [
            (stranger, {}, Code.INTERNAL_SERVER_ERROR),
            (nameless, {}, Code.CLIENT_ID_REQUIRED),
            (consumer, {"topic": "TBW102"}, Code.ILLEGAL_TOPIC),
            (consumer, {"topic": "Unknown"}, Code.TOPIC_NOT_FOUND),
            (consumer, {"filter_type": 9}, Code.ILLEGAL_FILTER_EXPRESSION),
            (consumer, {"invisible_ms": 1}, Code.ILLEGAL_INVISIBLE_TIME),
        ]
        for client, terms, code in refused:
            before = count(rig)
            status = (await client.receiving(**terms).rest())[0].status
            assert status.code == code, status
            assert count(rig) == before
        ordered = await rig.consumer("Ordered", group="ordered", client_id="ordered@1")
        for _ in range(2):
            before = count(rig)
            assert await ordered.receive("Ordered") == []
            assert count(rig) == before

    with_rig(test)


def test_requests_follow_the_route_of_their_topic() -> None:
    async def test(rig: Rig) -> None:
        _, consumer = await warm(rig)
        await answers(rig, consumer, is_plain=True)
        await rig.create(TopicConfig(TOPIC, 1, 1, perm=PERM_WRITE))
        await asyncio.sleep(2 * ROUTE_REFRESH_S)
        await consumer.receiving().rest()  # the route is looked up when it is used
        await asyncio.sleep(1)
        before = count(rig)
        status = (await consumer.receiving().rest())[0].status
        assert status.code == Code.FORBIDDEN, status
        assert count(rig) == before

    with_rig(test)


async def held(rig: Rig, consumer: TestClient) -> tuple[ClientCall, Connection]:
    """Return a receive of the fast path that the broker holds, and the connection of its pop."""
    before = count(rig)
    call = consumer.receiving()
    await asyncio.sleep(1)
    assert count(rig) == before + 1
    (client,) = (one for one in rig.proxy._clients if one.id == "consumer@1")
    (connection,) = client.pops.pool.connections()
    return call, connection


@pytest.mark.usefixtures("each_mode")
def test_pop_of_a_cancelled_receive_takes_no_message() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await warm(rig)
        await answers(rig, consumer, is_plain=True)
        call, _ = await held(rig, consumer)
        call.cancel()
        await asyncio.sleep(0.1)
        await producer.send(b"for others")
        other = await rig.consumer(client_id="other@1")
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        assert [one.body for one in await other.receive()] == [b"for others"]
        assert loop.time() - started_s < 0.5

    with_rig(test)


@pytest.mark.usefixtures("each_mode")
def test_loss_of_the_connection_to_the_broker_is_answered() -> None:
    async def test(rig: Rig) -> None:
        _, consumer = await warm(rig)
        call, connection = await held(rig, consumer)
        connection.abort("test")
        status = (await call.rest())[0].status
        assert status.code == Code.INTERNAL_SERVER_ERROR
        assert "connection" in status.message
        assert await consumer.receive() == []  # by another connection

    with_rig(test)


def test_receive_that_the_broker_did_not_serve_is_made_again() -> None:
    async def test(rig: Rig) -> None:
        producer, consumer = await warm(rig)
        call, connection = await held(rig, consumer)
        (opaque,) = connection.pending.by_opaque
        refusal = RemotingCommand(ResponseCode.GO_AWAY, flag=FLAG_RESPONSE, opaque=opaque)
        connection.pending.complete(refusal)
        await asyncio.sleep(0.1)
        await producer.send(b"1")  # for the first pop, which the broker holds nevertheless
        await producer.send(b"2")
        assert [one.message.body for one in (await call.rest())[1:-1]] == [b"2"]

    with_rig(test)


@pytest.mark.usefixtures("each_mode")
def test_held_receives_end_when_the_proxy_stops() -> None:
    async def test(rig: Rig) -> None:
        _, consumer = await warm(rig)
        call, _ = await held(rig, consumer)
        stopping = asyncio.create_task(rig.proxy.stop())
        answered = await call.rest()
        assert answered[0].status.message == "no new message"
        await stopping

    with_rig(test)


@given(
    group=names, topic=names, tags=names, broker=names,
    batch=st.integers(min_value=1, max_value=32),
    invisible_ms=st.integers(min_value=0, max_value=10**9),
    wait_ms=st.integers(min_value=0, max_value=10**6),
)  # fmt: skip
def test_the_broker_gets_the_requests_of_the_general_path(
    group: str, topic: str, tags: str, broker: str, batch: int, invisible_ms: int, wait_ms: int
) -> None:
    subscription = SubscriptionData(topic, tags)
    template = template_of(PopTerms(topic, group, subscription, batch, invisible_ms), broker)
    assert template is not None
    command = pop_command(
        group, broker, subscription=subscription, max_messages=batch, invisible_ms=invisible_ms,
        wait_ms=wait_ms, init_mode=AT_END, attempt_id=None,
    )  # fmt: skip
    command.opaque = 77
    assert frame_of(template % (wait_ms, 77)) == encode_frame(command)


@given(
    attempt=st.one_of(st.just(""), st.uuids().map(str), st.text("a", max_size=40)),
    expression=st.one_of(names, st.uuids().map(lambda one: f"B${one}")),  # like an attempt id
    cut=st.integers(min_value=0, max_value=60),
)
def test_requests_without_their_attempt_ids_are_read_as_by_the_generated_classes(
    attempt: str, expression: str, cut: int
) -> None:
    filtered = v2.FilterExpression(expression=expression)
    asked = v2.ReceiveMessageRequest(filter_expression=filtered, attempt_id=attempt)
    whole = asked.SerializeToString()
    data = whole[: len(whole) - cut]
    try:
        rest = parse(v2.ReceiveMessageRequest, without_attempt(data))
    except MalformedBodyError:
        return  # for the general path
    if rest.attempt_id:
        return  # likewise
    expected = parse(v2.ReceiveMessageRequest, data)
    for one in (rest, expected):
        one.ClearField("attempt_id")
    assert rest == expected
