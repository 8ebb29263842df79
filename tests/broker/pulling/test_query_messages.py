"""Queries of messages by key, unique id and tag within a span of store times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import pytest

from kourou.broker.pulling.query import MESSAGES_MAX, SEARCHES_MAX, MessageQueryHandler
from kourou.broker.writing.index_follower import IndexFollower
from kourou.model import properties as names
from kourou.model.msgid import UniqueIdGenerator
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.pulling import QueryMessageRequestHeader
from kourou.protocol.record.decode import decode_messages
from kourou.store.config import StoreConfig
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.golden_exchanges import exchanges
from tests.store.golden import draft_of

LONG_MAX = 2**63 - 1


def handler(broker: SimulatedBroker) -> MessageQueryHandler:
    return broker.handlers.messages


async def query(broker: SimulatedBroker, key: str, **fields: Any) -> RemotingCommand:
    times: dict[str, Any] = {
        "topic": "T",
        "max_num": 32,
        "begin_timestamp": 0,
        "end_timestamp": LONG_MAX,
    } | fields
    header = QueryMessageRequestHeader(key=key, **times)
    return await broker.ask(handler(broker).on_query_message, header)


async def found(broker: SimulatedBroker, key: str, **fields: Any) -> list[bytes]:
    answer = await query(broker, key, **fields)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND), answer.remark
    return [message.body for message in decode_messages(answer.body or b"")]


async def send(broker: SimulatedBroker, body: bytes, queue_id: int = 0, **properties: str) -> None:
    await broker.store_messages([broker.draft(body, queue_id=queue_id, properties=properties)])


P = ParamSpec("P")
R = TypeVar("R")


async def after_a_second(search: Callable[P, R], /, *arguments: P.args, **named: P.kwargs) -> R:
    """Run the search after a delay, like a slow thread."""
    await asyncio.sleep(1)
    return search(*arguments, **named)


async def follow(broker: SimulatedBroker) -> None:
    """Index the log up to its end."""
    following = IndexFollower(broker.store, broker.runtime.offload, broker.clock)
    following.start()
    while broker.store.index_lag_bytes:  # noqa: ASYNC110 - in virtual time
        await asyncio.sleep(0.1)
    await following.stop()


@pytest.mark.parametrize("is_followed", [True, False])
def test_a_message_is_found_by_each_of_its_keys_its_id_and_its_tags(*, is_followed: bool) -> None:
    async def test(broker: SimulatedBroker) -> None:
        ids = UniqueIdGenerator("10.0.0.7", 4711, lambda: 99)
        sent = [ids.next(broker.clock.now_ms()) for _ in range(6)]
        for number, unique_id in enumerate(sent):
            properties = {
                names.UNIQ_KEY: unique_id,
                names.KEYS: f"k-{number} all größe-{number}",
                names.TAGS: f"tag-{number % 2}",
            }
            await send(broker, b"%d" % number, number % 4, **properties)
        if is_followed:
            await follow(broker)

        assert await found(broker, "k-3") == [b"3"]
        assert await found(broker, "größe-4") == [b"4"]
        assert await found(broker, sent[5]) == [b"5"]
        assert await found(broker, sent[5], is_unique_key=True) == [b"5"]
        assert await found(broker, sent[5], index_type="U") == [b"5"]
        assert await found(broker, "all") == [b"%d" % number for number in range(6)]
        assert await found(broker, "tag-1", index_type="T") == [b"1", b"3", b"5"]
        for key, kind in (
            ("tag-1", "K"), ("k-3", "T"), ("k-3", "U"), ("T#tag-1", "K"), ("", "K"), ("", "T"),
        ):  # fmt: skip
            assert await found(broker, key, index_type=kind) == [], (key, kind)

    run_with_broker(test)


def test_a_rebuilt_index_finds_all_messages_by_key_id_and_time() -> None:
    ids = UniqueIdGenerator("10.0.0.7", 4711, lambda: 99)
    sent: list[str] = []
    at_ms: list[int] = []

    async def fill(broker: SimulatedBroker) -> None:
        for number in range(40):
            await asyncio.sleep(1)
            at_ms.append(broker.clock.now_ms())
            sent.append(ids.next(at_ms[-1]))
            await send(broker, b"%d" % number, UNIQ_KEY=sent[-1], KEYS=f"k-{number} all")
        await follow(broker)

    async def check(broker: SimulatedBroker) -> None:
        await follow(broker)
        for number in (0, 7, 39):
            body = [b"%d" % number]
            assert await found(broker, f"k-{number}") == body
            assert await found(broker, sent[number], is_unique_key=True) == body
            span = {"begin_timestamp": at_ms[number], "end_timestamp": at_ms[number] + 900}
            assert await found(broker, "all", **span) == body

    disk = run_with_broker(fill)
    for name in disk.list("index"):
        disk.unlink(f"index/{name}")
    run_with_broker(check, disk, later_ms=3_600_000)


def test_the_newest_of_many_messages_are_returned_in_log_order() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for number in range(100):
            if number == 60:
                await follow(broker)
            await send(broker, b"%d" % number, KEYS="k")
        last = [b"%d" % number for number in range(100)]
        assert await found(broker, "k", max_num=7) == last[-7:]
        assert await found(broker, "k", max_num=50) == last[-50:]
        assert await found(broker, "k", max_num=1000) == last[-MESSAGES_MAX:]
        assert await found(broker, "k", max_num=0) == []

    run_with_broker(test)


def test_a_retried_send_is_found_as_often_as_it_is_stored() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for queue_id in (0, 3):
            await send(broker, b"twice", queue_id, UNIQ_KEY="id-1")
        await follow(broker)
        assert await found(broker, "id-1", is_unique_key=True, max_num=1) == [b"twice"] * 2

    run_with_broker(test)


def test_the_span_selects_store_times_to_the_millisecond() -> None:
    async def test(broker: SimulatedBroker) -> None:
        at_ms = []
        for number in range(5):
            at_ms.append(broker.clock.now_ms())
            await send(broker, b"%d" % number, KEYS="k")
            await asyncio.sleep(0.4)
        for _ in range(2):
            for first in range(5):
                for last in range(first, 5):
                    bodies = await found(
                        broker, "k", begin_timestamp=at_ms[first], end_timestamp=at_ms[last]
                    )
                    assert bodies == [b"%d" % number for number in range(first, last + 1)]
            assert await found(broker, "k", begin_timestamp=at_ms[4] + 300) == []
            assert await found(broker, "k", end_timestamp=at_ms[0] - 1) == []
            await follow(broker)

    run_with_broker(test)


def test_the_answer_has_the_progress_of_the_index() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await send(broker, b"1", KEYS="k")
        at_ms = broker.clock.now_ms()
        await follow(broker)
        await asyncio.sleep(5)
        await send(broker, b"2", KEYS="other")
        answer = await query(broker, "k")
        assert at_ms - 1000 < int(answer.ext_fields["indexLastUpdateTimestamp"]) <= at_ms
        assert answer.ext_fields["indexLastUpdatePhyoffset"] == "0"

    run_with_broker(test)


def test_a_key_elsewhere_in_a_message_is_not_found() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await send(broker, b"o-1", note="o-1", MYKEYS="o-1", KEYS="o-11 xo-1")
        await broker.store_messages([broker.draft(topic="T2", properties={"KEYS": "o-1"})])
        assert await found(broker, "o-1") == []
        await follow(broker)
        assert await found(broker, "o-1") == []

    run_with_broker(test)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"topic": "NoSuchTopic"}, "does not exist"),
        ({}, "can not find message"),
        ({"is_unique_key": True}, "can not find message"),
    ],
)
def test_a_query_without_results_is_answered_as_by_java(fields: dict[str, Any], text: str) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        answer = await query(broker, "o-17", **fields)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert text in (answer.remark or "")
        assert answer.ext_fields["indexLastUpdatePhyoffset"] == "0"

    run_with_broker(test)


def test_a_query_without_an_index_is_answered_with_the_reason() -> None:
    store = StoreConfig(
        commitlog_segment_bytes=1 << 20,
        consumequeue_file_bytes=20 * 1000,
        message_index_enable=False,
    )

    async def test(broker: SimulatedBroker) -> None:
        await send(broker, b"1", KEYS="k")
        answer = await query(broker, "k")
        assert (answer.code, broker.store.index) == (ResponseCode.QUERY_NOT_FOUND, None)
        assert "messageIndexEnable is false" in (answer.remark or "")

    run_with_broker(test, config=small_config(store=store))


def test_searches_above_the_limit_are_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await send(broker, b"1", KEYS="k")
        slow = MessageQueryHandler(replace(broker.components.context, offload=after_a_second))
        serve = slow.on_query_message
        header = QueryMessageRequestHeader("T", "k", 32, 0, LONG_MAX)
        answers = await asyncio.gather(
            *(broker.ask(serve, header) for _ in range(SEARCHES_MAX + 2))
        )
        codes = sorted(answer.code for answer in answers)
        assert codes == [0] * SEARCHES_MAX + [ResponseCode.SYSTEM_BUSY] * 2

    run_with_broker(test)


RECORDED = sorted(name for name in exchanges() if name.startswith("12_QUERY_MESSAGE"))


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_queries_are_answered_as_by_java(name: str) -> None:
    exchange = exchanges()[name]
    assert exchange.response is not None
    asked, java = exchange.request.command, exchange.response.command
    header = asked.header(QueryMessageRequestHeader)
    record = java.body or b""

    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig(header.topic, 4, 4))
        for _ in range(3):
            draft = broker.draft(topic=header.topic, properties={"KEYS": "other", "UNIQ_KEY": "o"})
            await broker.store_messages([draft])
        if record:
            await broker.store_messages([draft_of(record)])
        await follow(broker)
        # The recorded span is that of the recording's date; here the message was stored now.
        now = replace(header, begin_timestamp=0, end_timestamp=LONG_MAX)
        answer = await broker.ask(handler(broker).on_query_message, now)
        assert (answer.code, answer.remark) == (java.code, java.remark)
        assert answer.ext_fields.keys() == java.ext_fields.keys()
        if not record:
            assert answer.ext_fields == java.ext_fields
            assert not answer.body
            return
        [ours], [theirs] = decode_messages(answer.body), decode_messages(record)
        assert (ours.body, ours.msg_id, ours.keys) == (theirs.body, theirs.msg_id, theirs.keys)
        assert int(answer.ext_fields["indexLastUpdatePhyoffset"]) == ours.physical_offset

    run_with_broker(test)
