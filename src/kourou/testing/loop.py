"""An asyncio event loop whose clock jumps to the next timer instead of waiting.

A test that waits for an hour of virtual time takes no real time, and runs the same way every time.
The loop has no threads and no real sockets: pair it with `kourou.testing.network.MemoryNetwork`.

What a program may hide, a test must show. `run_virtual` therefore also fails when

- every task waits and no timer is set (`DeadlockError`, which lists who waits for what);
- the main task is not done when virtual time runs out, although some periodic timer still ticks;
- a callback or a forgotten task raised, which asyncio would only have logged;
- tasks are still running when the main task returns (`LeakedTasksError`).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

LIMIT_S: Final = 8 * 86_400.0
"""Default bound of virtual time, in seconds: the three days of the longest delay, and some more."""

_GRACE_TURNS: Final = 20
"""Turns of the loop that cancelled tasks get to end once the main task has returned."""


class DeadlockError(Exception):
    """Nothing can ever happen again, or what was waited for did not happen in the time given."""


class LeakedTasksError(Exception):
    """The main task returned, but tasks that it started were still running."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits.

    Attributes:
        limit_s: virtual time, in seconds since the loop was made, that must not be passed.
        unhandled: exceptions that reached the loop because nobody else took them, oldest first.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._jumping = _JumpingSelector(self)
        super().__init__(self._jumping)
        self.limit_s = limit_s
        self.unhandled: list[BaseException] = []
        self.set_exception_handler(_remember)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._jumping.now_s


class _JumpingSelector(selectors.SelectSelector):
    """Where the loop would block, advances its clock instead."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return at once; time passes only on the virtual clock."""
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
    """Run `main` to its end in a fresh virtual-time loop and return its result.

    Raises:
        DeadlockError: all tasks wait and no timer is set, or `limit_s` virtual seconds passed.
        LeakedTasksError: tasks were still running when `main` returned.
        ExceptionGroup: `main` returned, but callbacks or forgotten tasks had raised.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit_s)) as runner:
        result = runner.run(_watch_leaks(main))
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        if loop.unhandled:
            raise BaseExceptionGroup("nobody handled these", loop.unhandled)
        return result


async def _watch_leaks(main: Coroutine[Any, Any, T]) -> T:
    """Await `main`; fail if tasks outlive it by more than the turns a cancellation takes."""
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
    """Return a line for each task of `loop`: its name and the innermost line where it waits."""
    lines = []
    for task in asyncio.all_tasks(loop):
        if task is besides:
            continue
        lines.append(f"  {task.get_name()} {_innermost(task.get_coro())}")
    return sorted(lines)


def _innermost(coroutine: object) -> str:
    """Follow what `coroutine` awaits down to the last frame, and say where that is."""
    where = "(nowhere)"
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        coroutine = getattr(coroutine, "cr_await", None)
    return where


def _remember(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep an exception for `run_virtual` to raise; log what has none, as asyncio does."""
    error = context.get("exception")
    if isinstance(loop, VirtualTimeLoop) and isinstance(error, BaseException):
        loop.unhandled.append(error)
    else:
        loop.default_exception_handler(context)
