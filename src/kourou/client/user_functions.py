"""Functions that users give to clients: checked when given, and what their exceptions end.

A function is refused when it is given, not when it is first called: by then there may be a message
that no listener consumes, or a transaction that nothing ends.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final

from kourou.errors import UsageError

_SHOWN_MAX: Final = 80

PROGRAM_ENDS: Final = (KeyboardInterrupt, SystemExit)
"""Raised to end the program. All else that a user's function raises is the failure of its call."""


def ends_caller(error: BaseException, caller: asyncio.Task[Any] | None) -> bool:
    """Return whether what an awaited function raised ends the task that awaits it.

    A GeneratorExit does where it comes from outside, into a coroutine that is closed because its
    loop has ended: no task of that loop runs then. One that the function raises is its failure.

    Args:
        error: what was raised.
        caller: the task that awaited the function, as of before the call.
    """
    if not isinstance(error, GeneratorExit):
        return isinstance(error, PROGRAM_ENDS)
    try:
        return asyncio.current_task() is not caller
    except RuntimeError:  # no loop runs
        return True


def check_function(function: object, what: str, *takes: str) -> None:
    """Refuse what would do nothing, or raise, when it is called with so many arguments.

    Args:
        function: what was given.
        what: it is, as in `the listener`.
        takes: what it is called with, as in `a message`.

    Raises:
        UsageError: it cannot be called, not with these, or is a generator function.
    """
    wanted = " and ".join(takes)
    if not callable(function):
        shown = repr(function)[:_SHOWN_MAX]
        raise UsageError(f"{what} is {shown}: give a function that takes {wanted}")
    call = getattr(function, "__call__", None)  # noqa: B004  # not whether: which one
    for one in (function, call):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise UsageError(
                f"{what} is a generator function: it must do its work before it returns, or be an "
                "`async def` without yield"
            )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions written in C do not tell
    try:
        signature.bind(*takes)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        raise UsageError(
            f"{what} {name}{signature} must take {wanted} and nothing else: {error}"
        ) from None
