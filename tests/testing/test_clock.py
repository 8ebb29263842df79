"""Test clocks move only when the test advances them, or with virtual time."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.testing.clock import EPOCH_MS, LoopClock, ManualClock
from kourou.testing.loop import run_virtual


def test_a_manual_clock_moves_by_the_given_time() -> None:
    clock = ManualClock(1_000)
    clock.advance(500)
    clock.advance(-200)

    assert clock.now_ms() == 1_300


def test_a_loop_clock_follows_the_loop() -> None:
    async def main() -> tuple[int, int]:
        clock = LoopClock()
        before = clock.now_ms()
        await asyncio.sleep(3600)
        return before, clock.now_ms()

    assert run_virtual(main()) == (EPOCH_MS, EPOCH_MS + 3_600_000)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=20))
def test_a_timer_never_sees_a_clock_that_is_behind_it(steps_ms: list[int]) -> None:
    async def main() -> int:
        for step_ms in steps_ms:
            await asyncio.sleep(step_ms / 1000)
        return LoopClock(0).now_ms()

    assert run_virtual(main()) == sum(steps_ms)
