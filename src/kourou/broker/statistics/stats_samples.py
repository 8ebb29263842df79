"""Growth rates of counters: samples over the last minute, hour and day.

    window  sample interval  points held
    minute  10 s             7
    hour    10 min           7
    day     1 h              25

A rate is the difference between the newest and the oldest point of a window, divided by the time
between them. A sample processes only the items that were counted since the last one, so that its
cost depends on the traffic and not on the number of items. An item that is not counted for a whole
day is removed.

The module does no I/O and has no clock: times are arguments, in ms of a monotonic clock.

Source: StatsItem.java, StatsItemSet.java, apache/rocketmq 5.5.0. Unlike in Java, idle items are
removed, and the sums of hour and day include counts from before their first sample.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple


class Window(IntEnum):
    """The time that a rate covers."""

    MINUTE = 0
    HOUR = 1
    DAY = 2


INTERVALS_MS: Final = (10_000, 600_000, 3_600_000)
"""Time between two samples, by window."""
POINTS: Final = (7, 7, 25)
"""Points that are held, by window; they span one interval less than their number."""


_WIDTH: Final = 5
"""Numbers per point. A point holds an item's totals at one sample: tick, calls, messages, bytes,
ms. The points of a window are consecutive in one array, because as objects the points of an item
would take 9 KB."""


class Growth(NamedTuple):
    """Growth of items within a window, and the time that it took."""

    calls: int = 0
    messages: int = 0
    size_bytes: int = 0
    took_ms: int = 0
    span_ms: int = 0


class StatsItem:
    """Totals of one counted subject since its first count, and their samples.

    The totals are plain attributes, which the hot path updates. The caller that updates an item
    that is not touched also calls `Sampler.touch`.

    Attributes:
        path: key in the owner's nested tables: the name of a set and the parts of the key.
        is_system: whether it belongs to a system topic.
        is_touched: whether it was counted since the last sample.
        sizes: list that counts messages by the bit length of their size, see `BrokerStats.sizes`.
        by_type: message type -> [messages, bytes], for types other than normal.
        points: one array per window, see `_WIDTH`.
    """

    __slots__ = (
        "by_type",
        "calls",
        "is_system",
        "is_touched",
        "messages",
        "path",
        "points",
        "size_bytes",
        "sizes",
        "took_ms",
    )

    def __init__(
        self,
        path: tuple[str | int, ...],
        *,
        is_system: bool = False,
        sizes: list[int] | None = None,
    ) -> None:
        self.path = path
        self.is_system = is_system
        self.sizes = sizes if sizes is not None else []
        self.by_type: dict[str, list[int]] | None = None
        self.is_touched = False
        self.calls = 0
        self.messages = 0
        self.size_bytes = 0
        self.took_ms = 0
        self.points: tuple[array[int], ...] = (array("q"), array("q"), array("q"))

    def record(self, window: Window, tick: int) -> None:
        """Record the totals as those of the sample `tick`."""
        points = self.points[window]
        if not points:
            points.extend((tick - 1, 0, 0, 0, 0))  # it was first counted within this interval
        if (points[-4], points[-3]) == (self.calls, self.messages):
            return
        points.extend((tick, self.calls, self.messages, self.size_bytes, self.took_ms))
        oldest = tick - POINTS[window] + 1
        while len(points) > _WIDTH and points[_WIDTH] <= oldest:
            del points[:_WIDTH]

    def was_idle_since(self, tick: int) -> bool:
        """Return whether the item was not counted after the day's sample `tick`."""
        points = self.points[Window.DAY]
        return not self.is_touched and bool(points) and points[-_WIDTH] <= tick


class Sampler:
    """Takes the samples of all items that are passed to `touch`."""

    def __init__(self, now_ms: int) -> None:
        """Start all windows at `now_ms`."""
        self._ticks = [0, 0, 0]
        self._instants = tuple(deque([now_ms], maxlen=points) for points in POINTS)
        self._due_ms = [now_ms + interval for interval in INTERVALS_MS]
        self._touched: list[StatsItem] = []
        # By window, items to sample; filled by the samples of shorter windows. Ordered sets.
        self._touched_in: tuple[dict[StatsItem, None], ...] = ({}, {}, {})
        self._by_day_tick: deque[tuple[int, list[StatsItem]]] = deque()

    def touch(self, item: StatsItem) -> None:
        """Mark an item that is not touched as counted."""
        item.is_touched = True
        self._touched.append(item)

    def sample(self, now_ms: int) -> list[StatsItem]:
        """Take the samples that are due, and return the items that were idle for a day.

        To be called about every second. A call after a longer pause takes one sample per window.
        """
        idle: list[StatsItem] = []
        for window in Window:
            if now_ms < self._due_ms[window]:
                continue
            interval = INTERVALS_MS[window]
            self._due_ms[window] += interval * (1 + (now_ms - self._due_ms[window]) // interval)
            idle += self._sample(window, now_ms)
        return idle

    def growth(self, window: Window, items: Iterable[StatsItem]) -> Growth:
        """Return the summed growth of the items, and the time since the oldest point.

        Before the first sample of the items both are 0. An item that is newer than the window's
        last sample contributes all its counts.
        """
        newest = self._ticks[window]
        oldest = first = newest - POINTS[window] + 1
        starts = []
        calls = messages = size_bytes = took_ms = 0
        for item in items:
            points = item.points[window]
            if not points:
                # Not sampled yet for the hour or day: use its totals at its last minute sample.
                last_minute = item.points[Window.MINUTE]
                if last_minute:
                    calls, messages = calls + last_minute[-4], messages + last_minute[-3]
                    size_bytes, took_ms = size_bytes + last_minute[-2], took_ms + last_minute[-1]
                continue
            begin = 0
            for at in range(0, len(points), _WIDTH):
                if points[at] > oldest:
                    break
                begin = at
            starts.append(max(points[begin], oldest))
            calls += points[-4] - points[begin + 1]
            messages += points[-3] - points[begin + 2]
            size_bytes += points[-2] - points[begin + 3]
            took_ms += points[-1] - points[begin + 4]
        if not starts:
            return Growth(calls, messages, size_bytes, took_ms)
        first = min(starts)
        instants = self._instants[window]
        begin_ms = instants[max(0, len(instants) - 1 - (newest - first))]
        return Growth(calls, messages, size_bytes, took_ms, instants[-1] - begin_ms)

    def _sample(self, window: Window, now_ms: int) -> list[StatsItem]:
        tick = self._ticks[window] = self._ticks[window] + 1
        self._instants[window].append(now_ms)
        touched = self._touched_in[window]
        for narrower in self._touched_in[:window]:
            touched.update(narrower)
        touched.update(dict.fromkeys(self._touched))
        for item in touched:
            item.record(window, tick)
        if window is Window.MINUTE:
            for item in self._touched:
                item.is_touched = False
            self._touched.clear()
        if window is Window.DAY:
            self._by_day_tick.append((tick, list(touched)))
        else:
            self._touched_in[window + 1].update(touched)
        touched.clear()
        return self._idle(tick) if window is Window.DAY else []

    def _idle(self, tick: int) -> list[StatsItem]:
        """Return the items that were not counted in the day before the day's sample `tick`."""
        idle = []
        while self._by_day_tick and self._by_day_tick[0][0] <= tick - POINTS[Window.DAY]:
            at, items = self._by_day_tick.popleft()
            idle += [item for item in items if item.was_idle_since(at)]
        return idle
