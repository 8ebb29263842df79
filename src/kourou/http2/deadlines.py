"""Deadlines of many calls with one timer: those within one tick end together."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any, Final

TICK_S: Final = 0.02
"""Length of a tick in seconds: deadlines fire at most so much late."""


class Deadlines:
    """Hashable items by deadline. Adding and removing one costs less than a timer of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_passed: Callable[[Any], None]) -> None:
        """Start without items.

        Args:
            loop: whose time the deadlines are in.
            on_passed: called with each item whose deadline has passed; it is removed before.
        """
        self._loop = loop
        self._on_passed = on_passed
        self._by_tick: dict[int, dict[Any, None]] = {}
        self._ticks: list[int] = []  # a heap with the keys of `_by_tick`, and removed ones
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: object, deadline_s: float) -> None:
        """Report the item when its deadline has passed."""
        tick = _tick(deadline_s)
        items = self._by_tick.get(tick)
        if items is not None:
            items[item] = None
            return
        self._by_tick[tick] = {item: None}
        heapq.heappush(self._ticks, tick)
        if self._ticks[0] == tick:
            self._set_timer()

    def discard(self, item: object, deadline_s: float) -> None:
        """Remove an item that was added with this deadline; ignored if it is not there."""
        items = self._by_tick.get(_tick(deadline_s))
        if items is not None:
            items.pop(item, None)  # the tick itself stays until it is over

    def close(self) -> None:
        """Report nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._by_tick.clear()
        self._ticks.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._ticks[0] * TICK_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        passed: list[Any] = []
        while self._ticks and self._ticks[0] * TICK_S <= now_s:
            passed += self._by_tick.pop(heapq.heappop(self._ticks))
        if self._ticks:
            self._set_timer()
        for item in passed:
            self._on_passed(item)


def _tick(deadline_s: float) -> int:
    """Return the first tick that is not before a deadline."""
    return int(deadline_s / TICK_S) + 1
