"""Tasks that do the same work: as many as are wanted now, which may change while they work."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from kourou.client.background import why_ended

log = logging.getLogger(__name__)

_CANCELLATION_S: Final = 1.0
"""What a listener may take to clean up after it was cancelled."""


class Workers:
    """The tasks of one kind of work.

    Args:
        work: what each does. It calls `is_wanted` whenever it could end, and waits for more to do
            between `begin_waiting` and `end_waiting`, where cancelling it must lose nothing.
        name: what they are called.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._work = work
        self._name = name
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()

    def resize(self, count: int) -> bool:
        """Have so many; return whether some must end that do something now."""
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
        """Return what ended workers before they were told to end, in words."""
        reasons = [reason for task in self._tasks if (reason := why_ended(task)) is not None]
        if not reasons:
            return []
        ended = f"{len(reasons)} of {len(self._tasks)} workers of the listener have ended"
        return [f"{ended}, the last by {reasons[-1]}: restart the consumer"]

    def is_wanted(self) -> bool:
        """Return whether the task that asks is to go on."""
        return asyncio.current_task() not in self._leaving

    def begin_waiting(self) -> None:
        """Note that the task that calls may be cancelled."""
        me = asyncio.current_task()
        assert me is not None, "called by a worker"
        self._waiting.add(me)

    def end_waiting(self) -> None:
        """Note that the task that calls has something to do."""
        me = asyncio.current_task()
        assert me is not None, "called by a worker"
        self._waiting.discard(me)

    def others(self) -> list[asyncio.Task[None]]:
        """Return all tasks that have not ended, but the one that asks."""
        return others([*self._tasks, *self._leaving])


def others(tasks: Iterable[asyncio.Task[None]]) -> list[asyncio.Task[None]]:
    """Return those of the tasks that have not ended, but the one that asks."""
    try:
        me = asyncio.current_task()
    except RuntimeError:  # not called from a task, nor from the loop
        me = None
    return [one for one in tasks if one is not me and not one.done()]


async def end_calls(tasks: list[asyncio.Task[None]], timeout_ms: int) -> None:
    """Let tasks end that call a listener and begin no more calls, for so long in ms.

    What has not ended by then is cancelled, or left to its thread. A listener that catches its
    cancellation and goes on is left behind after a second.
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
    """At most so many at a time: a semaphore whose limit can change.

        async with turns:
            ...

    Who asks first is let in first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_crowded(self) -> bool:
        """Whether more are in than are let in now: who can is to leave."""
        return self._taken > self._limit

    def resize(self, limit: int) -> None:
        """Let so many in; where more are in already, those end first."""
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
                self._leave()  # it was let in at the same moment
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
