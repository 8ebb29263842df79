"""Counts of scheduled messages by topic survive stops, kills and an invalid file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from kourou.broker.timer.timer_config import TimerConfig
from kourou.broker.timer.timer_counts import FILE_NAME
from kourou.testing.broker_parts import BrokerParts, small_config
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from tests.broker.delays.delay_rig import run
from tests.broker.timer.timer_rig import send_at

HOUR_MS = 3_600_000


def waiting(parts: BrokerParts) -> dict[str, int]:
    metrics = parts.timers.counts.metrics()
    return {topic: one.count for topic, one in metrics.timing_count.items() if one.count}


async def fill(parts: BrokerParts) -> None:
    now_ms = parts.clock.now_ms()
    for number in range(5):
        await send_at(parts, b"%d" % number, now_ms + HOUR_MS, topic="TU"[number % 2])
    await send_at(parts, b"soon", now_ms + 1_000)
    await send_at(parts, b"0", now_ms + HOUR_MS, recalls="id-1", unique_id="id-1", topic="U")
    await asyncio.sleep(3)
    assert waiting(parts) == {"T": 3, "U": 2}


def test_counts_survive_a_stop() -> None:
    async def again(parts: BrokerParts) -> None:
        assert waiting(parts) == {"T": 3, "U": 2}
        await asyncio.sleep(2 * HOUR_MS / 1000)
        assert waiting(parts) == {}

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
        parts = BrokerParts(disk, config=small_config(timer=TimerConfig()), later_ms=10_000)
        await parts.timers.start()
        await send_at(parts, b"more", parts.clock.now_ms() + HOUR_MS, topic="V")
        await asyncio.sleep(1)
        parts.abandon()
        harm(disk)
        again = BrokerParts(disk, config=small_config(timer=TimerConfig()), later_ms=12_000)
        await again.timers.start()
        await asyncio.sleep(1)
        assert waiting(again) == {"T": 3, "U": 2, "V": 1}
        await again.stop()

    run_virtual(main())


def test_a_rolled_and_recalled_message_is_counted_once() -> None:
    async def test(parts: BrokerParts) -> None:
        due_at_ms = parts.clock.now_ms() + 9 * HOUR_MS
        await send_at(parts, b"far", due_at_ms)
        await send_at(parts, b"kept", due_at_ms)
        await send_at(parts, b"0", due_at_ms, recalls="id-far", unique_id="id-far")
        await asyncio.sleep(8 * HOUR_MS / 1000)
        assert waiting(parts) == {"T": 2}
        await asyncio.sleep(2 * HOUR_MS / 1000)
        assert waiting(parts) == {}

    run(test, timer=TimerConfig(timer_roll_window_slot=7_200))
