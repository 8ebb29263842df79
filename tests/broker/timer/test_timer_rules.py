"""Rules of scheduled messages: rolling, recalls, order, limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.broker.writing.placement import Placement
from kourou.errors import (
    ConfigError,
    MessageIllegalError,
    NoPermissionError,
    RemoteSystemError,
)
from kourou.model import properties as names
from kourou.model.topic import TIMER_TOPIC
from kourou.store.config import StoreConfig
from kourou.store.retention import RetentionConfig
from kourou.testing.simulated_broker import SimulatedBroker
from tests.broker.delays.delay_rig import bodies, messages, run
from tests.broker.timer.timer_rig import send, send_at, timer_draft

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def test_messages_of_one_second_are_delivered_in_the_order_of_their_times() -> None:
    async def test(broker: SimulatedBroker) -> None:
        second = (broker.clock.now_ms() // 1000 + 20) * 1000
        for late in (900, 100, 1000, 500, 1):
            await send_at(broker, str(late).encode(), second + late)
        await asyncio.sleep(60)
        assert bodies(broker) == [b"1", b"100", b"500", b"900", b"1000"]
        for message in messages(broker):
            assert 0 <= message.store_at_ms - message.deliver_at_ms < 50

    run(test)


def test_a_rolled_message_is_delivered_to_the_millisecond() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 17 * MINUTE_MS + 123
        await send_at(broker, b"far", due_at_ms)
        await asyncio.sleep((17 * MINUTE_MS) / 1000 - 1)
        assert bodies(broker) == []
        assert broker.timers.counts.metrics().timing_count["T"].count == 1
        await asyncio.sleep(2)
        [message] = messages(broker)
        assert 0 <= message.store_at_ms - due_at_ms < 50
        assert message.properties[names.TIMER_ROLL_TIMES] == "8"
        assert broker.store.reader.max_offset(TIMER_TOPIC, 0) == 9
        assert broker.timers.counts.metrics().timing_count["T"].count == 0
        assert broker.timers.waiting == 0

    run(test, timer=TimerConfig(timer_roll_window_slot=120))


def test_a_waiting_message_is_stored_again_before_its_record_expires() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await send_at(broker, b"x", broker.clock.now_ms() + 2 * DAY_MS)
        await asyncio.sleep(0.8 * DAY_MS / 1000)
        assert broker.store.reader.max_offset(TIMER_TOPIC, 0) == 2

    store = StoreConfig(
        commitlog_segment_bytes=1 << 20,
        consumequeue_file_bytes=20_000,
        batch_queue_file_bytes=4_600,
        retention=RetentionConfig(file_reserved_hours=24),
    )
    run(test, store=store)


def test_a_message_with_a_recall_is_not_delivered() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 10_000
        for name in ("a", "b", "c"):
            await send_at(broker, name.encode(), due_at_ms)
        await send_at(broker, b"0", due_at_ms, recalls="id-b", unique_id="id-b")
        await send_at(broker, b"0", due_at_ms, recalls="T+id-c", unique_id="id-c")
        await send_at(broker, b"0", due_at_ms, recalls="id-a", unique_id="x", topic="Other")
        await asyncio.sleep(30)
        assert bodies(broker) == [b"a"]
        assert bodies(broker, "Other") == []
        assert broker.timers.waiting == 0
        assert broker.timers.counts.metrics().timing_count["T"].count == 0

    run(test)


def test_a_rolled_message_can_be_recalled() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 9 * HOUR_MS
        await send_at(broker, b"far", due_at_ms)
        await send_at(broker, b"kept", due_at_ms)
        await asyncio.sleep(3 * HOUR_MS / 1000)
        await send_at(broker, b"0", due_at_ms, recalls="id-far", unique_id="id-far")
        await asyncio.sleep(7 * HOUR_MS / 1000)
        assert bodies(broker) == [b"kept"]

    run(test, timer=TimerConfig(timer_roll_window_slot=7_200))


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        ({"TIMER_DELAY_SEC": "abc"}, "TIMER_DELAY_SEC is 'abc', and must be a whole number"),
        ({"TIMER_DELAY_MS": "1.5"}, "TIMER_DELAY_MS is '1.5'"),
        ({"TIMER_DELAY_MS": ""}, "TIMER_DELAY_MS is ''"),
        ({"TIMER_DELIVER_MS": "9" * 19}, "TIMER_DELIVER_MS is '9999"),
        ({"TIMER_DELIVER_MS": "99999999999999999"}, "max delay 316224000000ms .timerMaxDelaySec"),
        ({"TIMER_DELAY_SEC": "400000000"}, "it is due in 400000000000 ms; the delay time should"),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "a"}, "that was due at 1, now it is 17000"),
        ({"TIMER_DELAY_SEC": "-5", "TIMER_DEL_UNIQKEY": "a"}, "bigger than the current time"),
    ],
)
def test_an_invalid_or_too_distant_time_is_refused(reported: dict[str, str], words: str) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await asyncio.sleep(0)
        sends = broker.timers.placement(broker.runtime.random)
        with pytest.raises(MessageIllegalError, match=words) as caught:
            sends.place("T", 0, dict(reported), broker.clock.now_ms())
        assert caught.value.code == 13

    run(test)


@pytest.mark.parametrize("delay", ["0", "-1", "-99999999999", "+0"])
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_delay_of_zero_or_less_is_due_at_once(name: str, delay: str) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await asyncio.sleep(0)
        sends = broker.timers.placement(broker.runtime.random)
        placed = sends.place("T", 3, {name: delay}, broker.clock.now_ms())
        assert placed == Placement("T", 3)

    run(test)


def test_a_past_time_is_due_at_once_and_the_first_of_several_takes_precedence() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await asyncio.sleep(0)
        sends, now_ms = broker.timers.placement(broker.runtime.random), broker.clock.now_ms()
        past = {"TIMER_DELIVER_MS": str(now_ms - 1)}
        assert sends.place("T", 2, past, now_ms) == Placement("T", 2)
        assert past == {"TIMER_DELIVER_MS": str(now_ms - 1)}
        both = {"TIMER_DELAY_SEC": "7", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1"}
        assert sends.place("T", 2, both, now_ms).topic == TIMER_TOPIC
        assert both[names.TIMER_DELIVER_MS] == str(now_ms + 7_000)
        assert both[names.TIMER_OUT_MS] == str((now_ms + 6_999) // 1000 * 1000)
        assert (both[names.REAL_TOPIC], both[names.REAL_QID]) == ("T", "2")

    run(test)


def test_scheduled_messages_are_refused_with_the_wheel_off() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await asyncio.sleep(0)
        with pytest.raises(RemoteSystemError, match="timerWheelEnable is false"):
            timer_draft(broker, b"x", broker.clock.now_ms() + 1_000)

    run(test, timer=TimerConfig(timer_wheel_enable=False))


def test_sends_for_a_congested_second_are_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 60_000
        for name in range(2):
            await send_at(broker, str(name).encode(), due_at_ms)
            await asyncio.sleep(0.1)
        with pytest.raises(RemoteSystemError, match="flow control"):
            timer_draft(broker, b"x", due_at_ms)
        await send(broker, timer_draft(broker, b"other", due_at_ms + 1_000))

    run(test, timer=TimerConfig(timer_congest_num_each_slot=1))


@pytest.mark.parametrize(
    "bad",
    [
        {"timer_max_delay_sec": 0},
        {"timer_roll_window_slot": 604_800},
        {"timer_log_file_bytes": 60},
        {"timer_flush_interval_ms": 1},
    ],
)
def test_options_out_of_their_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TimerConfig(**bad)


def test_live_options_can_be_changed_and_others_are_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        now_ms = broker.clock.now_ms()
        await send_at(broker, b"x", now_ms + 60_000)
        broker.live_config.update({"timerMaxDelaySec": "59"}, now_ms)
        with pytest.raises(MessageIllegalError, match="max delay 59000ms"):
            timer_draft(broker, b"x", now_ms + 60_000)
        for key in ("timerStopDequeue", "timerPrecisionMs", "timerWheelEnable"):
            with pytest.raises(NoPermissionError, match=f"{key} can"):
                broker.live_config.update({key: "1"}, now_ms)
        with pytest.raises(RemoteSystemError, match="unknown setting timerMaxDelaySecs; did you"):
            broker.live_config.update({"timerMaxDelaySecs": "1"}, now_ms)

    run(test)


def test_many_messages_of_one_second_are_delivered_once_each() -> None:
    async def test(broker: SimulatedBroker) -> None:
        second = (broker.clock.now_ms() // 1000 + 30) * 1000
        names_sent = [f"{number:05}".encode() for number in range(3_000)]
        for at in range(0, len(names_sent), 500):
            await send(
                broker,
                *[
                    timer_draft(broker, name, second + 1 + int(name) % 1000)
                    for name in names_sent[at : at + 500]
                ],
            )
        await asyncio.sleep(60)
        assert sorted(bodies(broker)) == names_sent
        assert broker.timers.waiting == 0

    run(test, timer=TimerConfig(timer_in_flight_max=100))


def test_messages_due_while_the_broker_was_down_are_delivered_at_its_start() -> None:
    async def first(broker: SimulatedBroker) -> None:
        now_ms = broker.clock.now_ms()
        for after_s in (5, 3_600, 9_000):
            await send_at(broker, str(after_s).encode(), now_ms + after_s * 1000)
        await asyncio.sleep(1)

    async def second(broker: SimulatedBroker) -> None:
        await asyncio.sleep(1)
        assert bodies(broker) == [b"5", b"3600"]
        await asyncio.sleep(9_000 - 7_200 + 2)
        assert bodies(broker) == [b"5", b"3600", b"9000"]

    disk = run(first)
    run(second, disk, later_ms=7_200_000)


def test_a_stop_within_a_second_repeats_no_delivery() -> None:
    async def first(broker: SimulatedBroker) -> None:
        second = (broker.clock.now_ms() // 1000 + 5) * 1000
        for late in range(1, 1001, 100):
            await send_at(broker, str(late).encode(), second + late)
        await asyncio.sleep((second + 455 - broker.clock.now_ms()) / 1000)
        assert len(bodies(broker)) == 5

    async def again(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert bodies(broker) == [str(late).encode() for late in range(1, 1001, 100)]

    disk = run(first)
    run(again, disk, later_ms=5_800)
