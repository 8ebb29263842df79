"""Scheduled messages with clocks that are set, long downtimes and full disks."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import cast

import pytest

from kourou.broker.timer.loaded_slots import TimerLevel
from kourou.broker.timer.timer_config import TimerConfig
from kourou.model import properties as names
from kourou.model.topic import TIMER_TOPIC
from kourou.store.timer.layouts import SLOTS
from kourou.store.timer.slot_choice import ROLL_WINDOW_SLOTS_MAX
from kourou.testing.clock import LoopClock
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.delays.delay_rig import bodies, messages, run
from tests.broker.timer.timer_rig import send_at, timer_draft

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def step(broker: SimulatedBroker, ms: int) -> None:
    cast(LoopClock, broker.clock).step(ms)


@pytest.mark.parametrize("back_ms", [2_500, HOUR_MS, 40 * DAY_MS, 3_000 * DAY_MS])
def test_a_clock_set_back_does_not_delay_deliveries_by_the_difference(back_ms: int) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await send_at(broker, b"before", broker.clock.now_ms() + 1_000)
        await asyncio.sleep(2)
        step(broker, -back_ms)
        sent_ms = broker.clock.now_ms()
        for number, wait_ms in enumerate((700, 300, 5_300, 31_000)):
            await send_at(broker, b"%d" % number, sent_ms + wait_ms)
        await send_at(broker, b"no", sent_ms + 20_000)
        await send_at(broker, b"0", sent_ms + 20_000, recalls="id-no", unique_id="id-no")
        await asyncio.sleep(45)
        assert bodies(broker) == [b"before", b"1", b"0", b"2", b"3"]
        for message in messages(broker)[1:]:
            # Store times never go back, so use the time of removal from the wheel.
            taken_ms = int(message.properties[names.TIMER_DEQUEUE_MS])
            assert 0 <= taken_ms - message.deliver_at_ms <= 200

    run(test)


def test_a_clock_set_back_does_not_delay_deliveries_after_a_kill() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await asyncio.sleep(2)
        await broker.timers.storage.flush()
        step(broker, -HOUR_MS)
        await send_at(broker, b"a", broker.clock.now_ms() + 4_000)
        await asyncio.sleep(1.5)
        assert bodies(broker) == []

    async def again(broker: SimulatedBroker) -> None:
        await asyncio.sleep(4)
        assert bodies(broker) == [b"a"]

    run(again, run(test), later_ms=3_500 - HOUR_MS)


def test_kills_after_a_clock_was_ahead_repeat_no_delivery() -> None:
    disk = SimDisk()

    async def kill(life: int) -> None:
        broker = SimulatedBroker(disk, later_ms=life * 20_000)
        await broker.start_deliveries()
        if life == 0:
            for number in range(30):
                await send_at(broker, b"%d" % number, broker.clock.now_ms() + number * 1_500)
            await asyncio.sleep(5)
            step(broker, 73 * HOUR_MS)
            await send_at(broker, b"ahead", broker.clock.now_ms() + 1_000)
            await asyncio.sleep(2)
            step(broker, -73 * HOUR_MS)
        await send_at(broker, b"back-%d" % life, broker.clock.now_ms() + 7_000)
        await asyncio.sleep(10)
        assert max(Counter(bodies(broker)).values()) == 1
        broker.abandon()

    for life in range(4):
        run_virtual(kill(life))


def test_kill_after_a_clock_was_set_back_on_an_idle_broker_repeats_no_delivery() -> None:
    disk = SimDisk()

    async def kill() -> None:
        broker = SimulatedBroker(disk)
        await broker.start_deliveries()
        await send_at(broker, b"far", broker.clock.now_ms() + 3 * HOUR_MS)
        await asyncio.sleep(65)  # the current slot is later than all records of the log
        step(broker, -HOUR_MS)
        await send_at(broker, b"a", broker.clock.now_ms() + 2_000)
        await asyncio.sleep(1)
        await broker.timers.storage.flush()
        await asyncio.sleep(2)
        assert bodies(broker) == [b"a"]
        broker.abandon()

    async def again(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert bodies(broker) == [b"a"]

    run_virtual(kill())
    run(again, disk, later_ms=70_000 - HOUR_MS)


def test_level_ends_when_the_clock_is_set_back() -> None:
    level = TimerLevel()
    level.mark(10_000, 5)
    level.advance(5, 12_000)
    assert level.at_ms == 10_000

    level.mark(4_000, 6)
    level.advance(5, 12_000)  # a message that may be due at once is not in the wheel yet
    assert level.at_ms == 0
    level.advance(6, 4_001)
    assert level.at_ms == 4_000


def test_kills_repeat_no_delivery_after_the_slots_were_ahead_of_all_store_times() -> None:
    disk = SimDisk()

    async def kill(life: int) -> None:
        broker = SimulatedBroker(disk, later_ms=life * 20_000)
        await broker.start_deliveries()
        if life == 0:
            await asyncio.sleep(0.3)
            step(broker, 73 * HOUR_MS)
            await send_at(broker, b"ahead", broker.clock.now_ms() + 1_000)
            await asyncio.sleep(3)  # a slot passes in which nothing is stored
            step(broker, -73 * HOUR_MS)
        await send_at(broker, b"back-%d" % life, broker.clock.now_ms() + 2_000)
        await asyncio.sleep(3)
        await broker.timers.storage.flush()
        assert sorted(bodies(broker)) == [b"ahead", *(b"back-%d" % one for one in range(life + 1))]
        broker.abandon()

    for life in range(3):
        run_virtual(kill(life))


def test_a_clock_set_forward_is_noticed_within_half_a_minute() -> None:
    async def test(broker: SimulatedBroker) -> None:
        now_ms = broker.clock.now_ms()
        for number in range(3):
            await send_at(broker, b"%d" % number, now_ms + number * HOUR_MS + HOUR_MS)
        await asyncio.sleep(1)
        step(broker, 2 * HOUR_MS + 1_000)
        await asyncio.sleep(31)
        assert bodies(broker) == [b"0", b"1"]
        await asyncio.sleep(HOUR_MS / 1000)
        assert bodies(broker) == [b"0", b"1", b"2"]

    run(test)


def test_a_clock_set_forward_and_back_delivers_all_once_by_the_last_time() -> None:
    async def test(broker: SimulatedBroker) -> None:
        now_ms = broker.clock.now_ms()
        await send_at(broker, b"late", now_ms + 3 * HOUR_MS)
        step(broker, 2 * HOUR_MS)
        await asyncio.sleep(40)
        step(broker, -2 * HOUR_MS)
        await send_at(broker, b"soon", broker.clock.now_ms() + 1_000)
        await send_at(broker, b"hour", now_ms + HOUR_MS)
        await asyncio.sleep(5)
        assert bodies(broker) == [b"soon"]
        await asyncio.sleep(HOUR_MS / 1000)
        assert bodies(broker) == [b"soon", b"hour"]
        await asyncio.sleep(2 * HOUR_MS / 1000)
        assert bodies(broker) == [b"soon", b"hour", b"late"]

    run(test)


def test_a_broker_down_for_longer_than_the_wheel_delivers_all_messages_once() -> None:
    waits_ms = [DAY_MS, 6 * DAY_MS, SLOTS * 1000 - 500, SLOTS * 1000 + 500, 20 * DAY_MS]

    async def fill(broker: SimulatedBroker) -> None:
        now_ms = broker.clock.now_ms()
        for wait_ms in waits_ms:
            await send_at(broker, b"%d" % wait_ms, now_ms + wait_ms)
        await asyncio.sleep(1)

    async def go_on(broker: SimulatedBroker) -> None:
        await send_at(broker, b"new", broker.clock.now_ms() + 3_000)
        await asyncio.sleep(5)
        assert bodies(broker) == [*(b"%d" % wait_ms for wait_ms in waits_ms), b"new"]
        assert broker.timers.waiting == 0

    timer = TimerConfig(timer_roll_window_slot=ROLL_WINDOW_SLOTS_MAX)
    run(go_on, run(fill, timer=timer), later_ms=21 * DAY_MS, timer=timer)


def test_a_full_disk_delays_due_messages_and_loses_none() -> None:
    async def test(broker: SimulatedBroker) -> None:
        now_ms = broker.clock.now_ms()
        for number in range(50):
            await send_at(broker, b"%02d" % number, now_ms + 2_000 + number * 30)
        await asyncio.sleep(1)
        free = broker.disk.free
        broker.disk.free = 0
        broker.store.writer.flush(broker.clock.now_ms())
        await asyncio.sleep(12)
        assert bodies(broker) == []
        broker.disk.free = free
        broker.store.writer.flush(broker.clock.now_ms())
        await asyncio.sleep(15)
        assert bodies(broker) == [b"%02d" % number for number in range(50)]

    run(test)


def test_many_recalls_affect_only_the_messages_that_they_name() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 60_000
        drafts = [timer_draft(broker, b"%03d" % number, due_at_ms) for number in range(200)]
        await broker.store_messages(drafts)
        backs = [
            timer_draft(broker, b"0", due_at_ms, recalls=f"id-{number:03}", unique_id="x")
            for number in range(0, 200, 2)
        ]
        await broker.store_messages(backs + [replace(one) for one in backs])
        await asyncio.sleep(70)
        assert bodies(broker) == [b"%03d" % number for number in range(1, 200, 2)]

    run(test)


@pytest.mark.parametrize("later_s", [20, 40], ids=["before its time", "after its time"])
def test_kill_after_a_roll_delivers_the_message_once(later_s: int) -> None:
    disk = SimDisk()
    config = small_config(timer=TimerConfig(timer_roll_window_slot=12))

    async def kill() -> None:
        broker = SimulatedBroker(disk, config=config)
        await broker.start_deliveries()
        await send_at(broker, b"rolled", broker.clock.now_ms() + 25_000)
        await asyncio.sleep(14)
        assert broker.store.reader.max_offset(TIMER_TOPIC, 0) == 2
        broker.abandon()

    async def again() -> None:
        broker = SimulatedBroker(disk, config=config, later_ms=later_s * 1_000)
        await broker.start_deliveries()
        await asyncio.sleep(30)
        assert bodies(broker) == [b"rolled"]
        broker.abandon()

    run_virtual(kill())
    run_virtual(again())
