"""Counts of scheduled messages by topic survive stops, kills and an invalid file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.broker.timer.timer_counts import FILE_NAME
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.delays.delay_rig import run
from tests.broker.timer.timer_rig import send_at

HOUR_MS = 3_600_000


def waiting(broker: SimulatedBroker) -> dict[str, int]:
    metrics = broker.timers.counts.metrics()
    return {topic: one.count for topic, one in metrics.timing_count.items() if one.count}


async def fill(broker: SimulatedBroker) -> None:
    now_ms = broker.clock.now_ms()
    for number in range(5):
        await send_at(broker, b"%d" % number, now_ms + HOUR_MS, topic="TU"[number % 2])
    await send_at(broker, b"soon", now_ms + 1_000)
    await send_at(broker, b"0", now_ms + HOUR_MS, recalls="id-1", unique_id="id-1", topic="U")
    await asyncio.sleep(3)
    assert waiting(broker) == {"T": 3, "U": 2}


def test_counts_survive_a_stop() -> None:
    async def again(broker: SimulatedBroker) -> None:
        assert waiting(broker) == {"T": 3, "U": 2}
        await asyncio.sleep(2 * HOUR_MS / 1000)
        assert waiting(broker) == {}

    disk = run(fill)
    content = json.loads(disk.read(FILE_NAME, 0, 4096))
    assert {topic: one["count"] for topic, one in content["timingCount"].items()} == {
        "T": 3,
        "U": 2,
    }
    run(again, disk, later_ms=10_000)


def scribble(disk: SimDisk) -> None:
    for name in (FILE_NAME, f"{FILE_NAME}.bak"):
        disk.write(name, 0, [b"?"])


@pytest.mark.parametrize("harm", [lambda _: None, scribble])
def test_messages_are_counted_again_after_a_kill(harm: Callable[[SimDisk], None]) -> None:
    disk = run(fill)

    async def main() -> None:
        broker = SimulatedBroker(disk, config=small_config(timer=TimerConfig()), later_ms=10_000)
        await broker.timers.start()
        await send_at(broker, b"more", broker.clock.now_ms() + HOUR_MS, topic="V")
        await asyncio.sleep(1)
        broker.abandon()
        harm(disk)
        again = SimulatedBroker(disk, config=small_config(timer=TimerConfig()), later_ms=12_000)
        await again.timers.start()
        await asyncio.sleep(1)
        assert waiting(again) == {"T": 3, "U": 2, "V": 1}
        await again.stop()

    run_virtual(main())


def test_a_rolled_and_recalled_message_is_counted_once() -> None:
    async def test(broker: SimulatedBroker) -> None:
        due_at_ms = broker.clock.now_ms() + 9 * HOUR_MS
        await send_at(broker, b"far", due_at_ms)
        await send_at(broker, b"kept", due_at_ms)
        await send_at(broker, b"0", due_at_ms, recalls="id-far", unique_id="id-far")
        await asyncio.sleep(8 * HOUR_MS / 1000)
        assert waiting(broker) == {"T": 2}
        await asyncio.sleep(2 * HOUR_MS / 1000)
        assert waiting(broker) == {}

    run(test, timer=TimerConfig(timer_roll_window_slot=7_200))
