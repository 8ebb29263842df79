"""SettledClock follows a jump of the wall clock only after it has lasted."""

from __future__ import annotations

import pytest

from kourou.clock import STEP_MS, SettledClock, suspended_s
from kourou.testing.clock import EPOCH_MS, ManualClock

HOUR_MS = 3_600_000


class Machine:
    """A wall clock and a monotonic clock."""

    def __init__(self) -> None:
        self.wall = ManualClock()
        self.steady_ms = 5_000

    def settled(self, settle_ms: int = HOUR_MS, known_ms: int = 0) -> SettledClock:
        return SettledClock(self.wall, lambda: self.steady_ms, lambda: settle_ms, known_ms)

    def wait(self, ms: int) -> None:
        self.wall.advance(ms)
        self.steady_ms += ms


@pytest.mark.parametrize("jump_ms", [-73 * HOUR_MS, -STEP_MS - 1, STEP_MS + 1, 73 * HOUR_MS])
def test_jump_is_followed_after_it_has_lasted(jump_ms: int) -> None:
    machine = Machine()
    clock = machine.settled()
    machine.wall.advance(jump_ms)
    assert clock.now_ms() == EPOCH_MS
    machine.wait(HOUR_MS - 1)
    assert clock.now_ms() == EPOCH_MS + HOUR_MS - 1
    machine.wait(1)
    assert clock.now_ms() == EPOCH_MS + HOUR_MS + jump_ms


def test_reverted_jump_is_never_followed() -> None:
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


def test_second_jump_restarts_the_settle_time() -> None:
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


def test_clock_starts_at_the_known_time_until_the_wall_clock_has_settled() -> None:
    machine = Machine()
    clock = machine.settled(known_ms=EPOCH_MS - 73 * HOUR_MS)
    assert clock.now_ms() == EPOCH_MS - 73 * HOUR_MS
    machine.wait(HOUR_MS)
    assert clock.now_ms() == EPOCH_MS + HOUR_MS


def test_known_time_in_the_future_is_ignored() -> None:
    machine = Machine()
    assert machine.settled(known_ms=EPOCH_MS + HOUR_MS).now_ms() == EPOCH_MS


def test_zero_settle_time_follows_the_wall_clock() -> None:
    machine = Machine()
    clock = machine.settled(settle_ms=0)
    machine.wall.advance(73 * HOUR_MS)
    assert clock.now_ms() == machine.wall.now_ms()


def test_suspended_time_never_decreases() -> None:
    assert -0.01 < suspended_s() <= suspended_s() + 0.01
