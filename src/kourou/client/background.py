"""Tasks that a client keeps running, and their end.

A failure in one of them is logged, once until it works again, and must not end it: the next period
tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kourou.errors import KourouError

log = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 1.0
"""What a task may take to clean up after it was cancelled: some run what users wrote."""


class BackgroundTasks:
    """The tasks of one client, which end with it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, action: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Run `action` until it ends or `cancel` is called. What it raises is logged."""

        async def run() -> None:
            await _logged(action, name)

        task = asyncio.create_task(run(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def start_periodic(
        self,
        action: Callable[[], Awaitable[None]],
        interval_ms: int,
        name: str,
        *,
        first_ms: int | None = None,
    ) -> None:
        """Run `action` every `interval_ms`, first after `first_ms`; None: after one interval."""

        async def repeat() -> None:
            await asyncio.sleep((interval_ms if first_ms is None else first_ms) / 1000)
            is_failing = False
            while True:
                is_failing = not await _logged(action, name, is_failing=is_failing)
                await asyncio.sleep(interval_ms / 1000)

        self.start(repeat, name)

    def cancel(self) -> None:
        """Cancel all tasks; return without waiting for their end."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks but the one that calls, and wait for their end.

        One that catches its cancellation and goes on is left behind after a second.
        """
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_END_TIMEOUT_S)
            for task in late:
                log.warning("background.abandoned name=%s", task.get_name())


def why_ended(task: asyncio.Task[Any] | None) -> str | None:
    """Return what ended a task that was to go on; None if it runs, returned or was cancelled."""
    if task is None or not task.done() or task.cancelled():
        return None
    error = task.exception()
    return None if error is None else repr(error)


async def _logged(
    action: Callable[[], Awaitable[None]], name: str, *, is_failing: bool = False
) -> bool:
    """Return whether `action` did not raise; one that goes on failing says so once."""
    try:
        await action()
    except KourouError as error:
        level = logging.DEBUG if is_failing else logging.WARNING
        log.log(level, "background.failed name=%s reason=%s", name, error)
        return False
    except Exception:
        level = logging.DEBUG if is_failing else logging.ERROR
        log.log(level, "background.broken name=%s", name, exc_info=True)
        return False
    if is_failing:
        log.info("background.recovered name=%s", name)
    return True
