"""What a listener returned: nothing, mostly; and what is said where it is something else.

Returning acknowledges, whatever is returned: only raising has a message delivered again. Who comes
from Java may return what there would be a status, which is told once. A generator is refused: it
would have done nothing yet, so that its message would be lost.
"""

from __future__ import annotations

import inspect
import logging
from typing import Final

from kourou.errors import UsageError

log = logging.getLogger(__name__)

_REMEDY: Final = "a listener does its work before it returns, or is an `async def` without yield"


class ReturnedValues:
    """What one listener returned.

    Attributes:
        known: types of values of which nothing needs to be done or said any more; for a look-up
            before `is_done` is called. Those of what is to be awaited are never among them.
    """

    def __init__(self) -> None:
        self.known: set[type] = {type(None)}

    def is_done(self, value: object) -> bool:
        """Return whether the listener has done its work; if not, `value` is to be awaited.

        For any thread.

        Raises:
            UsageError: it returned a generator.
        """
        kind = type(value)
        if kind in self.known:
            return True
        if inspect.isawaitable(value):
            return False
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            raise UsageError(f"the listener returned a generator, which has not run: {_REMEDY}")
        self.known.add(kind)
        if value is not True:
            log.warning(
                "listener.returned type=%s remedy=%s",
                kind.__name__,
                "the message is acknowledged whatever is returned: raise to get it again",
            )
        return True
