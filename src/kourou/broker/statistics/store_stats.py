"""What a broker's store did in all: rates by the second, how long puts took, totals by the day.

What request 28 tells of it. Pure: instants are arguments; `StoreStats` is written to by
`stats.py`, on the hot path.

Source: StoreStatsService.java, BrokerStats.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, NamedTuple

RATE_SPANS_S: Final = (10, 60, 600)
"""The rates that are told are those of the last so many seconds."""
ROUND_MS: Final = 60_000
"""How long puts are counted before their distribution is told."""

_SECOND_MS: Final = 1000
_TOOK_MAX_MS: Final = 10_001
"""Puts that took longer count as if they took this."""
_STEPS: Final = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9))
"""(width in ms, how many) of the ranges between which percentiles are interpolated."""
_RANGES: Final = (
    ("[<=0ms]", 1), ("[0~10ms]", 10), ("[10~50ms]", 50), ("[50~100ms]", 100),
    ("[100~200ms]", 200), ("[200~500ms]", 500), ("[500ms~1s]", 1000), ("[1~2s]", 2000),
    ("[2~3s]", 3000), ("[3~4s]", 4000), ("[4~5s]", 5000), ("[5~10s]", 10_000),
    ("[10s~]", _TOOK_MAX_MS + 1),
)  # fmt: skip
"""A range's name, and the ms below which it ends."""


class _Second(NamedTuple):
    """The totals at one second."""

    at_ms: int
    puts: int
    found: int
    missed: int
    transferred: int


class StoreStats:
    """The totals of one broker.

    Attributes:
        put_messages: stored, by whatever way.
        put_bytes: of their records.
        put_failures: puts of which nothing was stored.
        system_puts: messages stored in topics of the system's own.
        found: reads that found something.
        missed: reads that found nothing.
        get_messages: handed out.
        system_gets: those of them that are from topics of the system's own.
        put_took_max_ms, get_took_max_ms: the longest.
        morning: puts and gets, without system topics, until the begin of this day.
        morning_before: the same of the day before.
    """

    def __init__(self, now_ms: int) -> None:
        self.put_messages = 0
        self.put_bytes = 0
        self.put_failures = 0
        self.system_puts = 0
        self.found = 0
        self.missed = 0
        self.get_messages = 0
        self.system_gets = 0
        self.put_took_max_ms = 0
        self.get_took_max_ms = 0
        self.morning = (0, 0)
        self.morning_before = (0, 0)
        self._day: object = None
        self._seconds: deque[_Second] = deque(maxlen=RATE_SPANS_S[-1] + 1)
        self._took: dict[int, int] = {}  # ms -> puts, of this round
        self._last_took: Mapping[int, int] = {}
        self._round_ends_ms = now_ms + ROUND_MS

    @property
    def today(self) -> tuple[int, int]:
        """Puts and gets since the start, without system topics."""
        return self.put_messages - self.system_puts, self.get_messages - self.system_gets

    def on_took(self, took_ms: int, puts: int = 1) -> None:
        """Count a put by the time it took, or several that took the same."""
        if not 0 <= took_ms <= _TOOK_MAX_MS:  # a wall clock may step
            took_ms = 0 if took_ms < 0 else _TOOK_MAX_MS
        took = self._took
        took[took_ms] = took.get(took_ms, 0) + puts

    def sample(self, now_ms: int) -> None:
        """Note this second's totals, on a clock that only grows."""
        self._seconds.append(
            _Second(now_ms, self.put_messages, self.found, self.missed, self.get_messages)
        )
        if now_ms < self._round_ends_ms:
            return
        self._round_ends_ms = now_ms + ROUND_MS
        self.put_took_max_ms = self.took_max_ms()
        self._last_took, self._took = self._took, {}

    def note_day(self, day: object) -> None:
        """Tell which day it is; with a new one the totals of its morning are noted."""
        if self._day is not None and day != self._day:
            self.morning_before, self.morning = self.morning, self.today
        self._day = day

    def totals(self) -> dict[str, int]:
        """Return what request 315 tells of the whole broker: set -> messages."""
        puts, gets = self.today
        return {
            "BROKER_PUT_NUMS": self.put_messages,
            "BROKER_GET_NUMS": self.get_messages,
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": puts,
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": gets,
        }

    def took_max_ms(self) -> int:
        """Return how long the slowest put took."""
        return max(self.put_took_max_ms, max(self._took, default=0))

    def rates(self, field: str) -> list[float | None]:
        """Return `puts`, `found`, `missed` or `transferred` a second over each of `RATE_SPANS_S`.

        None where the broker does not run as long.
        """
        return [self._rate(field, span_s) for span_s in RATE_SPANS_S]

    def _rate(self, field: str, span_s: int) -> float | None:
        if len(self._seconds) <= span_s:
            return None
        last, first = self._seconds[-1], self._seconds[-1 - span_s]
        span_ms = last.at_ms - first.at_ms
        grown: int = getattr(last, field) - getattr(first, field)
        return grown / span_ms * _SECOND_MS if span_ms > 0 else 0.0

    def distribution(self) -> str:
        """Return how long the puts of the round before took, as Java writes it."""
        counts = [0] * len(_RANGES)
        for took_ms, count in self._last_took.items():
            at = next(at for at, (_, end) in enumerate(_RANGES) if took_ms < end)
            counts[at] += count
        named = zip(_RANGES, counts, strict=True)
        return "".join(f"{name}:{count} " for (name, _), count in named)

    def percentile_ms(self, part: float) -> float:
        """Return the time within which this part of the puts of the round before were stored."""
        wanted = int(sum(self._last_took.values()) * part)
        passed = 0
        for low, high in pairwise(_BOUNDS):
            count = sum(n for took_ms, n in self._last_took.items() if low < took_ms <= high)
            if low == 0:
                count += self._last_took.get(0, 0)
            if wanted <= passed + count:
                return low + ((high - low) * (wanted - passed) / count if count else 0.0)
            passed += count
        return float(_BOUNDS[-1])


def _bounds() -> tuple[int, ...]:
    """Return where the ranges of `_STEPS` end, 0 first."""
    bounds = [0]
    for width, times in _STEPS:
        bounds += [bounds[-1] + width * (n + 1) for n in range(times)]
    return (*bounds, _TOOK_MAX_MS)


_BOUNDS: Final = _bounds()
