"""Totals of a broker's store: rates per second, durations of puts, totals per day.

Request 28 reports them. The module does no I/O and has no clock: times are arguments. `stats.py`
updates `StoreStats` on the hot path.

Source: StoreStatsService.java, BrokerStats.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, NamedTuple

RATE_SPANS_S: Final = (10, 60, 600)
"""Rates are reported over the last 10, 60 and 600 seconds."""
ROUND_MS: Final = 60_000
"""Length of a round: the reported distribution of put durations is that of the last round."""

_SECOND_MS: Final = 1000
_DURATION_MAX_MS: Final = 10_001
"""A put that took longer is counted with this duration."""
_STEPS: Final = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9))
"""(width in ms, number) of the ranges in which percentiles are interpolated."""
_RANGES: Final = (
    ("[<=0ms]", 1), ("[0~10ms]", 10), ("[10~50ms]", 50), ("[50~100ms]", 100),
    ("[100~200ms]", 200), ("[200~500ms]", 500), ("[500ms~1s]", 1000), ("[1~2s]", 2000),
    ("[2~3s]", 3000), ("[3~4s]", 4000), ("[4~5s]", 5000), ("[5~10s]", 10_000),
    ("[10s~]", _DURATION_MAX_MS + 1),
)  # fmt: skip
"""(name, end in ms, exclusive) of each range of the distribution."""


class _Second(NamedTuple):
    """The totals at one second."""

    at_ms: int
    puts: int
    found: int
    missed: int
    transferred: int


class StoreStats:
    """Totals of one broker since its start.

    Attributes:
        put_messages: messages stored, by clients and by the broker itself.
        put_bytes: size of their records.
        put_failures: puts that stored nothing.
        system_puts: messages stored in system topics.
        found: reads that found messages.
        missed: reads that found none.
        get_messages: messages delivered.
        system_gets: messages delivered from system topics.
        put_took_max_ms, get_took_max_ms: the longest durations; of puts, without this round.
        morning: puts and gets, without system topics, up to the begin of this day.
        morning_before: the same for the day before.
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
        self._durations: dict[int, int] = {}  # ms -> puts, in this round
        self._last_durations: Mapping[int, int] = {}
        self._round_ends_ms = now_ms + ROUND_MS

    @property
    def today(self) -> tuple[int, int]:
        """Puts and gets since the start, without system topics."""
        return self.put_messages - self.system_puts, self.get_messages - self.system_gets

    def on_put_duration(self, took_ms: int, puts: int = 1) -> None:
        """Count a put by its duration, or several puts of the same duration."""
        if not 0 <= took_ms <= _DURATION_MAX_MS:  # a wall clock may step
            took_ms = 0 if took_ms < 0 else _DURATION_MAX_MS
        durations = self._durations
        durations[took_ms] = durations.get(took_ms, 0) + puts

    def sample(self, now_ms: int) -> None:
        """Record the totals of this second; `now_ms` is on a monotonic clock."""
        self._seconds.append(
            _Second(now_ms, self.put_messages, self.found, self.missed, self.get_messages)
        )
        if now_ms < self._round_ends_ms:
            return
        self._round_ends_ms = now_ms + ROUND_MS
        self.put_took_max_ms = self.took_max_ms()
        self._last_durations, self._durations = self._durations, {}

    def set_day(self, day: object) -> None:
        """Set the current day; when it changes, record the totals as those of its begin."""
        if self._day is not None and day != self._day:
            self.morning_before, self.morning = self.morning, self.today
        self._day = day

    def totals(self) -> dict[str, int]:
        """Return the totals of the broker that request 315 reports: name of the set -> messages."""
        puts, gets = self.today
        return {
            "BROKER_PUT_NUMS": self.put_messages,
            "BROKER_GET_NUMS": self.get_messages,
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": puts,
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": gets,
        }

    def took_max_ms(self) -> int:
        """Return the duration of the slowest put since the start."""
        return max(self.put_took_max_ms, max(self._durations, default=0))

    def rates(self, field: str) -> list[float | None]:
        """Return the rates per second of `field` over each of `RATE_SPANS_S`.

        `field` is `puts`, `found`, `missed` or `transferred`. A rate is None while the broker has
        not run that long.
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
        """Return the distribution of put durations in the last round, in Java's format."""
        counts = [0] * len(_RANGES)
        for took_ms, count in self._last_durations.items():
            at = next(at for at, (_, end) in enumerate(_RANGES) if took_ms < end)
            counts[at] += count
        named = zip(_RANGES, counts, strict=True)
        return "".join(f"{name}:{count} " for (name, _), count in named)

    def percentile_ms(self, part: float) -> float:
        """Return the time within which this part (0 to 1) of the last round's puts was stored."""
        wanted = int(sum(self._last_durations.values()) * part)
        passed = 0
        for low, high in pairwise(_BOUNDS):
            count = sum(n for took_ms, n in self._last_durations.items() if low < took_ms <= high)
            if low == 0:
                count += self._last_durations.get(0, 0)
            if wanted <= passed + count:
                return low + ((high - low) * (wanted - passed) / count if count else 0.0)
            passed += count
        return float(_BOUNDS[-1])


def _bounds() -> tuple[int, ...]:
    """Return the ends of the ranges of `_STEPS` in ms, with 0 before them."""
    bounds = [0]
    for width, times in _STEPS:
        bounds += [bounds[-1] + width * (n + 1) for n in range(times)]
    return (*bounds, _DURATION_MAX_MS)


_BOUNDS: Final = _bounds()
