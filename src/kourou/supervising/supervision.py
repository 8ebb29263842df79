"""Decisions of a supervisor: which process to start, stop or kill, and when. Pure.

    start    group after group; the next group starts when all processes of the one before were
             ready once, or after `start_patience_s`
    end      a process that ended is started again: at once the first time, then after a pause that
             doubles. A process that was ready and ran for `steady_s` counts as new
    stop     group after group by SIGTERM; what still runs after `stop_patience_s` is killed

A series of failures is reported once, with the third. Times are those of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Final

FAILURES_OF_LOOP: Final = 3
"""Number of ends in a row by which a process counts as one that cannot run."""
_NEVER_S: Final = float("inf")


class Order(Enum):
    """An action on one process."""

    START = "start"
    STOP = "stop"
    KILL = "kill"


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Limits of waits, in seconds.

    Attributes:
        pause_first_s, pause_max_s: before the second start in a row, and the longest.
        steady_s: after so long, an end begins a new series.
        start_patience_s: most time that a group waits for the one before it.
        stop_patience_s: most time between SIGTERM and SIGKILL.
    """

    pause_first_s: float = 0.5
    pause_max_s: float = 30.0
    steady_s: float = 10.0
    start_patience_s: float = 20.0
    stop_patience_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Ending:
    """Consequence of the end of a process.

    Attributes:
        restart_in_s: until it is started again; None while the supervisor stops.
        failures: ends in a row.
        is_loop: whether this end makes it a process that cannot run, to be reported once.
        was_ready: whether it served before.
    """

    restart_in_s: float | None
    failures: int = 0
    is_loop: bool = False
    was_ready: bool = False


class _Child:
    """State of one process."""

    def __init__(self) -> None:
        self.is_running = False
        self.is_ready = False
        self.was_ready = False
        self.failures = 0
        self.started_s = 0.0
        self.due_s: float | None = None  # of the next start
        self.is_signalled = False
        self.is_killed = False


class Supervision:
    """The processes of one supervisor. Nothing runs until `due` is called."""

    def __init__(
        self,
        start_groups: Sequence[Sequence[str]],
        stop_groups: Sequence[Sequence[str]],
        patience: Patience | None = None,
    ) -> None:
        """Supervise processes by name.

        Args:
            start_groups: the names, in the order of the start.
            stop_groups: the same names, in the order of the stop.
            patience: limits of waits.
        """
        assert sorted(chain(*start_groups)) == sorted(chain(*stop_groups)), "the same names"
        self._starts = [list(group) for group in start_groups if group]
        self._stops = [list(group) for group in stop_groups if group]
        self._patience = patience or Patience()
        self._children = {name: _Child() for group in self._starts for name in group}
        self._group = -1
        self._group_began_s = 0.0
        self._stop_began_s = _NEVER_S  # of the group that is stopping, until it is killed
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def is_ended(self) -> bool:
        """Whether the supervisor stops, and no process runs any more."""
        return self._is_stopping and not any(c.is_running for c in self._children.values())

    @property
    def is_ready(self) -> bool:
        """Whether all processes are ready now."""
        return all(child.is_ready for child in self._children.values())

    def failures(self, name: str) -> int:
        """Return how often a process has ended in a row."""
        return self._children[name].failures

    def on_ready(self, name: str) -> None:
        """Note that a process serves."""
        child = self._children[name]
        child.is_ready = child.was_ready = True

    def on_end(self, name: str, now_s: float) -> Ending:
        """Note that a process has ended, or could not be started."""
        child, patience = self._children[name], self._patience
        if child.is_ready and now_s - child.started_s >= patience.steady_s:
            child.failures = 0
        was_ready = child.is_ready
        child.is_running = child.is_ready = False
        if self._is_stopping:
            return Ending(None, was_ready=was_ready)
        child.failures += 1
        pause_s = 0.0
        if child.failures > 1:
            doublings = min(child.failures - 2, 30)  # bounded, as the pause is
            pause_s = min(patience.pause_first_s * 2**doublings, patience.pause_max_s)
        child.due_s = now_s + pause_s
        is_loop = child.failures == FAILURES_OF_LOOP
        return Ending(pause_s, child.failures, is_loop, was_ready)

    def stop(self, first: Sequence[str] = ()) -> None:
        """Start nothing any more, and stop all processes in order, some of them before all."""
        self._is_stopping = True
        self._stops.insert(0, list(first))

    def due(self, now_s: float) -> list[tuple[Order, str]]:
        """Return what to do now, each once."""
        return self._due_stops(now_s) if self._is_stopping else self._due_starts(now_s)

    def next_due_s(self) -> float | None:
        """Return when `due` must be called again if nothing happens before; None for never."""
        if self._is_stopping:
            due_s = self._stop_began_s + self._patience.stop_patience_s
            return None if due_s == _NEVER_S else due_s
        times = [child.due_s for child in self._children.values() if child.due_s is not None]
        if self._group < len(self._starts) - 1:
            times.append(self._group_began_s + self._patience.start_patience_s)
        return min(times, default=None)

    def kill_all(self) -> list[tuple[Order, str]]:
        """Stop without patience: return a kill of each process that runs."""
        self._is_stopping = True
        return [(Order.KILL, name) for name in self._running(self._children)]

    def _due_starts(self, now_s: float) -> list[tuple[Order, str]]:
        self._open_groups(now_s)
        orders = []
        for name, child in self._children.items():
            if child.due_s is not None and child.due_s <= now_s:
                child.due_s, child.started_s, child.is_running = None, now_s, True
                orders.append((Order.START, name))
        return orders

    def _open_groups(self, now_s: float) -> None:
        """Let the next group start if the present one is ready, or has had its time."""
        while self._group < len(self._starts) - 1:
            present = self._starts[self._group] if self._group >= 0 else []
            is_late = now_s >= self._group_began_s + self._patience.start_patience_s
            if not (is_late or all(self._children[name].was_ready for name in present)):
                return
            self._group += 1
            self._group_began_s = now_s
            for name in self._starts[self._group]:
                self._children[name].due_s = now_s

    def _due_stops(self, now_s: float) -> list[tuple[Order, str]]:
        for group in self._stops:
            running = self._running(group)
            if not running:
                continue
            unsignalled = [name for name in running if not self._children[name].is_signalled]
            if unsignalled:
                self._stop_began_s = now_s
                for name in unsignalled:
                    self._children[name].is_signalled = True
                return [(Order.STOP, name) for name in unsignalled]
            if now_s < self._stop_began_s + self._patience.stop_patience_s:
                return []
            late = [name for name in running if not self._children[name].is_killed]
            for name in late:
                self._children[name].is_killed = True
            self._stop_began_s = _NEVER_S
            return [(Order.KILL, name) for name in late]
        return []

    def _running(self, names: Sequence[str] | dict[str, _Child]) -> list[str]:
        return [name for name in names if self._children[name].is_running]
