"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kourou.broker.administration.broker_metrics import read_metrics
from kourou.broker.popping.pop_config import PopConfig
from kourou.errors import StoreReadOnlyError
from kourou.metrics import Sample
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode
from kourou.protocol.popping.receipt_handles import ReceiptHandle, decode_receipt_handle
from kourou.protocol.popping.topic_names import revive_topic
from kourou.testing.clock import LoopClock
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.popping.pop_rig import GROUP, TOPIC, Got, PopRig, batch_of, changed_handle


def revive_records(broker: SimulatedBroker) -> int:
    """Return the number of records that are in the revive topic, or will be delivered to it."""
    topic = revive_topic(broker.config.cluster_name)
    count = broker.store.reader.max_offset("rmq_sys_wheel_timer", 0)
    return count + sum(broker.store.reader.max_offset(topic, queue) for queue in range(8))


async def put(rig: PopRig, count: int) -> None:
    await rig.put(*(b"%d" % number for number in range(count)))


async def metric(broker: SimulatedBroker, name: str) -> float:
    """Return the sum of all samples of a metric."""
    [family] = [one for one in await read_metrics(broker.components) if one.name == name]
    return sum(one.value for one in family.samples if isinstance(one, Sample))


def test_acks_of_one_turn_share_a_record_and_are_all_answered() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 5)
        got = await rig.pop()
        before = revive_records(broker)
        answers = await asyncio.gather(*[rig.ack(handle, at) for at, handle in got.handles])
        assert [answer.code for answer in answers] == [0] * 5
        assert revive_records(broker) == before + 1
        await asyncio.sleep(20)
        assert (await rig.pop()).bodies == []

    run_with_broker(test, is_delivering=True)


def test_second_ack_of_a_message_is_answered_and_writes_nothing() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        offset, handle = (await rig.pop()).handles[0]
        await rig.ack(handle, offset)
        before = revive_records(broker)
        assert (await rig.ack(handle, offset)).code == 0
        assert revive_records(broker) == before

    run_with_broker(test, is_delivering=True)


def test_late_ack_after_the_message_is_revived_has_no_effect() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        offset, handle = (await rig.pop(invisible_time=1_000)).handles[0]
        await asyncio.sleep(3)
        assert (await rig.ack(handle, offset)).code == 0
        assert (await rig.pop()).bodies == [b"0"]

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize("late_ms", [1, 300, 999])
def test_ack_just_before_the_end_of_the_invisible_time_counts(late_ms: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 2)
        got = await rig.pop(invisible_time=5_000)
        await asyncio.sleep((5_000 - late_ms) / 1000 - 0.01)
        await rig.ack(got.handles[1][1], got.handles[1][0])
        await asyncio.sleep(5)
        assert (await rig.pop()).bodies == [b"0"]

    run_with_broker(test, is_delivering=True)


def test_late_ack_is_passed_by_the_revive_queue_although_nothing_else_comes() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        [(at, handle)] = (await rig.pop(invisible_time=1_500)).handles
        cast(LoopClock, broker.clock).step(4_000)  # the ack precedes the timer's checkpoint
        await rig.ack(handle, at)
        await asyncio.sleep(60)
        loops = broker.components.popping.revives.loops
        assert [loop.lag for loop in loops] == [0] * len(loops)

    run_with_broker(test, is_delivering=True)


def test_batch_acknowledges_the_messages_of_its_bits() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 5)
        got = await rig.pop(invisible_time=2_000)
        assert (await rig.batch_ack(batch_of(got, 0b10110))).code == 0
        await asyncio.sleep(4)
        assert (await rig.pop()).bodies == [b"0", b"3"]

    run_with_broker(test, is_delivering=True)


def test_batch_with_queues_and_offsets_that_do_not_exist_acknowledges_the_rest() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 2)
        got = await rig.pop(invisible_time=2_000)
        good = batch_of(got, (1 << 80_000) | 0b10)
        answer = await rig.batch_ack(
            batch_of(got, 0b11, queue_id=-7), batch_of(got, 0b11, queue_id=3), good
        )
        assert answer.code == 0
        await asyncio.sleep(4)
        assert (await rig.pop()).bodies == [b"0"]

    run_with_broker(test, is_delivering=True)


def test_ack_that_cannot_be_stored_is_answered_with_an_error_and_does_not_count() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        got = await rig.pop(invisible_time=3_000)
        offset, handle = got.handles[0]
        writer = broker.store.writer
        append, begin_run = writer.append, writer.begin_run

        def refuse(*_: object, **__: object) -> object:
            raise StoreReadOnlyError("the disk is full")

        writer.append = refuse  # type: ignore[method-assign,assignment]
        writer.begin_run = lambda now_ms: None  # type: ignore[method-assign]
        answers = [await rig.ack(handle, offset), await rig.batch_ack(batch_of(got, 1))]
        assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        writer.append, writer.begin_run = append, begin_run  # type: ignore[method-assign]
        await asyncio.sleep(5)
        assert (await rig.pop()).bodies == [b"0"]

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize(
    "change",
    [
        {"start_offset": 7},
        {"pop_time_ms": 12},
        {"revive_queue": 5_000},
        {"broker_name": "other"},
        {"invisible_ms": 2**40},
    ],
)
def test_forged_handle_is_answered_like_by_java_and_harms_nothing(
    change: dict[str, object],
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        offset, handle = (await rig.pop(invisible_time=2_000)).handles[0]
        forged = decode_receipt_handle(handle)._replace(**change).encode()  # type: ignore[arg-type]
        assert (await rig.ack(forged, offset, consumer_group="h")).code == 0
        assert (await rig.ack(forged, offset)).code == 0
        assert (await rig.change(forged, offset, 60_000)).code == 0
        await asyncio.sleep(4)
        is_issued = "invisible_ms" in change  # all that counts is unchanged
        assert (await rig.pop()).bodies == ([] if is_issued else [b"0"])

    run_with_broker(test, is_delivering=True)


@pytest.mark.parametrize(("broker_name", "stored"), [("earlier", 1), ("x\x02REAL_TOPIC\x01T", 0)])
def test_unknown_handle_is_stored_before_the_recovery_only_if_it_names_a_broker(
    broker_name: str, stored: int
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        now_ms = broker.clock.now_ms()
        handle = ReceiptHandle(0, now_ms - 1_000, 60_000, 0, "0", broker_name, 0, 0)
        assert (await rig.ack(handle.encode(), 0, queue_id=0)).code == 0
        assert revive_records(broker) == stored

    run_with_broker(test)


def test_malformed_handle_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        refused = await rig.ack("1 2 3", 0, queue_id=0)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "receipt handle is invalid" in (refused.remark or "")

    run_with_broker(test, is_delivering=True)


# Change


def test_longer_invisible_time_postpones_the_redelivery() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 2)
        got = await rig.pop(invisible_time=3_000)
        offset, handle = got.handles[1]
        await asyncio.sleep(2)
        answer = await rig.change(handle, offset, 10_000)
        await asyncio.sleep(3)
        assert (await rig.pop(invisible_time=60_000)).bodies == [b"0"]
        await asyncio.sleep(8)
        assert (await rig.pop()).bodies == [b"1"]
        assert answer.ext_fields["invisibleTime"] == "10000"

    run_with_broker(test, is_delivering=True)


def test_shorter_invisible_time_makes_the_message_visible_earlier() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        offset, handle = (await rig.pop(invisible_time=600_000)).handles[0]
        await rig.change(handle, offset, 0)
        again = Got(await rig.pop_later(poll_time=5_000), broker.config.broker_name)
        assert again.bodies == [b"0"]
        assert again.messages[0].reconsume_times == 1
        assert broker.clock.now_ms() - again.header.pop_time < 1_000

    run_with_broker(test, is_delivering=True)


def test_change_that_leaves_the_retry_count() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        offset, handle = (await rig.pop(invisible_time=600_000)).handles[0]
        await rig.change(handle, offset, 1_000, suspend=True)
        again = Got(await rig.pop_later(poll_time=5_000), broker.config.broker_name)
        assert again.messages[0].reconsume_times == 0

    run_with_broker(test, is_delivering=True)


def test_new_handle_acknowledges_and_the_old_one_does_nothing() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        offset, old = (await rig.pop(invisible_time=3_000)).handles[0]
        new = changed_handle(old, offset, await rig.change(old, offset, 5_000))
        before = revive_records(broker)
        assert (await rig.ack(old, offset)).code == 0
        assert (await rig.change(old, offset, 9_000)).code == 0
        assert revive_records(broker) == before
        assert (await rig.ack(new, offset)).code == 0
        await asyncio.sleep(20)
        assert (await rig.pop()).bodies == []

    run_with_broker(test, is_delivering=True)


def test_change_of_acknowledged_message_does_not_bring_it_back() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        offset, handle = (await rig.pop(invisible_time=3_000)).handles[0]
        await rig.ack(handle, offset)
        answer = await rig.change(handle, offset, 1_000)
        assert (answer.code, answer.ext_fields["invisibleTime"]) == (0, "1000")
        await asyncio.sleep(10)
        assert (await rig.pop()).bodies == []

    run_with_broker(test, is_delivering=True)


def test_change_at_the_end_of_the_queue_is_refused_but_an_ack_is_not() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        _, handle = (await rig.pop()).handles[0]
        assert (await rig.change(handle, 1, 1_000)).code == ResponseCode.NO_MESSAGE
        assert (await rig.ack(handle, 1)).code == 0
        assert (await rig.ack(handle, 2)).code == ResponseCode.NO_MESSAGE

    run_with_broker(test, is_delivering=True)


def test_change_beyond_the_timer_is_refused_by_name() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 1)
        offset, handle = (await rig.pop()).handles[0]
        longest_ms = broker.config.timer.timer_max_delay_sec * 1000
        answer = await rig.change(handle, offset, longest_ms + 1)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "timerMaxDelaySec" in (answer.remark or "")

    run_with_broker(test, is_delivering=True)


def test_messages_of_recreated_topic_are_not_touched_by_pops_of_the_deleted_one() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 2)
        got = await rig.pop(invisible_time=5_000)
        broker.topics.delete(TOPIC)
        await broker.queue_deletion.delete(TOPIC)
        broker.offsets.remove_topic(TOPIC)
        broker.topics.put(TopicConfig(TOPIC, 4, 4))
        await rig.put(b"new 0", b"new 1")
        for offset, handle in got.handles:
            assert (await rig.ack(handle, offset)).code == 0
            assert (await rig.change(handle, offset, 1_000)).code == 0
        first = await rig.pop(invisible_time=60_000)
        assert first.bodies == [b"new 0", b"new 1"]
        await asyncio.sleep(20)
        assert (await rig.pop()).bodies == [], "the old checkpoint revives nothing"
        assert broker.topics.get(f"%RETRY%{GROUP}_{TOPIC}") is None

    run_with_broker(test, is_delivering=True)


def test_acknowledged_checkpoint_needs_no_second_copy() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 3)
        await asyncio.sleep(1)
        got = await rig.pop(invisible_time=5_000)
        await rig.ack_all(got)
        before = revive_records(broker)
        await asyncio.sleep(10)
        assert revive_records(broker) == before
        assert broker.components.popping.in_flight.message_count == 0

    run_with_broker(test, is_delivering=True)


def test_metrics_and_statistics_tell_of_pops() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 3)
        got = await rig.pop(invisible_time=2_000)
        await rig.ack(got.handles[0][1], 0)
        assert await metric(broker, "rocketmq_pop_in_flight_messages") == 2
        await asyncio.sleep(4)
        assert await metric(broker, "rocketmq_pop_revive_retry_messages_total") == 2
        for kind in ("CK", "ACK"):
            assert broker.stats.named(f"GROUP_{kind}_NUMS") == {f"{TOPIC}@{GROUP}": 1}
            assert sum(broker.stats.named(f"BROKER_{kind}_NUMS").values()) == 1

    run_with_broker(test, is_delivering=True)


def test_group_with_too_many_messages_in_flight_gets_no_more() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await put(rig, 9)
        first = await rig.pop(max_msg_nums=3)
        assert len(first.bodies) == 3
        assert (await rig.pop()).bodies == []
        await rig.ack_all(first)
        assert len((await rig.pop()).bodies) == 6

    config = small_config(
        pop=PopConfig(enable_pop_message_threshold=True, pop_inflight_message_threshold=2)
    )
    run_with_broker(test, config=config, is_delivering=True)


def test_topic_with_queues_of_batches_is_refused_by_name() -> None:
    async def test(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        broker.topics.put(TopicConfig("B", 1, 1, attributes={"queue.type": "BatchCQ"}))
        answer = await rig.pop_later(topic="B")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "BatchCQ" in (answer.remark or "")

    run_with_broker(test, is_delivering=True)
