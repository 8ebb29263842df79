"""Administrators see which messages are in flight, and when each becomes visible."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.administration.broker_metrics import read_metrics
from kourou.broker.popping import invisible
from kourou.metrics import Sample
from kourou.protocol.brokers import QueryConsumeQueueRequestHeader, decode_consume_queue
from kourou.protocol.kv_config import decode_kv_table
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.popping.pop_rig import GROUP, TOPIC, PopRig


async def visible_at(
    broker: SimulatedBroker, group: str | None = GROUP, index: int = 0, count: int = 9
) -> list[int | None]:
    """Return when the messages of queue 0 are visible again, relative to now in s."""
    header = QueryConsumeQueueRequestHeader(TOPIC, 0, index, count, group)
    answer = await broker.ask(broker.admin.store.on_query_consume_queue, header)
    now_ms = broker.clock.now_ms()
    times = [one.visible_at_ms for one in decode_consume_queue(answer.body).queue_data]
    return [None if at_ms is None else (at_ms - now_ms) // 1000 for at_ms in times]


def test_time_of_each_message_in_flight_is_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c", b"d")
        got = await rig.pop(max_msg_nums=3, invisible_time=10_500)
        await rig.ack(got.handles[0][1], 0)
        await rig.change(got.handles[1][1], 1, 60_500)
        assert await visible_at(broker) == [None, 60, 10, None]
        assert await visible_at(broker, index=2, count=1) == [10]
        assert await visible_at(broker, "other") == [None] * 4
        assert await visible_at(broker, None) == [None] * 4
        await asyncio.sleep(12)
        assert await visible_at(broker) == [None, 48, None, None]

    run_with_broker(test, is_delivering=True)


def test_time_of_messages_popped_in_order_is_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c")
        got = await rig.pop(order=True, max_msg_nums=2, invisible_time=10_500)
        await rig.ack(got.handles[0][1], 0)
        assert await visible_at(broker) == [None, 10, None]
        await asyncio.sleep(12)
        assert await visible_at(broker) == [None, None, None]

    run_with_broker(test, is_delivering=True)


def test_query_survives_pops_and_acks_that_happen_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invisible, "CHECKPOINTS_PER_TURN", 5)

    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(*[b"x"] * 200)
        pops = [await rig.pop(max_msg_nums=1, invisible_time=60_500) for _ in range(200)]
        task = asyncio.create_task(visible_at(broker, index=198))
        for got in pops[:198]:
            await rig.ack_all(got)
        assert await task == [60, 60]

    run_with_broker(test, is_delivering=True)


def test_messages_in_flight_count_in_runtime_information_and_lag() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b", b"c")
        await rig.pop(queue_id=0, max_msg_nums=2)
        info = await broker.ask(broker.handlers.stats.on_get_broker_runtime_info)
        table = decode_kv_table(info.body)
        assert table["kourouPopInFlight"] == "2"
        assert (table["kourouReviveBehindMessages"], table["kourouReviveBehindMs"]) == ("0", "0")
        values = {
            family.name.removeprefix("rocketmq_consumer_"): sample.value
            for family in await read_metrics(broker.components)
            for sample in family.samples
            if isinstance(sample, Sample) and sample.labels.get("topic") == TOPIC
        }
        assert values["lag_messages"] == 3
        assert values["inflight_messages"] == 2
        assert values["ready_messages"] == 1

    run_with_broker(test, is_delivering=True)
