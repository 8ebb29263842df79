"""The time for which a master may serve after a controller has confirmed it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from kourou.clock import suspended_s


class Lease:
    """One master's lease. Used in one event loop."""

    def __init__(self, duration_ms: int, on_ended: Callable[[], None]) -> None:
        """Create a lease that is not held; `on_ended` is called whenever it ends."""
        self._duration_s = duration_ms / 1000
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._ends_at_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def now_s(self) -> float:
        """Return seconds that advance also while the machine is suspended."""
        return self._loop.time() + suspended_s()

    @property
    def is_held(self) -> bool:
        """Whether the lease has not ended."""
        return self._ends_at_s > self.now_s()

    @property
    def left_s(self) -> float:
        """The time until its end; negative after it."""
        return self._ends_at_s - self.now_s()

    def renew(self, asked_at_s: float) -> None:
        """Hold the lease for its duration, counted from before the question was sent.

        An answer that comes later than that renews nothing, nor does one to an older question.
        """
        ends_at_s = asked_at_s + self._duration_s
        if ends_at_s > self.now_s():
            self.cancel()
            self._ends_at_s = max(self._ends_at_s, ends_at_s)
            self._check()

    def give_up(self) -> None:
        """End the lease without a report."""
        self.cancel()
        self._ends_at_s = -math.inf

    def cancel(self) -> None:
        """Wait for the end no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        left_s = self.left_s
        self._timer = None
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check)
        else:
            self._on_ended()
