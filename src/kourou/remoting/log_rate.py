"""A bound on how often peers can make us write a warning."""

from __future__ import annotations

from typing import Final

BURST: Final = 20
"""Warnings that may follow each other at once."""

PER_S: Final = 2.0
"""Warnings a second that may be written for ever."""


class LogRate:
    """A token bucket that counts what it swallowed."""

    def __init__(self, burst: int = BURST, per_s: float = PER_S) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = float(burst)
        self._filled_at_s = 0.0
        self._suppressed = 0

    def take(self, now_s: float) -> int | None:
        """Return how many were swallowed since the last one written; None: swallow this too."""
        gained = max(0.0, now_s - self._filled_at_s) * self._per_s
        self._tokens = min(float(self._burst), self._tokens + gained)
        self._filled_at_s = now_s
        if self._tokens < 1:
            self._suppressed += 1
            return None
        self._tokens -= 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
