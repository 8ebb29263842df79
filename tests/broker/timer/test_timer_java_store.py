"""Scheduled messages in a store of the Java broker are delivered once each."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou.broker.timer.timer_config import TimerConfig
from kourou.model import properties as names
from kourou.model.topic import TIMER_TOPIC, TopicConfig
from kourou.store.timer.layouts import (
    KIND_DELETE,
    SLOT,
    SLOTS,
    WHEEL_BYTES,
    TimerUnit,
    encode_check,
)
from kourou.store.timer.wheel_files import TIMER_CHECK, TIMER_WHEEL, read_check
from kourou.store.tools.check import check_store
from kourou.testing.clock import EPOCH_MS
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.delays.delay_rig import bodies, messages, run
from tests.broker.timer.timer_rig import send_at
from tests.store.golden import load
from tests.store.timer.test_timer_golden import java_s_timer


def test_scheduled_messages_in_a_java_store_are_delivered() -> None:
    disk, java = java_s_timer()
    read_at_ms = java["check_point"]["lastReadTimeMs"]
    units = [TimerUnit(*one[1:]) for one in java["log"] if isinstance(one, list)]
    waiting = [one for one in units if one.second * 1000 >= read_at_ms]

    async def main() -> None:
        config = small_config(
            store=load("clean").config, max_message_size_bytes=1 << 14, timer=TimerConfig()
        )
        broker = SimulatedBroker(disk, config=config, later_ms=read_at_ms + 10_000 - EPOCH_MS)
        topics = {topic for topic in broker.store.reader.queues() if topic != TIMER_TOPIC}
        for topic in topics:
            broker.topics.ensure(TopicConfig(topic, 8, 8))
        before = {one: len(_ids(broker, one)) for one in topics}
        await broker.timers.start()
        assert broker.timers.waiting == sum(one.weight for one in waiting)
        counts = broker.timers.counts.metrics().timing_count.values()
        waiting_count = sum(not one.kind & KIND_DELETE for one in waiting)
        assert sum(one.count for one in counts) == waiting_count
        await asyncio.sleep(4 * 3600)
        came = Counter[str]()
        for topic in topics:
            came.update(_ids(broker, topic)[before[topic] :])
        rolled = sum(one.is_roll for one in waiting)
        recalled_names = sum(one.is_delete for one in waiting)
        assert set(came.values()) == {1}
        assert came.total() == len(waiting) - rolled - 2 * recalled_names
        assert broker.timers.intake_lag == 0
        await broker.stop()

    run_virtual(main())


def test_a_wheel_of_tenths_of_seconds_is_rebuilt_from_the_log() -> None:
    async def fill(broker: SimulatedBroker) -> None:
        for number in range(20):
            due_at_ms = broker.clock.now_ms() + 60_000 + number * 90
            await send_at(broker, b"%02d" % number, due_at_ms)

    async def deliver(broker: SimulatedBroker) -> None:
        await asyncio.sleep(100)
        assert bodies(broker) == [b"%02d" % number for number in range(20)]

    disk = run(fill)
    check = read_check(disk)
    disk.write(TIMER_CHECK, 0, [encode_check(check._replace(scan_from=None)), bytes(100)])
    tenths = EPOCH_MS // 100 + 600
    disk.write(TIMER_WHEEL, 0, [bytes(WHEEL_BYTES)])
    disk.write(TIMER_WHEEL, tenths % SLOTS * 32, [SLOT.pack(tenths, 0, 0, 1, 0)])
    [finding] = check_store(disk).findings
    assert "timerPrecisionMs" in finding.problem
    run(deliver, disk, later_ms=5_000)


def _ids(broker: SimulatedBroker, topic: str) -> list[str]:
    return [
        f"{queue_id} {message.msg_id} {message.store_at_ms}"
        for queue_id in broker.store.reader.queues().get(topic, ())
        for message in messages(broker, topic, queue_id)
        if names.TIMER_DEQUEUE_MS in message.properties
    ]
