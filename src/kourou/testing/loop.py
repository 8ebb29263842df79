"""An asyncio event loop whose clock jumps to the next timer instead of waiting.

A test that waits for an hour of virtual time takes no real time, and every run is identical. The
loop has no threads and no real sockets: combine it with `kourou.testing.network.MemoryNetwork`.

`run_virtual` also fails on errors that asyncio tolerates:

- every task waits and no timer is set (`DeadlockError`, which lists the tasks and their lines);
- the main task is not done within the limit of virtual time, for example because only a periodic
  timer is left (`DeadlockError`);
- a callback or a task that is never awaited raised, which asyncio would only log;
- tasks are still running when the main task returns (`LeakedTasksError`).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

LIMIT_S: Final = 8 * 86_400.0
"""Default limit of virtual time, in seconds: more than the longest delay, three days."""

_GRACE_TURNS: Final = 20
"""Turns of the loop in which cancelled tasks may end after the main task has returned."""


class DeadlockError(Exception):
    """All tasks wait and no timer is set, or the limit of virtual time has passed."""


class LeakedTasksError(Exception):
    """The main task returned, but tasks that it started were still running."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits.

    Attributes:
        limit_s: limit of virtual time, in seconds since the creation of the loop.
        unhandled: exceptions passed to the loop's exception handler, oldest first.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._jumping = _JumpingSelector(self)
        super().__init__(self._jumping)
        self.limit_s = limit_s
        self.unhandled: list[BaseException] = []
        self.set_exception_handler(_collect_error)

    def time(self) -> float:
        """Return virtual seconds since the creation of the loop."""
        return self._jumping.now_s

    def advance(self, seconds: float) -> None:
        """Advance the clock at once, as a call that blocks the loop would."""
        self._jumping.now_s += seconds


class _JumpingSelector(selectors.SelectSelector):
    """Advances the loop's clock where the loop would block."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advance the virtual clock by `timeout` and return at once."""
        if timeout is None:
            waiting = "\n".join(_describe_tasks(self._loop))
            raise DeadlockError(f"all tasks wait and no timer is set:\n{waiting}")
        if timeout > 0:
            self.now_s += timeout
            if self.now_s > self._loop.limit_s:
                waiting = "\n".join(_describe_tasks(self._loop))
                raise DeadlockError(f"not done after {self._loop.limit_s} virtual s:\n{waiting}")
        return []


def run_virtual(main: Coroutine[Any, Any, T], *, limit_s: float = LIMIT_S) -> T:
    """Run `main` to its end in a new virtual-time loop and return its result.

    Raises:
        DeadlockError: all tasks wait and no timer is set, or `limit_s` virtual seconds passed.
        LeakedTasksError: tasks were still running when `main` returned.
        ExceptionGroup: `main` returned, but callbacks or tasks that were not awaited had raised.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit_s)) as runner:
        result = runner.run(_watch_leaks(main))
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        if loop.unhandled:
            raise BaseExceptionGroup("unhandled exceptions in the loop", loop.unhandled)
        return result


async def _watch_leaks(main: Coroutine[Any, Any, T]) -> T:
    """Await `main`; fail if tasks outlive it by more than `_GRACE_TURNS`."""
    result = await main
    for _ in range(_GRACE_TURNS):
        if len(asyncio.all_tasks()) == 1:
            return result
        await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    leaked = "\n".join(_describe_tasks(loop, besides=me))
    raise LeakedTasksError(f"still running when the main task returned:\n{leaked}")


def _describe_tasks(
    loop: asyncio.AbstractEventLoop, *, besides: asyncio.Task[Any] | None = None
) -> list[str]:
    """Return a line for each task of `loop`: its name and the source line at which it waits."""
    lines = []
    for task in asyncio.all_tasks(loop):
        if task is besides:
            continue
        lines.append(f"  {task.get_name()} {_innermost(task.get_coro())}")
    return sorted(lines)


def _innermost(coroutine: object) -> str:
    """Return the source line of the innermost frame that `coroutine` awaits."""
    where = "(nowhere)"
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None)
    return where


def _collect_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Collect an exception for `run_virtual` to raise; log other contexts, as asyncio does."""
    error = context.get("exception")
    if isinstance(loop, VirtualTimeLoop) and isinstance(error, BaseException):
        loop.unhandled.append(error)
    else:
        loop.default_exception_handler(context)
