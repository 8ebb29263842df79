"""A kill while the timer delivers checkpoints and acks: the next start decides as the last did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker
from tests.broker.popping.pop_rig import Got, PopRig

Life = Callable[[SimulatedBroker], Coroutine[Any, Any, None]]


def run_lives(*lives: Life, gap_ms: int = 100) -> None:
    """Run a broker for each life on one disk; all but the last one are killed.

    Args:
        lives: called with each broker.
        gap_ms: time between two lives by the wall clock; negative if it is set back meanwhile.
    """
    disk = SimDisk()
    later_ms = 0
    for number, life in enumerate(lives):
        ended_ms = run_virtual(run_life(disk, life, later_ms, is_last=number == len(lives) - 1))
        later_ms = ended_ms + gap_ms


async def run_life(disk: SimDisk, life: Life, later_ms: int, *, is_last: bool) -> int:
    """Run one life; return the wall-clock time at its end, in ms since `EPOCH_MS`."""
    broker = SimulatedBroker(disk, later_ms=later_ms)
    await broker.start_deliveries()
    await broker.topics.persist()
    await life(broker)
    ended_ms = broker.clock.now_ms() - EPOCH_MS
    if is_last:
        await broker.stop()
    else:
        broker.abandon()
    return ended_ms


@pytest.mark.parametrize("lives", [2, 3])
def test_message_acknowledged_after_its_checkpoint_was_copied_does_not_come_back(
    lives: int,
) -> None:
    async def acknowledge(broker: SimulatedBroker) -> None:
        rig = PopRig(broker)
        await rig.put(b"a", b"b")
        popped: Got = await rig.pop(invisible_time=5_000)
        await broker.tables.persist()
        await broker.timers.storage.flush()
        await asyncio.sleep(4.2)  # the timer copies a checkpoint a second before its time
        await rig.ack_all(popped)

    async def kill_again(broker: SimulatedBroker) -> None:
        await asyncio.sleep(3)
        await broker.commit.put_and_wait([broker.draft(b"c", queue_id=1)], broker.clock.now_ms())
        await broker.timers.storage.flush()

    async def pop(broker: SimulatedBroker) -> None:
        await asyncio.sleep(10)
        assert set((await PopRig(broker).pop()).bodies) <= {b"c"}

    # With the clock set back, the messages in flight are known when the checkpoint is due again.
    run_lives(acknowledge, *[kill_again] * (lives - 2), pop, gap_ms=-500)
