"""Rate limit for warnings that peers can cause."""

from __future__ import annotations

from typing import Final

BURST: Final = 20
"""Warnings that may be logged in immediate succession."""

PER_S: Final = 2.0
"""Warnings that may be logged each second in the long run."""


class LogRate:
    """A token bucket that counts suppressed warnings."""

    def __init__(self, burst: int = BURST, per_s: float = PER_S) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = float(burst)
        self._filled_at_s = 0.0
        self._suppressed = 0

    def take(self, now_s: float) -> int | None:
        """Return the number suppressed since the last warning; None: suppress this one too."""
        gained = max(0.0, now_s - self._filled_at_s) * self._per_s
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._filled_at_s = now_s
        if self._tokens < 1:
            self._suppressed += 1
            return None
        self._tokens -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
