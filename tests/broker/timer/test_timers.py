"""Delivery of scheduled messages, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import pytest

from kourou.broker.timer.timer_intake import INTAKE_INTERVAL_MS, SOON_MS, IntakePace
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.model import properties as names
from kourou.model.message import Message
from kourou.model.properties import encode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.store.timer.timer_rebuild import remove_timer_files
from kourou.store.timer.wheel_files import TIMER_CHECK
from kourou.store.tools.truncate import truncate_replica
from kourou.testing.clock import EPOCH_MS
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.delays.delay_rig import bodies, messages, run
from tests.broker.timer.timer_rig import send, send_at, timer_draft

P = ParamSpec("P")
T = TypeVar("T")


def test_a_message_is_delivered_at_its_time_and_not_before() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 5_432
        await send_at(broker, b"late", due_at_ms)
        await asyncio.sleep(5.331)
        assert bodies(broker) == []
        await asyncio.sleep(0.15)
        [message] = messages(broker)
        assert message.body == b"late"
        assert 0 <= message.store_at_ms - due_at_ms <= 50
        assert message.properties[names.TIMER_DELIVER_MS] == str(due_at_ms)

    run(test)


def test_a_message_that_is_due_soon_is_not_late_behind_others() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await send_at(broker, b"far", broker.clock.now_ms() + 60_000)
        due_at_ms = broker.clock.now_ms() + 5
        await send_at(broker, b"near", due_at_ms)
        await asyncio.sleep(1)
        [message] = messages(broker)
        assert message.body == b"near"
        assert message.store_at_ms == due_at_ms

    run(test)


def test_messages_for_later_are_taken_in_together() -> None:
    async def main() -> None:
        woken: list[float] = []
        loop = asyncio.get_running_loop()
        pace = IntakePace(lambda: woken.append(loop.time()))
        pace.begin()
        began_s = loop.time()
        for _ in range(10):
            pace.placed(10_000)
            pace.arrived()
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        assert woken == [pytest.approx(began_s + INTAKE_INTERVAL_MS / 1000)]
        pace.arrived()
        assert len(woken) == 2, "after a rest at once"
        pace.begin()
        pace.placed(SOON_MS)
        pace.arrived()
        assert len(woken) == 3, "at once for what is due soon"

    run_virtual(main())


@pytest.mark.parametrize(
    "topic", ["Nowhere", "a\nb", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"]
)
def test_a_forged_record_is_dropped(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 2_000
        forged = timer_draft(broker, b"forged", due_at_ms)
        forged.properties = forged.properties.replace(
            encode_properties({names.REAL_TOPIC: "T"}), encode_properties({names.REAL_TOPIC: topic})
        )
        await send(broker, forged)
        await send_at(broker, b"late", due_at_ms + 1)
        await asyncio.sleep(4)
        assert bodies(broker) == [b"late"]
        assert set(broker.store.reader.queues()) == {TIMER_TOPIC, "T"}
        assert broker.timers.waiting == 0
        assert broker.timers.counts.metrics().timing_count[topic].count == 0

    run(test)
    assert "timer_record.passed_over" in caplog.text


def test_a_message_for_a_removed_queue_goes_to_an_existing_one() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 2_000
        await send(broker, timer_draft(broker, b"late", due_at_ms, queue_id=4_001))
        await asyncio.sleep(3)
        assert bodies(broker, queue_id=1) == [b"late"]
        assert broker.store.reader.queues()["T"] == [1]

    run(test)


def test_a_consumer_gets_a_producers_scheduled_message_at_its_time() -> None:
    async def main() -> None:
        received: list[tuple[bytes, int]] = []
        async with Cluster() as cluster, cluster.producer() as producer:
            clock = cluster.runtime.clock
            await producer.send(Message("T", b"now"))
            consumer = cluster.push_consumer("c")
            consumer.subscribe("T")
            consumer.listen(lambda message: received.append((message.body, clock.now_ms())))
            async with consumer:
                due_at_ms = clock.now_ms() + 30_250
                receipt = await producer.send(Message("T", b"later", deliver_at_ms=due_at_ms))
                assert receipt.recall_handle is not None
                await asyncio.sleep(60)
        assert [body for body, _ in received] == [b"now", b"later"]
        assert 0 <= received[1][1] - due_at_ms <= 200

    run_virtual(main())


def test_a_stop_after_a_refused_delivery_keeps_earlier_slots_that_are_not_read() -> None:
    async def schedule(broker: SimulatedBroker) -> None:
        for second in (10, 20, 30, 40):
            await send_at(broker, b"%d" % second, EPOCH_MS + second * 1000)
        await asyncio.sleep(1)

    async def schedule_last(broker: SimulatedBroker) -> None:
        await send_at(broker, b"50", EPOCH_MS + 50_000)

    async def refuse(broker: SimulatedBroker) -> None:
        broker.commit.refuse_puts(PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="a test"))
        await broker.start_deliveries()
        await asyncio.sleep(0.1)

    async def deliver(broker: SimulatedBroker) -> None:
        await asyncio.sleep(5)
        assert sorted(bodies(broker)) == [b"10", b"20", b"30", b"40", b"50"]

    disk = run_with_broker(schedule, is_delivering=True)
    run_with_broker(schedule_last, disk)
    run_with_broker(refuse, disk, later_ms=60_000)
    run_with_broker(deliver, disk, later_ms=61_000, is_delivering=True)


def test_reading_a_later_slot_does_not_hold_up_the_level() -> None:
    may_read = asyncio.Event()

    async def offload(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if function.__name__ == "load_slot":
            await may_read.wait()
        return function(*args, **kwargs)

    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 8_432
        await send_at(broker, b"late", due_at_ms)
        await asyncio.sleep(7)  # its slot is being read
        assert broker.timers.level_ms == broker.clock.now_ms()
        await asyncio.sleep(3)
        assert broker.timers.level_ms < due_at_ms
        may_read.set()
        await asyncio.sleep(1)
        assert broker.timers.level_ms == broker.clock.now_ms()
        assert bodies(broker) == [b"late"]

    run_with_broker(test, is_delivering=True, offload=offload)


def test_new_master_serves_before_it_has_its_timers() -> None:
    async def fill(broker: SimulatedBroker) -> None:
        await send_at(broker, b"before", broker.clock.now_ms() + 60_000)

    disk = run(fill)
    remove_timer_files(disk)

    async def main() -> None:
        is_read = asyncio.Event()

        async def offload(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            if function.__name__ == "_open":
                await is_read.wait()
            return function(*args, **kwargs)

        broker = SimulatedBroker(disk, offload=offload, later_ms=10_000)
        await broker.start_deliveries(timers_later=True)
        await send_at(broker, b"meanwhile", broker.clock.now_ms() + 2_000)
        await asyncio.sleep(10)
        assert bodies(broker) == []
        is_read.set()
        await asyncio.sleep(1)
        assert bodies(broker) == [b"meanwhile"]
        await asyncio.sleep(60)
        assert bodies(broker) == [b"meanwhile", b"before"]
        await broker.stop()

    run_virtual(main())


def test_stop_does_not_wait_for_the_rebuild_of_timer_files() -> None:
    async def fill(broker: SimulatedBroker) -> None:
        for number in range(3):
            await send_at(broker, b"%d" % number, broker.clock.now_ms() + 60_000)

    disk = run(fill)
    remove_timer_files(disk)

    async def main() -> None:
        async def offload(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            if function.__name__ == "_open":
                await asyncio.sleep(1)
            return function(*args, **kwargs)

        broker = SimulatedBroker(disk, offload=offload)
        await broker.start_deliveries(timers_later=True)
        await broker.stop()
        assert not disk.exists(TIMER_CHECK)

    run_virtual(main())
    run(fill, disk)


def test_truncated_replica_leaves_its_timers_to_the_next_master() -> None:
    ends: list[int] = []

    async def fill(broker: SimulatedBroker) -> None:
        for number in range(3):
            await send_at(broker, b"%d" % number, broker.clock.now_ms() + 5_000)
            ends.append(broker.store.reader.written_position)

    disk = run(fill)
    truncate_replica(disk, ends[1], EPOCH_MS, pid=1)
    assert not disk.exists(TIMER_CHECK)

    async def check(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert bodies(broker) == [b"0", b"1"]

    run(check, disk)
