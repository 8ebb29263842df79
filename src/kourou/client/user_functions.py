"""Functions that users give to clients: refused when given, not when they are first called.

By then there may be a message that nobody consumes, or a transaction that nobody ends.
"""

from __future__ import annotations

import inspect
from typing import Final

from kourou.errors import UsageError

_SHOWN_MAX: Final = 80


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
