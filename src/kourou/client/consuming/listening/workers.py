"""A resizable pool of worker tasks, and turns: a resizable semaphore."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from kourou.client.background import failure_of

log = logging.getLogger(__name__)

_CANCELLATION_S: Final = 1.0
"""Seconds that a cancelled listener has to clean up."""


class Workers:
    """A pool of tasks that run the same coroutine.

    Args:
        work: run by each task. It must call `should_continue` wherever it can end, and must wait
            for work between `begin_waiting` and `end_waiting`, where cancelling must lose nothing.
        name: name of the tasks.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._work = work
        self._name = name
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()

    def resize(self, count: int) -> bool:
        """Set the number of tasks; return whether busy tasks are surplus and must end."""
        while len(self._tasks) < count:
            name = f"{self._name} {len(self._tasks)}"
            self._tasks.append(asyncio.create_task(self._work(), name=name))
        surplus = self._tasks[count:]
        del self._tasks[count:]
        for task in surplus:
            if not task.done():
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        for task in self._waiting & self._leaving:
            task.cancel()
        return bool(self._leaving - self._waiting)

    def problems(self) -> list[str]:
        """Return a text if workers ended unexpectedly."""
        reasons = [reason for task in self._tasks if (reason := failure_of(task)) is not None]
        if not reasons:
            return []
        stopped = f"{len(reasons)} of {len(self._tasks)} workers of the listener have stopped"
        return [f"{stopped}, the last one: {reasons[-1]}; restart the consumer"]

    def should_continue(self) -> bool:
        """Return whether the calling task should continue."""
        return asyncio.current_task() not in self._leaving

    def begin_waiting(self) -> None:
        """Mark the calling task as waiting: it may be cancelled."""
        me = asyncio.current_task()
        assert me is not None, "called by a worker"
        self._waiting.add(me)

    def end_waiting(self) -> None:
        """Mark the calling task as busy."""
        me = asyncio.current_task()
        assert me is not None, "called by a worker"
        self._waiting.discard(me)

    def other_tasks(self) -> list[asyncio.Task[None]]:
        """Return all unfinished tasks except the calling one."""
        return other_tasks([*self._tasks, *self._leaving])


def other_tasks(tasks: Iterable[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """Return the unfinished tasks except the calling one."""
    try:
        me = asyncio.current_task()
    except RuntimeError:  # called outside of an event loop
        me = None
    return [one for one in tasks if one is not me and not one.done()]


async def end_calls(tasks: list[asyncio.Task[None]], timeout_ms: int) -> None:
    """Wait at most `timeout_ms` for listener tasks that start no more calls, then cancel them.

    A call on a thread cannot be cancelled and is left to run. A listener that catches its
    cancellation and continues is abandoned after a second.
    """
    if not tasks:
        return
    try:
        _, late = await asyncio.wait(tasks, timeout=timeout_ms / 1000)
        if late:
            log.warning("listener.abandoned count=%d", len(late))
    finally:
        for task in tasks:
            task.cancel()
    await asyncio.wait(tasks, timeout=_CANCELLATION_S)


class Turns:
    """A fair semaphore with a variable limit.

    async with turns:
        ...
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_crowded(self) -> bool:
        """Whether more turns are taken than the limit allows: holders should leave."""
        return self._taken > self._limit

    def resize(self, limit: int) -> None:
        """Set the limit; turns already taken above it are not revoked."""
        self._limit = limit
        self._admit()

    async def __aenter__(self) -> None:
        if self._taken < self._limit and not self._waiting:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                if turn in self._waiting:
                    self._waiting.remove(turn)
            else:
                self._leave()  # it was admitted at the same moment
            raise

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._taken < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._taken += 1
