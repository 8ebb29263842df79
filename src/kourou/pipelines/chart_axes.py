"""Axes of charts: ticks and labels of values and times, and thinning of long lines. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, dropwhile, takewhile
from typing import Final

Point = tuple[int, float]
"""Epoch ms and value."""

TICKS: Final = 5
"""Approximate number of ticks of an axis."""
LOG_FROM_RATIO: Final = 100
"""Ratio of the peaks of two lines from which on the axis is logarithmic."""
DECADES_MAX: Final = 7
"""Maximum number of powers of ten of a logarithmic axis; smaller values are at its bottom."""

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_STEPS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 4, 7)),
)
_STEPS_MONTHS: Final = (1, 2, 3, 6, 12, 24, 60, 120, 240)
_MONTH_MS: Final = 61 * _DAY // 2


@dataclass(frozen=True, slots=True)
class ValueAxis:
    """The vertical axis.

    Attributes:
        ticks: values with a label, ascending; the first is the bottom, the last the top.
        is_logarithmic: whether equal distances are equal ratios. Values below the first tick, such
            as 0, are at the bottom.
    """

    ticks: Sequence[float]
    is_logarithmic: bool = False

    def height(self, value: float) -> float:
        """Return the height of a value: 0 at the bottom, 1 at the top."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.is_logarithmic:
            return math.log(max(value, low) / low) / math.log(high / low)
        return (value - low) / (high - low)


def value_axis(lines: Iterable[Iterable[float]]) -> ValueAxis:
    """Return the axis for the values of lines; a linear one includes 0.

    It is logarithmic if the peaks of the lines differ so much that the lowest line would be flat,
    and no value is negative.
    """
    values = [list(line) for line in lines]
    every = [value for line in values for value in line]
    low, high = min(every, default=0.0), max(every, default=0.0)
    peaks = [peak for line in values if (peak := max(line, default=0.0)) > 0]
    if low >= 0 and peaks and high >= LOG_FROM_RATIO * min(peaks):
        top = math.ceil(math.log10(high))
        bottom = math.floor(math.log10(min(value for value in every if value > 0)))
        bottom = max(min(bottom, top - 1), top - DECADES_MAX)
        return ValueAxis([10.0**power for power in range(bottom, top + 1)], is_logarithmic=True)
    low, high = min(0.0, low), max(0.0, high)
    step = nice_step((high - low) / TICKS)
    first, last = math.floor(low / step), math.ceil(high / step)
    return ValueAxis([number * step for number in range(first, max(last, first + 1) + 1)])


def nice_step(at_least: float) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is not below `at_least`."""
    if at_least <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(at_least))
    for factor in (1, 2, 5):
        if factor * power >= at_least:
            return factor * power
    return 10 * power


def time_ticks(first_ms: int, last_ms: int) -> list[tuple[int, str]]:
    """Return round times between two times, with their labels in UTC; the first if none is."""
    at_least = (last_ms - first_ms) / (TICKS + 1)
    step_ms = next((step for step in _STEPS_MS if step >= at_least), None)
    if first_ms == last_ms:
        return [(first_ms, f"{_utc(first_ms):%H:%M:%S}")]
    if step_ms is None:
        return _month_ticks(first_ms, last_ms, at_least)
    start = -(-first_ms // step_ms) * step_ms
    return [(at, _label(at, step_ms)) for at in range(start, last_ms + 1, step_ms)]


def time_span(first_ms: int, last_ms: int) -> str:
    """Return two times as text, with the date of the second one only if it differs."""
    first, last = (f"{_utc(at):%Y-%m-%d %H:%M:%S}" for at in (first_ms, last_ms))
    if first[:10] == last[:10]:
        last = last[11:]
    return f"{first} UTC" if first_ms == last_ms else f"{first} to {last} UTC"


def number(value: float) -> str:
    """Return a number for people: three significant digits, but all of an integer."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def pieces(points: Sequence[Point], gap_ms: int | None) -> list[Sequence[Point]]:
    """Return the points, divided where the next one is later by more than `gap_ms`."""
    if not points:
        return []
    cuts = [
        index
        for index in range(1, len(points))
        if gap_ms is not None and points[index][0] - points[index - 1][0] > gap_ms
    ]
    return [points[a:b] for a, b in zip([0, *cuts], [*cuts, len(points)], strict=True)]


def thinned(points: Sequence[Point], interval_ms: float) -> list[Point]:
    """Return the first, lowest, highest and last point of each interval, in their order.

    A line through them looks like the whole one if an interval is a pixel wide.
    """
    kept: list[Point] = []
    begin = 0
    for index in range(1, len(points) + 1):
        slot = int((points[begin][0] - points[0][0]) / interval_ms)
        if index < len(points) and int((points[index][0] - points[0][0]) / interval_ms) == slot:
            continue
        here = range(begin, index)
        lowest = min(here, key=lambda at: points[at][1])
        highest = max(here, key=lambda at: points[at][1])
        kept += [points[at] for at in sorted({begin, lowest, highest, index - 1})]
        begin = index
    return kept


def _month_ticks(first_ms: int, last_ms: int, at_least: float) -> list[tuple[int, str]]:
    months = next((n for n in _STEPS_MONTHS if n * _MONTH_MS >= at_least), _STEPS_MONTHS[-1])
    begin = _utc(first_ms).year * 12 // months * months
    starts = (_month_ms(number) for number in count(begin, months))
    within = takewhile(lambda at: at <= last_ms, dropwhile(lambda at: at < first_ms, starts))
    return [(at, f"{_utc(at):%Y}" if months >= 12 else f"{_utc(at):%b %Y}") for at in within]


def _month_ms(number: int) -> int:
    """Return the start of a month, counted from year 0."""
    return round(datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp() * 1000)


def _label(at_ms: int, step_ms: int) -> str:
    at = _utc(at_ms)
    if at_ms % _DAY == 0:
        return f"{at:%b} {at.day}"
    if step_ms < _SECOND:
        return f"{at:%H:%M:%S}.{at_ms % _SECOND:03}"
    return f"{at:%H:%M:%S}" if step_ms < _MINUTE else f"{at:%H:%M}"


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
