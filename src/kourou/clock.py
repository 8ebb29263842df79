"""The one place that asks the operating system what time it is.

Everything else takes a `Clock`, so that a test can move three days in a millisecond. Waiting is
not here: loops wait with the event loop's own timers, which a test replaces by a virtual loop.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time."""

    def now_ms(self) -> int:
        """Return epoch milliseconds; they step back when the system's clock does."""


class SystemClock:
    """The operating system's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
