"""Periodic tasks of a broker, each in a loop that survives failures; waits of other loops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

Action = Callable[[], Awaitable[object]]


class PeriodicTasks:
    """The periodic tasks of one broker."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self, name: str, interval_ms: int, action: Action, due: asyncio.Event | None = None
    ) -> None:
        """Run `action` every `interval_ms`, counted from the end of the previous run.

        And as soon as `due` is set, which is then cleared.
        """
        task = asyncio.create_task(run_every(name, interval_ms, action, due), name=name)
        self._tasks.append(task)

    async def stop(self) -> None:
        """Cancel all loops, even in the middle of an action, and return when they have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def abandon(self) -> None:
        """Stop like a killed process: cancel all loops without waiting for them."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()


async def wait_woken(wake: asyncio.Event, wait_ms: int | None) -> None:
    """Wait for that time or until `wake` is set, and clear it; with None, until it is set.

    With 0, only let other tasks run; `wake` stays as it is.
    """
    if wait_ms == 0:
        await asyncio.sleep(0)
        return
    timer = None
    if wait_ms is not None:
        timer = asyncio.get_running_loop().call_later(wait_ms / 1000, wake.set)
    await wake.wait()
    wake.clear()
    if timer is not None:
        timer.cancel()


async def run_every(
    name: str, interval_ms: int, action: Action, due: asyncio.Event | None = None
) -> None:
    """Run `action` every `interval_ms`, and when `due` is set, until cancelled.

    Of failures in a row only the first is logged, and the success that ends them.
    """
    is_failing = False
    while True:
        if due is None:
            await asyncio.sleep(interval_ms / 1000)
        else:
            await wait_woken(due, interval_ms)
        try:
            await action()
        except Exception:
            if not is_failing:
                log.exception("loop.failed name=%s", name)
            is_failing = True
        else:
            if is_failing:
                log.info("loop.recovered name=%s", name)
            is_failing = False
