"""A jump of the wall clock is followed once it has lasted; one that is taken back never was."""

from __future__ import annotations

import pytest

from kourou.clock import STEP_MS, SettledClock, suspended_s
from kourou.testing.clock import EPOCH_MS, ManualClock

HOUR_MS = 3_600_000


class Machine:
    """A wall clock and one that never jumps."""

    def __init__(self) -> None:
        self.wall = ManualClock()
        self.steady_ms = 5_000

    def settled(self, settle_ms: int = HOUR_MS, known_ms: int = 0) -> SettledClock:
        return SettledClock(self.wall, lambda: self.steady_ms, lambda: settle_ms, known_ms)

    def wait(self, ms: int) -> None:
        self.wall.advance(ms)
        self.steady_ms += ms


@pytest.mark.parametrize("jump_ms", [-73 * HOUR_MS, -STEP_MS - 1, STEP_MS + 1, 73 * HOUR_MS])
def test_a_jump_counts_once_it_has_lasted(jump_ms: int) -> None:
    machine = Machine()
    clock = machine.settled()
    machine.wall.advance(jump_ms)
    assert clock.now_ms() == EPOCH_MS
    machine.wait(HOUR_MS - 1)
    assert clock.now_ms() == EPOCH_MS + HOUR_MS - 1
    machine.wait(1)
    assert clock.now_ms() == EPOCH_MS + HOUR_MS + jump_ms


def test_a_jump_that_is_taken_back_never_counts() -> None:
    machine = Machine()
    clock = machine.settled()
    for _ in range(3):
        machine.wall.advance(73 * HOUR_MS)
        machine.wait(HOUR_MS - 1)
        clock.now_ms()
        machine.wall.advance(-73 * HOUR_MS)
        machine.wait(1)
        clock.now_ms()
    assert clock.now_ms() == machine.wall.now_ms() == EPOCH_MS + 3 * HOUR_MS


def test_a_second_jump_begins_to_last_anew() -> None:
    machine = Machine()
    clock = machine.settled()
    machine.wall.advance(73 * HOUR_MS)
    clock.now_ms()
    machine.wait(HOUR_MS - 1)
    machine.wall.advance(HOUR_MS)
    clock.now_ms()
    machine.wait(HOUR_MS - 1)
    assert clock.now_ms() == EPOCH_MS + 2 * (HOUR_MS - 1)
    machine.wait(1)
    assert clock.now_ms() == machine.wall.now_ms()


@pytest.mark.parametrize("drift_ms", [-30, 30])
def test_drift_and_small_steps_are_followed_at_once(drift_ms: int) -> None:
    machine = Machine()
    clock = machine.settled()
    for _ in range(1_000):
        machine.wait(10_000)
        machine.wall.advance(drift_ms)
        assert clock.now_ms() == machine.wall.now_ms()
    machine.wall.advance(STEP_MS)
    assert clock.now_ms() == machine.wall.now_ms()


def test_at_the_start_the_last_time_that_is_known_counts_until_the_clock_has_lasted() -> None:
    machine = Machine()
    clock = machine.settled(known_ms=EPOCH_MS - 73 * HOUR_MS)
    assert clock.now_ms() == EPOCH_MS - 73 * HOUR_MS
    machine.wait(HOUR_MS)
    assert clock.now_ms() == EPOCH_MS + HOUR_MS


def test_a_known_time_in_the_future_does_not_count() -> None:
    machine = Machine()
    assert machine.settled(known_ms=EPOCH_MS + HOUR_MS).now_ms() == EPOCH_MS


def test_without_a_time_to_settle_the_clock_is_believed() -> None:
    machine = Machine()
    clock = machine.settled(settle_ms=0)
    machine.wall.advance(73 * HOUR_MS)
    assert clock.now_ms() == machine.wall.now_ms()


def test_time_in_which_the_machine_is_suspended_never_goes_back() -> None:
    assert -0.01 < suspended_s() <= suspended_s() + 0.01
