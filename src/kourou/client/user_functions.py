"""Functions of users: checks, threads that call them, and classification of their exceptions.

A function is checked when it is registered, not when it is first called: at that time a message
could remain unconsumed, or a transaction open.

Each client has its own threads, so that a function that blocks delays only its own client:
heartbeats, pulls and other clients run elsewhere.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from kourou.errors import UsageError
from kourou.remoting.runtime import Offload

P = ParamSpec("P")
T = TypeVar("T")
ArgumentT = TypeVar("ArgumentT")

_SHOWN_MAX: Final = 80

PROGRAM_ENDS: Final = (KeyboardInterrupt, SystemExit)
"""Exceptions that end the program. Any other exception of a user's function fails only its call."""


def ends_caller(error: BaseException, caller: asyncio.Task[Any] | None) -> bool:
    """Return whether an exception of an awaited function must end the task that awaits it.

    A GeneratorExit must if Python throws it into the coroutine because the loop has ended and the
    coroutine is closed; no task of the loop is running then. A GeneratorExit raised by the function
    itself is a failure of the call.

    Args:
        error: the exception.
        caller: the current task, as of before the call.
    """
    if not isinstance(error, GeneratorExit):
        return isinstance(error, PROGRAM_ENDS)
    try:
        return asyncio.current_task() is not caller
    except RuntimeError:  # no loop runs
        return True


def check_function(function: object, what: str, *arguments: str) -> None:
    """Raise if a call of the function would do nothing or fail.

    Args:
        function: the function.
        what: its role for the error text, such as `the listener`.
        arguments: its arguments for the error text, such as `a message`; their number is checked.

    Raises:
        UsageError: it is not callable, does not take these arguments, or is a generator function.
    """
    wanted = " and ".join(arguments)
    if not callable(function):
        shown = repr(function)[:_SHOWN_MAX]
        raise UsageError(f"{what} is {shown}: pass a function that takes {wanted}")
    call = getattr(function, "__call__", None)  # noqa: B004  # the method itself is needed
    for one in (function, call):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise UsageError(
                f"{what} is a generator function: it must do its work before it returns, or be an "
                "`async def` without yield"
            )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions written in C have no signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise UsageError(
            f"{what} {name}{signature} must take {wanted} and nothing else: {error}"
        ) from None


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Return whether the function, or its `__call__` method, is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # the method itself is needed
    )


class UserThreads:
    """A pool of at most `threads_max` threads, started on demand."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix=name)

    def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]:
        """Run `function` on a thread. Cancelling ends the wait, not the function."""
        return asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def resize(self, threads_max: int) -> None:
        """Set the maximum number of threads; functions already submitted finish on old threads."""
        old, self._executor = (
            self._executor,
            ThreadPoolExecutor(threads_max, thread_name_prefix=self._name),
        )
        old.shutdown(wait=False)

    def close(self) -> None:
        """Refuse new work and cancel queued work; threads end with their running functions."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class UserCalls:
    """Calls users' functions, at most `threads_max` plain ones at the same time.

    Args:
        threads_max: size of the thread pool; threads are started on first use.
        name: prefix of the thread names.
        run_blocking: runs plain functions instead of the pool, for tests.
    """

    def __init__(self, threads_max: int, name: str, run_blocking: Offload | None = None) -> None:
        self._threads = UserThreads(threads_max, name)
        self._run_blocking: Offload = run_blocking or self._threads

    async def call(
        self, function: Callable[[ArgumentT], T | Awaitable[T]], argument: ArgumentT
    ) -> T:
        """Call a function and return its result; an awaitable result is awaited.

        Cancelling ends the wait for a plain function, but not the function.
        """
        if is_coroutine_function(function):
            value: Any = function(argument)
        else:
            value = await self._run_blocking(function, argument)
        return await value if inspect.isawaitable(value) else value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Refuse further calls; threads end when their current function returns."""
        self._threads.close()
