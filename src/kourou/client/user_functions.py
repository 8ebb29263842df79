"""Functions of users: checks when they are registered, and classification of their exceptions.

A function is checked when it is registered, not when it is first called: at that time a message
could remain unconsumed, or a transaction open.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Final

from kourou.errors import UsageError

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
