"""Background tasks of a client, and a watch for a blocked event loop, which delays them.

A failed run of a periodic task is logged, further failures in a row only at DEBUG level. The task
continues with its next period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kourou.errors import KourouError

log = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 1.0
"""Time for cancelled tasks to clean up; some of them run functions of users."""

_CHECK_INTERVAL_S: Final = 1.0
_LATE_S: Final = 3.0
"""Seconds of delay that are reported. Brokers remove a client after 120 s without heartbeat."""


class BackgroundTasks:
    """The background tasks of one client, cancelled when the client closes."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, action: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Run `action` in a task. An exception is logged."""

        async def run() -> None:
            await _run_logged(action, name)

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
        """Run `action` repeatedly, with a pause of `interval_ms` after each run.

        The first run begins after `first_ms`, by default after `interval_ms`.
        """

        async def repeat() -> None:
            await asyncio.sleep((interval_ms if first_ms is None else first_ms) / 1000)
            is_failing = False
            while True:
                is_failing = not await _run_logged(action, name, is_failing=is_failing)
                await asyncio.sleep(interval_ms / 1000)

        self.start(repeat, name)

    def cancel(self) -> None:
        """Cancel all tasks without waiting for their end."""
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks except the calling one and wait for their end.

        A task that suppresses its cancellation is abandoned after one second and logged.
        """
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_END_TIMEOUT_S)
            for task in late:
                log.warning("background.abandoned name=%s", task.get_name())


def failure_of(task: asyncio.Task[Any] | None) -> str | None:
    """Return the exception that ended a task, as text; None if it runs, returned or was cancelled.

    For tasks that should run as long as their client.
    """
    if task is None or not task.done() or task.cancelled():
        return None
    error = task.exception()
    return None if error is None else repr(error)


async def _run_logged(
    action: Callable[[], Awaitable[None]], name: str, *, is_failing: bool = False
) -> bool:
    """Run `action` and return whether it succeeded.

    A failure is logged, at DEBUG level if `is_failing`; so is the first success after a failure.
    """
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


async def watch_loop() -> None:
    """Measure the delay of the loop's wake-ups; log the first that exceeds `_LATE_S` and return."""
    loop = asyncio.get_running_loop()
    late_s = 0.0
    while late_s < _LATE_S:
        due_s = loop.time() + _CHECK_INTERVAL_S
        await asyncio.sleep(_CHECK_INTERVAL_S)
        late_s = loop.time() - due_s
    log.warning(
        "event_loop.blocked late_s=%.1f reason=%s",
        late_s,
        "a coroutine function blocks the event loop: heartbeats are late, and brokers remove "
        "this client after 120 s without one; let it await, or use a plain function as listener, "
        "which runs on a thread",
    )
