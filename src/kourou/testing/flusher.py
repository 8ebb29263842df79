"""A flusher without threads: syncs end after a delay chosen by the seed, or fail, or hang.

Faults that a broker must survive: a slow sync, a failed sync, a sync that never ends, and a crash
during a sync, whose data is then completely on the disk or not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from kourou.broker.writing.flusher import SyncEnded
from kourou.store.sync_plan import SyncPlan
from kourou.store.writer import StoreWriter


class SimFlusher:
    """Runs syncs on the virtual-time loop.

    Attributes:
        sync_count: number of successful syncs.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seed: int = 0,
        delay_ms: tuple[float, float] = (0.5, 5.0),
    ) -> None:
        """Run syncs on `loop`.

        Args:
            loop: a virtual-time loop.
            seed: of each sync's duration, and of whether the disk is synced at the start or at the
                end of that time, which makes a difference for a crash in between.
            delay_ms: the shortest and the longest sync.
        """
        self.sync_count = 0
        self._loop = loop
        self._random = Random(seed)
        self._delay_ms = delay_ms
        self._error: OSError | None = None
        self._is_stalled = False
        self._stalled: list[tuple[StoreWriter, SyncPlan, SyncEnded]] = []
        self._timers: set[asyncio.TimerHandle] = set()

    def fail_next(self, error: OSError) -> None:
        """Make the next sync fail with `error`; its data stays unsynced."""
        self._error = error

    def stall(self) -> None:
        """Hold syncs that begin from now on until `release`."""
        self._is_stalled = True

    def release(self) -> None:
        """End the stalled syncs now."""
        self._is_stalled = False
        stalled, self._stalled = self._stalled, []
        for writer, plan, done in stalled:
            self._run(writer, plan, done)

    def sync(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        if self._is_stalled:
            self._stalled.append((writer, plan, done))
            return
        delay_s = self._random.uniform(*self._delay_ms) / 1000
        if self._error is None and self._random.random() < 0.5:
            error = _sync(writer, plan)
            self._later(delay_s, lambda: self._end(done, error))
        else:
            self._later(delay_s, lambda: self._run(writer, plan, done))

    def sync_queues(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        self.sync(writer, plan, done)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._stalled.clear()

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            action()

        timer = self._loop.call_later(delay_s, run)
        self._timers.add(timer)

    def _run(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        error: Exception | None
        error, self._error = self._error, None
        self._end(done, error or _sync(writer, plan))

    def _end(self, done: SyncEnded, error: Exception | None) -> None:
        self.sync_count += error is None
        done(error)


def _sync(writer: StoreWriter, plan: SyncPlan) -> Exception | None:
    try:
        writer.run_sync(plan)
    except Exception as error:  # noqa: BLE001 - as the real flusher; a test's disk raises any error
        return error
    return None
