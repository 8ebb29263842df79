"""Clocks: the only module that reads the time from the operating system.

All other modules take a `Clock` as an argument, so that a test can advance the time by three days
in a millisecond. Waiting is done with the event loop's timers, which a test replaces by those of a
virtual-time loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol


class Clock(Protocol):
    """Wall-clock time."""

    def now_ms(self) -> int:
        """Return epoch milliseconds; the value decreases when the system clock is set back."""


class SystemClock:
    """The operating system's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def elapsed_s() -> float:
    """Return monotonic seconds; they advance also while a callback of the event loop runs."""
    return time.monotonic()


STEP_MS: Final = 1_000
"""Largest step of the wall clock in ms that `SettledClock` follows at once: time synchronization
makes steps of this size in normal operation."""


def suspended_s() -> float:
    """Return for how many seconds the machine has been suspended; 0 where that is unavailable.

    Linux counts them since boot. The clock of an event loop excludes this time.
    """
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    if boot_time is None:
        return 0.0
    return time.clock_gettime(boot_time) - time.clock_gettime(time.CLOCK_MONOTONIC)


def boot_id() -> str | None:
    """Return an id of the time since the machine started; None where there is none.

    In that time the clock of event loops is the same for all processes.

    Source: Linux, random(4), /proc/sys/kernel/random/boot_id.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeError):
        return None


class SettledClock:
    """Wall-clock time that follows a jump only after the jump has lasted.

    It serves decisions that cannot be undone, such as removing messages by their age. The time
    advances with a monotonic clock. Drift, and steps of up to `STEP_MS` between two readings, are
    followed at once. A larger jump is followed after the wall clock has kept it for `settle_ms`,
    counted from the first reading that saw the jump.
    """

    def __init__(
        self,
        clock: Clock,
        steady_ms: Callable[[], int],
        settle_ms: Callable[[], int],
        known_ms: int = 0,
    ) -> None:
        """Start the clock.

        Args:
            clock: the wall clock.
            steady_ms: a monotonic clock with an arbitrary zero.
            settle_ms: returns how long a jump must last.
            known_ms: the last wall-clock time of an earlier run; 0 if there is none. If the wall
                clock is ahead of it, this clock starts at `known_ms`: the difference may be time
                that has passed or a jump, and the two cannot be told apart.
        """
        self._clock = clock
        self._steady_ms = steady_ms
        self._settle_ms = settle_ms
        wall_ms, steady = clock.now_ms(), steady_ms()
        self._ahead_ms = (min(wall_ms, known_ms) if known_ms else wall_ms) - steady
        self._jump_ms = wall_ms - steady  # the wall clock's lead since `_jumped_at_ms`
        self._jumped_at_ms = steady

    @property
    def follows_wall(self) -> bool:
        """Whether the last reading equalled the wall clock: no jump is waiting to be followed."""
        return self._ahead_ms == self._jump_ms

    def now_ms(self) -> int:
        """Return epoch milliseconds."""
        steady = self._steady_ms()
        ahead_ms = self._clock.now_ms() - steady
        if abs(ahead_ms - self._jump_ms) > STEP_MS:
            self._jumped_at_ms = steady
        self._jump_ms = ahead_ms
        has_settled = steady - self._jumped_at_ms >= self._settle_ms()
        if has_settled or abs(ahead_ms - self._ahead_ms) <= STEP_MS:
            self._ahead_ms = ahead_ms
        return steady + self._ahead_ms
