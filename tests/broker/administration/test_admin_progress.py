"""The progress of groups is reported as by Java, without blocking the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.offsets import QueryCorrectionOffsetHeader, decode_correction_offsets
from kourou.protocol.popping.topic_names import retry_topic_v1
from kourou.protocol.stats import (
    ConsumeOffset,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
    QueueTimeSpan,
    decode_consume_stats,
    decode_consume_stats_list,
    decode_consume_time_spans,
)
from kourou.remoting.steady_time import steady_ms
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.popping.pop_rig import PopRig


async def stats(broker: SimulatedBroker, **fields: Any) -> dict[MessageQueue, ConsumeOffset]:
    header = GetConsumeStatsRequestHeader("g", **fields)
    answer = await broker.ask(broker.admin.progress.on_get_consume_stats, header)
    assert answer.code == 0
    return dict(decode_consume_stats(answer.body).offsets)


def test_the_progress_of_a_group_is_reported_per_queue() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 2, 2))
        for _ in range(3):
            await broker.store_messages([broker.draft()])
        stored_at_ms = broker.store.reader.store_time("T", 0, 1)
        broker.offsets.commit("g", "T", 0, 2)
        broker.offsets.note_pulled("g", "T", 0, 3)
        broker.offsets.commit("g", "Gone", 0, 1)

        assert await stats(broker) == {
            MessageQueue("T", "broker-a", 0): ConsumeOffset(3, 2, 3, stored_at_ms),
            MessageQueue("T", "broker-a", 1): ConsumeOffset(0, 0, 0, 0),
        }
        assert await stats(broker, topic="Gone") == {}

    run_with_broker(test)


def test_the_lock_holder_of_a_queue_is_reported_while_the_lock_is_valid() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 2, 2))
        queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(2)]
        broker.queue_locks.lock("g", "member-1", queues[1:], steady_ms())

        found = await stats(broker, topic="T")
        assert [found[queue].lock_holder for queue in queues] == [None, "member-1"]

        await asyncio.sleep(61)
        assert (await stats(broker, topic="T"))[queues[1]].lock_holder is None

    run_with_broker(test)


def test_topics_without_subscription_are_left_out_unless_listed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for name in ("T", "U"):
            broker.topics.put(TopicConfig(name, 1, 1))
            broker.offsets.commit("g", name, 0, 0)
        broker.connect("c", topics=["T"])

        assert [queue.topic for queue in await stats(broker)] == ["T"]
        assert [queue.topic for queue in await stats(broker, topic="U")] == []
        assert [queue.topic for queue in await stats(broker, topic_list="U;T;")] == ["T", "U"]

    run_with_broker(test)


async def all_stats(broker: SimulatedBroker, *, is_order: bool = False) -> Any:
    header = GetConsumeStatsInBrokerHeader(is_order)
    answer = await broker.ask(broker.admin.progress.on_get_broker_consume_stats, header)
    assert answer.code == 0
    return decode_consume_stats_list(answer.body)


def test_all_groups_are_reported_with_their_lag() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 1, 1))
        for _ in range(5):
            await broker.store_messages([broker.draft()])
        for group, offset in (("a", 2), ("b", 5)):
            broker.groups.get_or_create(group)
            broker.offsets.commit(group, "T", 0, offset)
        broker.offsets.note_pulled("a", "T", 0, 3)
        broker.offsets.commit("a", "Gone", 0, 1)

        found = await all_stats(broker)

        assert found.broker_addr == "10.0.0.1:10911"
        assert (found.total_diff, found.total_inflight_diff) == (3, 1)
        [of_a] = found.stats["a"]
        at_ms = broker.store.reader.store_time("T", 0, 1)
        assert of_a.offsets == {MessageQueue("T", "broker-a", 0): ConsumeOffset(5, 2, 3, at_ms)}
        assert found.stats["TOOLS_CONSUMER"] == []

    run_with_broker(test)


def test_progress_can_be_limited_to_ordered_topics() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.get_or_create("g")
        for name, order in (("T", False), ("U", True)):
            broker.topics.put(TopicConfig(name, 1, 1, order=order))
            broker.offsets.commit("g", name, 0, 0)

        [only] = (await all_stats(broker, is_order=True)).stats["g"]
        assert [queue.topic for queue in only.offsets] == ["U"]
        assert len((await all_stats(broker)).stats["g"]) == 2

    run_with_broker(test)


def test_time_spans_of_queues_and_the_delay_of_a_group_are_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 3, 3))
        for queue_id in (0, 0, 0, 1):
            await broker.store_messages([broker.draft(queue_id=queue_id)])
        broker.offsets.commit("g", "T", 0, 1)
        times = [broker.store.reader.store_time("T", 0, offset) for offset in range(3)]
        alone = broker.store.reader.store_time("T", 1, 0)

        header = QueryConsumeTimeSpanRequestHeader("T", "g")
        answer = await broker.ask(broker.admin.progress.on_query_consume_time_span, header)

        now_ms = broker.clock.now_ms()
        queues = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(3)]
        assert decode_consume_time_spans(answer.body) == [
            QueueTimeSpan(queues[0], times[0], times[2], times[0], now_ms - times[1]),
            QueueTimeSpan(queues[1], alone, alone, alone, now_ms - alone),
            QueueTimeSpan(queues[2], -1, -1, -1, 0),
        ]

    run_with_broker(test)


def test_time_spans_of_an_unknown_topic_are_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        header = QueryConsumeTimeSpanRequestHeader("T", "g")
        answer = await broker.ask(broker.admin.progress.on_query_consume_time_span, header)
        assert (answer.code, answer.remark) == (17, "topic[T] not exist")

    run_with_broker(test)


@pytest.mark.parametrize(
    ("compared", "left_out", "expected"),
    [
        ("new", None, {0: 2, 1: 4}),
        ("fast", None, {0: 2, 1: 4}),
        ("slow", "fast", {0: 2, 1: 6}),
        ("slow", "slow", {0: 2**63 - 1, 1: 4}),
        ("new", "slow,fast", {}),
    ],
)
def test_the_smallest_offsets_of_a_topics_groups_are_reported_and_none_is_deleted(
    compared: str, left_out: str | None, expected: dict[int, int]
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        for group, offsets in (("slow", (2, 6)), ("fast", (9, 4))):
            for queue_id, offset in enumerate(offsets):
                broker.offsets.commit(group, "T", queue_id, offset)

        header = QueryCorrectionOffsetHeader("T", compared, left_out)
        answer = await broker.ask(broker.admin.progress.on_query_correction_offset, header)

        assert decode_correction_offsets(answer.body) == expected
        assert broker.offsets.groups_of("T") == ["fast", "slow"]

    run_with_broker(test)


def test_other_tasks_run_while_a_group_with_many_topics_is_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for number in range(500):
            broker.topics.put(TopicConfig(f"T{number}", 1, 1))
            broker.offsets.commit("g", f"T{number}", 0, 0)
        turns = 0
        handler = broker.admin.progress.on_get_consume_stats
        asked = asyncio.create_task(broker.ask(handler, GetConsumeStatsRequestHeader("g")))
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(decode_consume_stats(asked.result().body).offsets) == 500
        assert turns > 20

    run_with_broker(test)


def test_retry_topics_of_pops_are_reported_while_members_are_connected() -> None:
    async def test(broker: SimulatedBroker) -> None:
        retry, other = retry_topic_v1("g", "T"), retry_topic_v1("g", "U")
        for name in ("T", "U", retry, other):
            broker.topics.put(TopicConfig(name, 1, 1))
            broker.offsets.commit("g", name, 0, 0)
        broker.connect("c", topics=["T"])

        assert [queue.topic for queue in await stats(broker)] == [retry, "T"]

    run_with_broker(test)


def test_messages_in_flight_and_blocked_queues_are_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c")
        await rig.put(b"d", b"e", queue_id=1)
        await rig.pop(queue_id=0, max_msg_nums=2)
        await rig.pop(queue_id=1, order=True)

        found = [at for queue, at in sorted((await stats(broker)).items()) if queue.topic == "T"]
        assert [at.in_flight for at in found] == [2, 2, None, None]
        assert [at.consumer_offset for at in found] == [2, 0, 0, 0]
        assert [at.block_reason is None for at in found] == [True, False, True, True]
        assert "offset 0 is not acknowledged" in (found[1].block_reason or "")

        await asyncio.sleep(15)
        found = [at for queue, at in sorted((await stats(broker)).items()) if queue.topic == "T"]
        assert {(at.in_flight, at.block_reason) for at in found} == {(None, None)}

    run_with_broker(test, is_delivering=True)
