"""The one place that asks the operating system what time it is.

Everything else takes a `Clock`, so that a test can move three days in a millisecond. Waiting is
not here: loops wait with the event loop's own timers, which a test replaces by a virtual loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol


class Clock(Protocol):
    """Wall-clock time."""

    def now_ms(self) -> int:
        """Return epoch milliseconds; they step back when the system's clock does."""


class SystemClock:
    """The operating system's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def elapsed_s() -> float:
    """Return the seconds since some moment; they grow while a callback of the loop runs, too."""
    return time.monotonic()


STEP_MS: Final = 1_000
"""A step of the wall clock that `SettledClock` follows at once: the usual work of a time server."""


def suspended_s() -> float:
    """Return for how many seconds the machine has been suspended; 0 where the system does not tell.

    Linux counts them since the machine started. Event loops do not count that time.
    """
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    if boot_time is None:
        return 0.0
    return time.clock_gettime(boot_time) - time.clock_gettime(time.CLOCK_MONOTONIC)


class SettledClock:
    """Wall-clock time in which a jump counts only once it has lasted.

    For what cannot be undone, such as removing messages by their age. The time advances with a
    clock that never jumps; steps of up to `STEP_MS` between two readings, and drift, are followed
    at once. A larger jump is followed when the wall clock has kept it for `settle_ms`, counted from
    the first reading that saw it.
    """

    def __init__(
        self,
        clock: Clock,
        steady_ms: Callable[[], int],
        settle_ms: Callable[[], int],
        known_ms: int = 0,
    ) -> None:
        """Begin now.

        Args:
            clock: the wall clock.
            steady_ms: a clock that never jumps; its zero has no meaning.
            settle_ms: how long a jump must last.
            known_ms: the last wall-clock time that is known from before; 0 if none is. The time
                begins there if the wall clock is ahead of it: nobody knows whether that is so
                because time has passed, or because the clock has jumped.
        """
        self._clock = clock
        self._steady_ms = steady_ms
        self._settle_ms = settle_ms
        wall_ms, steady = clock.now_ms(), steady_ms()
        self._ahead_ms = (min(wall_ms, known_ms) if known_ms else wall_ms) - steady
        self._jump_ms = wall_ms - steady  # what the wall clock has said since `_jumped_at_ms`
        self._jumped_at_ms = steady

    @property
    def follows_wall(self) -> bool:
        """Whether the last reading was the wall clock's: there is no jump that must last yet."""
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
