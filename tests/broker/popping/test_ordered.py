"""Ordered pops: blocked queues, repeated attempts, acks and changes."""

from __future__ import annotations

import asyncio

import pytest

from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.info_strings import parse_order_counts
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.popping.pop_rig import GROUP, TOPIC, Got, PopRig, batch_of


async def put(rig: PopRig, count: int, queue_id: int = 0) -> None:
    await rig.put(*(b"%d" % number for number in range(count)), queue_id=queue_id)


async def pop(rig: PopRig, attempt: str | None = None, **fields: object) -> Got:
    return await rig.pop(order=True, attempt_id=attempt, **fields)


def test_queue_is_blocked_until_all_messages_of_a_pop_are_acknowledged() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 4)
        first = await pop(rig, max_msg_nums=2)
        assert first.bodies == [b"0", b"1"]
        assert first.header.revive_qid == 999
        assert (await pop(rig)).answer.code == ResponseCode.POLLING_TIMEOUT
        for offset, handle in first.handles:
            assert (await pop(rig)).bodies == []
            assert (await rig.ack(handle, offset)).code == 0
        assert (await pop(rig)).bodies == [b"2", b"3"]

    run_with_broker(test, is_delivering=True)


def test_ack_of_last_message_wakes_a_held_pop_and_so_does_the_end_of_the_time() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 2)
        first = await pop(rig, max_msg_nums=1, invisible_time=60_000)
        waiting = rig.pop_later(order=True, poll_time=120_000, max_msg_nums=1, invisible_time=5_000)
        await asyncio.sleep(1)
        began_ms = broker.clock.now_ms()
        await rig.ack(first.handles[0][1], 0)
        second = Got(await waiting, broker.config.broker_name)
        assert second.bodies == [b"1"]
        assert broker.clock.now_ms() - began_ms < 100
        third = Got(await rig.pop_later(order=True, poll_time=60_000), broker.config.broker_name)
        assert third.bodies == [b"1"]
        assert 5_000 <= third.header.pop_time - second.header.pop_time <= 5_100

    run_with_broker(test, is_delivering=True)


def test_same_attempt_gets_the_messages_again_without_another_count() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 3)
        first = await pop(rig, "a", max_msg_nums=2)
        again = await pop(rig, "a", max_msg_nums=2)
        assert first.bodies == again.bodies == [b"0", b"1"]
        assert again.header.order_count_info == "0 0 0"
        assert (await pop(rig, "b")).bodies == []

    run_with_broker(test, is_delivering=True)


def test_redelivered_messages_are_counted() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 3)
        first = await pop(rig, "a", max_msg_nums=2, invisible_time=1_000)
        assert first.header.order_count_info == "0 0 0"
        await rig.ack(first.handles[0][1], 0)
        await asyncio.sleep(2)
        second = await pop(rig, "b", max_msg_nums=2, invisible_time=1_000)
        assert second.bodies == [b"1", b"2"]
        counts = parse_order_counts(second.header.order_count_info or "")
        assert counts == {("0", "qo0%1"): 1, ("0", "0"): 0}

    run_with_broker(test, is_delivering=True)


def test_ack_out_of_order_commits_only_up_to_the_first_that_is_left() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 3)
        first = await pop(rig, invisible_time=2_000)
        await rig.batch_ack(batch_of(first, 0b110))
        assert broker.offsets.query(GROUP, TOPIC, 0) == 0
        await rig.ack(first.handles[0][1], 0)
        assert broker.offsets.query(GROUP, TOPIC, 0) == 3

    run_with_broker(test, is_delivering=True)


def test_ack_with_handle_of_earlier_pop_has_no_effect() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        first = await pop(rig, invisible_time=1_000)
        await asyncio.sleep(2)
        second = await pop(rig, invisible_time=60_000)
        assert second.bodies == [b"0"]
        assert (await rig.ack(first.handles[0][1], 0)).code == 0
        assert broker.offsets.query(GROUP, TOPIC, 0) == 0

    run_with_broker(test, is_delivering=True)


def test_ack_of_message_that_was_not_popped_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 5)
        first = await pop(rig, max_msg_nums=2)
        answer = await rig.ack(first.handles[0][1], 4)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    run_with_broker(test, is_delivering=True)


def test_changed_time_of_one_message_blocks_the_queue_until_then() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        first = await pop(rig, invisible_time=2_000)
        await asyncio.sleep(1)
        answer = await rig.change(first.handles[0][1], 0, 10_000)
        assert answer.ext_fields["popTime"] == str(first.header.pop_time)
        assert 11_000 <= int(answer.ext_fields["invisibleTime"]) <= 11_010
        await asyncio.sleep(8)
        assert (await pop(rig)).bodies == []
        await asyncio.sleep(3)
        assert (await pop(rig)).bodies == [b"0"]

    run_with_broker(test, is_delivering=True)


def test_ordered_pop_reads_no_retry_topic() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"retry", topic=f"%RETRY%{GROUP}_{TOPIC}")
        for _ in range(20):
            assert (await pop(rig)).bodies == []

    run_with_broker(test, is_delivering=True)


def test_held_pop_of_blocked_queue_does_not_spin() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 5)
        await pop(rig, max_msg_nums=1, invisible_time=60_000)
        waiting = rig.pop_later(order=True, poll_time=10_000)
        missed = broker.stats.store.missed
        await waiting
        assert broker.stats.store.missed - missed <= 2

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize("is_killed", [True, False])
def test_acknowledged_messages_and_blocks_survive_a_restart(*, is_killed: bool) -> None:
    disk = SimDisk()

    async def before() -> None:
        broker = SimulatedBroker(disk)
        await broker.start_deliveries()
        rig = PopRig(broker)
        await put(rig, 4)
        await broker.tables.persist()
        first = await pop(rig, max_msg_nums=2, invisible_time=60_000)
        await rig.ack_all(first)
        second = await pop(rig, "again", max_msg_nums=1, invisible_time=60_000)
        assert second.bodies == [b"2"]
        if is_killed:
            broker.abandon()
        else:
            await broker.stop()

    async def after() -> None:
        broker = SimulatedBroker(disk, later_ms=10_000)
        await broker.start_deliveries()
        rig = PopRig(broker)
        assert (await pop(rig, "other")).bodies == []
        assert (await pop(rig, "again", max_msg_nums=1)).bodies == [b"2"]
        await broker.stop()

    run_virtual(before())
    run_virtual(after())
