"""A message is found by its unique id without an index; keys and tags are not, and say so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kourou.broker.query_messages import MessageQueryHandler
from kourou.broker.unique_id_search import Span, UniqueIdSearch, spans_of
from kourou.model import properties as names
from kourou.model.msgid import UniqueIds
from kourou.model.topic import TopicConfig
from kourou.protocol.command import RemotingCommand
from kourou.protocol.headers_consume import QueryMessageRequestHeader
from kourou.protocol.message_layout import decode_messages
from kourou.testing.broker_parts import BrokerParts, run_with_parts

LONG_MAX = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000


def handler(parts: BrokerParts) -> MessageQueryHandler:
    offload = parts.runtime.offload
    return MessageQueryHandler(parts.topics, parts.store, parts.clock, offload, parts.later)


async def query(parts: BrokerParts, key: str, **fields: Any) -> RemotingCommand:
    said: dict[str, Any] = {
        "topic": "T",
        "max_num": 32,
        "begin_timestamp": 0,
        "end_timestamp": LONG_MAX,
        "is_unique_key": True,
    } | fields
    header = QueryMessageRequestHeader(key=key, **said)
    return await parts.ask(handler(parts).on_query_message, header)


async def send(parts: BrokerParts, unique_id: str, body: bytes, queue_id: int = 0) -> None:
    draft = parts.draft(body, queue_id=queue_id, properties={names.UNIQ_KEY: unique_id})
    await parts.store_messages([draft])


def ids() -> UniqueIds:
    return UniqueIds("10.0.0.7", 4711, 99)


def test_a_message_is_found_by_its_unique_id_among_others() -> None:
    async def test(parts: BrokerParts) -> None:
        made = ids()
        sent = [made.next(parts.clock.now_ms()) for _ in range(8)]
        for number, unique_id in enumerate(sent):
            await send(parts, unique_id, b"body %d" % number, number % 4)

        answer = await query(parts, sent[5])

        assert answer.code == 0
        [found] = decode_messages(answer.body)
        assert (found.body, found.properties[names.UNIQ_KEY]) == (b"body 5", sent[5])
        assert answer.ext_fields == {
            "indexLastUpdateTimestamp": "0",
            "indexLastUpdatePhyoffset": "0",
        }
        assert (await query(parts, sent[5], is_unique_key=None, index_type="U")).code == 0

    run_with_parts(test)


def test_a_send_that_was_tried_again_is_found_as_often_as_it_is_stored() -> None:
    async def test(parts: BrokerParts) -> None:
        unique_id = ids().next(parts.clock.now_ms())
        for queue_id in (0, 3):
            await send(parts, unique_id, b"twice", queue_id)
        found = decode_messages((await query(parts, unique_id)).body)
        assert [message.queue_id for message in found] == [0, 3]

    run_with_parts(test)


def test_a_message_whose_id_tells_a_wrong_time_is_found_in_the_span_that_is_named() -> None:
    async def test(parts: BrokerParts) -> None:
        unique_id = ids().next(parts.clock.now_ms() - 2 * DAY_MS)
        await send(parts, unique_id, b"late")
        assert (await query(parts, unique_id)).code == 0
        after_ms = parts.clock.now_ms() + 1
        assert (await query(parts, unique_id, begin_timestamp=after_ms)).code == 22
        assert (await query(parts, unique_id, end_timestamp=after_ms - DAY_MS)).code == 22

    run_with_parts(test)


def test_an_id_that_stands_elsewhere_in_a_message_is_not_its_id() -> None:
    async def test(parts: BrokerParts) -> None:
        unique_id = ids().next(parts.clock.now_ms())
        await send(parts, ids().next(0), b"it was " + unique_id.encode())
        await parts.store_messages([parts.draft(properties={"note": unique_id})])
        assert (await query(parts, unique_id)).code == 22

    run_with_parts(test)


@pytest.mark.parametrize(
    ("key", "fields", "text"),
    [
        ("o-17", {"is_unique_key": None}, "no index yet"),
        ("TagA", {"is_unique_key": False, "index_type": "T"}, "no index yet"),
        ("o-17", {}, "is no unique id"),
        ("0A00000712670000006300000000002A", {"topic": "NoSuchTopic"}, "does not exist"),
        ("0A00000712670000006300000000002A", {}, "can not find message"),
    ],
)
def test_what_is_not_found_is_answered_as_by_java(
    key: str, fields: dict[str, Any], text: str
) -> None:
    async def test(parts: BrokerParts) -> None:
        parts.topics.put(TopicConfig("T", 4, 4))
        answer = await query(parts, key, **fields)
        assert answer.code == 22
        assert text in (answer.remark or "")
        assert answer.ext_fields["indexLastUpdatePhyoffset"] == "0"

    run_with_parts(test)


def test_a_search_reads_no_more_than_it_may() -> None:
    async def test(parts: BrokerParts) -> None:
        made = ids()
        sent = [made.next(parts.clock.now_ms()) for _ in range(3)]
        # Each chunk has one of these.
        for unique_id in sent:
            await send(parts, unique_id, b"x" * 200_000)
        now_ms = parts.clock.now_ms()
        spans = [Span(0, now_ms), Span(0, now_ms)]
        for bytes_max, count in ((1, 1), (1 << 24, 1)):
            search = UniqueIdSearch(parts.store, "T", 4, sent[0], bytes_max)
            assert len(search.run(spans)) == count
        for bytes_max, count in ((0, 0), (1 << 24, 1)):
            search = UniqueIdSearch(parts.store, "T", 4, sent[2], bytes_max)
            assert len(search.run(spans)) == count

    run_with_parts(test)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_spans_around_the_time_in_the_id_are_searched_before_all_that_was_asked() -> None:
    now_ms = ms("2026-11-21T07:00:00+00:00")
    month_ms = ms("2026-11-20T12:00:00+00:00") - ms("2026-11-01T00:00:00+00:00")
    asked = Span(0, LONG_MAX)
    zone = timezone(timedelta(hours=8))

    in_utc, in_zone, everything = spans_of(month_ms, now_ms, asked, zone)

    assert in_utc.begin_ms < ms("2026-11-20T12:00:00+00:00") < in_utc.end_ms
    assert in_zone.begin_ms < ms("2026-11-20T12:00:00+08:00") < in_zone.end_ms
    assert everything == asked


def test_an_id_of_a_day_to_come_is_of_the_month_before() -> None:
    now_ms = ms("2026-01-02T00:00:00+00:00")
    month_ms = 20 * DAY_MS
    first, _ = spans_of(month_ms, now_ms, Span(0, LONG_MAX), UTC)
    assert first.begin_ms < ms("2025-12-21T00:00:00+00:00") < first.end_ms


def test_nothing_outside_the_span_that_was_asked_is_searched() -> None:
    now_ms = ms("2026-11-21T07:00:00+00:00")
    asked = Span(now_ms - 1000, now_ms)
    assert spans_of(0, now_ms, asked, UTC) == [asked]
    assert spans_of(0, now_ms, Span(5, 4), UTC) == []
