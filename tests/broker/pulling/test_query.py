"""Queries of offsets, times and single messages have the results of Java's broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.offsets import (
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    SearchOffsetRequestHeader,
)
from kourou.protocol.pulling import ViewMessageRequestHeader
from kourou.protocol.record.decode import decode_message
from kourou.testing.clock import EPOCH_MS
from kourou.testing.send_rig import SendRig, run_sends

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


class QueryBench:
    """Queries of a broker's sends."""

    def __init__(self, sends: SendRig) -> None:
        self.sends = sends
        self.handlers = sends.broker.handlers.queries

    async def ask(self, code: int, header: object) -> RemotingCommand:
        """Return the answer to a request."""
        peer = self.sends.peer
        handler = {
            29: self.handlers.on_search_offset_by_timestamp,
            30: self.handlers.on_get_max_offset,
            31: self.handlers.on_get_min_offset,
            32: self.handlers.on_get_earliest_msg_storetime,
            33: self.handlers.on_view_message_by_id,
        }[code]
        before = len(peer.sent)
        peer.ask(handler, peer.request(code, header))
        await asyncio.sleep(0.01)
        (answer,) = peer.sent[before:]
        return answer

    async def search(self, timestamp: int, boundary: str | None = None) -> int:
        """Return the offset of a time in queue 0 of `T`."""
        header = SearchOffsetRequestHeader("T", 0, timestamp, boundary)
        answer = await self.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return int(answer.ext_fields["offset"])


async def send_three(bench: SendRig) -> list[int]:
    """Store three messages, a second apart, and return their physical offsets."""
    for body in (b"a", b"b", b"c"):
        await bench.send(body)
    return [message.physical_offset for message in bench.stored()]


def test_the_bounds_of_a_queue() -> None:
    async def test(bench: SendRig) -> None:
        query = QueryBench(bench)
        await send_three(bench)
        most = await query.ask(30, GetMaxOffsetRequestHeader("T", 0))
        least = await query.ask(31, GetMinOffsetRequestHeader("T", 0))
        oldest = await query.ask(32, GetEarliestMsgStoretimeRequestHeader("T", 0))
        assert most.ext_fields == {"offset": "3"}
        assert least.ext_fields == {"offset": "0"}
        assert oldest.ext_fields == {"timestamp": str(EPOCH_MS)}

    run_sends(test)


def test_a_missing_topic_or_queue_is_treated_as_empty() -> None:
    async def test(bench: SendRig) -> None:
        query = QueryBench(bench)
        for header in (
            GetMaxOffsetRequestHeader("NoSuchTopic", 0),
            GetMaxOffsetRequestHeader("T", 99),
        ):
            assert (await query.ask(30, header)).ext_fields == {"offset": "0"}
        least = await query.ask(31, GetMinOffsetRequestHeader("NoSuchTopic", 0))
        oldest = await query.ask(32, GetEarliestMsgStoretimeRequestHeader("NoSuchTopic", 0))
        assert least.ext_fields == {"offset": "0"}
        assert oldest.ext_fields == {"timestamp": "-1"}
        assert await query.search(EPOCH_MS) == 0

    run_sends(test)


def test_an_offset_is_found_by_time_from_either_side() -> None:
    async def test(bench: SendRig) -> None:
        query = QueryBench(bench)
        await send_three(bench)
        assert await query.search(0) == 0
        assert await query.search(EPOCH_MS + 500) == 1
        assert await query.search(EPOCH_MS + 1000) == 1
        assert await query.search(EPOCH_MS + 9000) == 3
        assert await query.search(EPOCH_MS + 1500, "upper") == 1
        assert await query.search(EPOCH_MS + 9000, "UPPER") == 2

    run_sends(test)


def test_queries_that_read_the_log_run_off_the_event_loop() -> None:
    left: list[str] = []

    async def offload(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        left.append(function.__name__)
        return function(*args, **kwargs)

    async def test(bench: SendRig) -> None:
        query = QueryBench(bench)
        await send_three(bench)
        left.clear()
        await query.search(EPOCH_MS)
        await query.ask(32, GetEarliestMsgStoretimeRequestHeader("T", 0))
        await query.ask(33, ViewMessageRequestHeader(0))
        assert left == ["offset_by_time", "store_time", "read_record"]

    run_sends(test, offload=offload)


def test_a_message_is_found_by_its_physical_offset(golden: Golden) -> None:
    _, expected = golden("33_VIEW_MESSAGE_BY_ID_query-by-offset-id")
    assert expected is not None

    async def test(bench: SendRig) -> None:
        query = QueryBench(bench)
        offsets = await send_three(bench)
        answer = await query.ask(33, ViewMessageRequestHeader(offsets[1]))
        assert (answer.code, answer.ext_fields) == (expected.code, expected.ext_fields)
        assert decode_message(answer.body).body == b"b"

    run_sends(test)


def test_no_message_is_found_inside_a_record() -> None:
    async def test(bench: SendRig) -> None:
        query = QueryBench(bench)
        offsets = await send_three(bench)
        for offset in (-1, offsets[1] + 1, 999_999_999):
            answer = await query.ask(33, ViewMessageRequestHeader(offset))
            assert answer.code == 1
            assert str(offset) in (answer.remark or "")

    run_sends(test)


def test_a_message_that_is_not_synced_is_not_found_yet() -> None:
    async def test(bench: SendRig) -> None:
        query = QueryBench(bench)
        offsets = await send_three(bench)
        bench.broker.flusher.stall()
        await bench.send(b"d", "WAIT\x01false\x02")
        end = bench.broker.store.reader.written_position
        size = offsets[1] - offsets[0]
        unsynced = range(end - size - 40, end)
        codes = {(await query.ask(33, ViewMessageRequestHeader(at))).code for at in unsynced}
        assert codes == {1}
        assert (await query.ask(30, GetMaxOffsetRequestHeader("T", 0))).ext_fields["offset"] == "3"

    run_sends(test)
