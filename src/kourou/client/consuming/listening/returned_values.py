"""Checks of a listener's return values.

A message is acknowledged whatever the listener returns; only an exception has it redelivered. A
status, as Java's listeners return, is reported once in the log. An awaitable must be awaited first.
A generator is an error: it has done no work yet, so its message would be lost.
"""

from __future__ import annotations

import inspect
import logging
from typing import Final

from kourou.errors import UsageError

log = logging.getLogger(__name__)

_REMEDY: Final = "a listener does its work before it returns, or is an `async def` without yield"


class ReturnedValues:
    """Checks the return values of one listener.

    Attributes:
        accepted_types: types that `is_done` has accepted, for a look-up before calling it. Never
            contains types of awaitables.
    """

    def __init__(self) -> None:
        self.accepted_types: set[type] = {type(None)}

    def is_done(self, value: object) -> bool:
        """Return whether the listener has done its work; if not, `value` must be awaited.

        Logs a warning for the first value of a type other than None, except True. May be called
        from any thread.

        Raises:
            UsageError: `value` is a generator.
        """
        kind = type(value)
        if kind in self.accepted_types:
            return True
        if inspect.isawaitable(value):
            return False
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise UsageError(f"the listener returned a generator, which has not run: {_REMEDY}")
        self.accepted_types.add(kind)
        if value is not True:
            log.warning(
                "listener.returned type=%s remedy=%s",
                kind.__name__,
                "the message is acknowledged whatever is returned: raise to have it redelivered",
            )
        return True
