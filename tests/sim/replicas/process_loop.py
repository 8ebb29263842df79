"""A virtual-time loop of several processes, each with a clock of its own, that can be stopped.

A process is a context variable: all callbacks and tasks that a process creates inherit it.

    stopped    its callbacks wait, in their order, as after SIGSTOP; expired timers are due at once
               when it continues
    killed     its callbacks never run again, as after kill -9
    clock      `loop.time()` and timers of its code follow its own rate
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, ParamSpec, TypeVar, TypeVarTuple

from kourou.testing.loop import VirtualTimeLoop

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PROCESS: Final[ContextVar[SimProcess | None]] = ContextVar("process", default=None)
LIMIT_S: Final = 3_600.0
_NEVER_RETRIEVED: Final = "exception was never retrieved"
_EARLY_S: Final = 2e-9
"""A timer is set later by this.

An event loop calls timers up to a nanosecond early. In virtual time one that is set again until its
time has come would be called for ever.
"""


class SimProcess:
    """One process.

    Attributes:
        name: of the process.
        is_dead: it was killed.
        is_stopped: it is stopped.
    """

    def __init__(self, name: str, rate: float = 1.0) -> None:
        """Begin to run; `rate`: seconds of its clock in each second."""
        self.name = name
        self.is_dead = False
        self.is_stopped = False
        self._rate = rate
        self._waiting: list[_Guarded] = []

    def local_s(self, time_s: float) -> float:
        """Return the time of its clock."""
        return time_s * self._rate

    def global_s(self, local_s: float) -> float:
        """Return a time of the loop at which its clock certainly shows `local_s`."""
        return local_s / self._rate + _EARLY_S

    def stop(self) -> None:
        """Stop it until `resume`."""
        self.is_stopped = True

    def resume(self) -> None:
        """Let it continue with all that is due."""
        self.is_stopped = False
        waiting, self._waiting = self._waiting, []
        for guarded in waiting:
            guarded.run_later()

    def kill(self) -> None:
        """End it."""
        self.is_dead = True
        self._waiting.clear()

    def wait(self, guarded: _Guarded) -> None:
        """Keep a callback until `resume`."""
        self._waiting.append(guarded)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function as this process."""
        if _PROCESS.get() is self:
            return function(*args, **kwargs)

        def run() -> T:
            _PROCESS.set(self)
            return function(*args, **kwargs)

        return copy_context().run(run)

    def create_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this process."""
        return self.call(asyncio.get_running_loop().create_task, work)


def current_process() -> SimProcess | None:
    """Return the process whose code runs; None for the simulation itself."""
    return _PROCESS.get()


def outside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function as the simulation itself, such as its network."""
    return Context().run(function, *args, **kwargs)


class _Guarded:
    """A callback of a process."""

    __slots__ = ("_args", "_callback", "_process", "handle")

    handle: asyncio.Handle

    def __init__(self, process: SimProcess, callback: Callable[..., object]) -> None:
        self._process = process
        self._callback = callback
        self._args: tuple[Any, ...] = ()

    def __call__(self, *args: Any) -> None:
        process = self._process
        if process.is_dead:
            return
        if process.is_stopped:
            self._args = args
            process.wait(self)
            return
        self._callback(*args)

    def run_later(self) -> None:
        """Run in the loop's next turn, unless cancelled until then."""
        context: Context = self.handle._context  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()
        loop.call_soon(self._run_unless_cancelled, context=context)

    def _run_unless_cancelled(self) -> None:
        if not self.handle.cancelled():
            self._callback(*self._args)


def _typed(guarded: _Guarded) -> Any:
    """Return a callback whose arguments the type checker does not compare."""
    return guarded


class ProcessLoop(VirtualTimeLoop):
    """The loop."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Handle an error, unless nobody awaited it: a killed process leaves such futures."""
        if not context["message"].endswith(_NEVER_RETRIEVED):
            super().call_exception_handler(context)

    def time(self) -> float:
        now_s = super().time()
        process = _PROCESS.get()
        return now_s if process is None else process.local_s(now_s)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        caller = _PROCESS.get()
        when = when if caller is None else caller.global_s(when)
        process = caller if context is None else context.get(_PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        guarded = _Guarded(process, callback)
        handle = super().call_at(when, _typed(guarded), *args, context=context)
        guarded.handle = handle
        return handle

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        guarded = _Guarded(process, callback)
        handle = super().call_soon(_typed(guarded), *args, context=context)
        guarded.handle = handle
        return handle


def run_processes(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end, and return its result. Killed processes leave tasks behind.

    Raises:
        DeadlockError: `main` did not end within an hour of virtual time.
        ExceptionGroup: a callback raised.
    """
    loop = ProcessLoop(LIMIT_S)
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(main)
        if loop.unhandled:
            raise BaseExceptionGroup("unhandled exceptions in the loop", loop.unhandled)
        return result
    finally:
        _forget_tasks(loop)
        loop.close()
        asyncio.set_event_loop(None)


def _forget_tasks(loop: ProcessLoop) -> None:
    """End the tasks that killed processes have left; what they do about it is of no interest."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()
        loop._ready.clear()  # type: ignore[attr-defined]
        loop._scheduled.clear()  # type: ignore[attr-defined]
        gc.collect()
    finally:
        logging.disable(level)
        sys.unraisablehook = before
