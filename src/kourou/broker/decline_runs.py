"""Lets connections skip a fast path that keeps declining their frames.

A declined frame was decoded, and perhaps buffered, for nothing: the general path decodes it again.
A producer of scheduled messages, or a consumer with an SQL filter, sends nothing else. So after a
run of declined frames, the next frames of the connection go to the general path at once; then one
is tried again. The run is long, because a wrong skip costs ten times what a right one saves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from kourou.remoting.connection import Connection

RUN: Final = 16
"""Frames that a fast path declines in a row before the connection skips it."""
SKIPS: Final = 63
"""Frames that skip the fast path before one is tried again."""
_SKIPPED: Final = "skipped"
"""Reason that counters give for a frame that skipped the fast path."""
CUT_OFF: Final = "cut off"
"""Reason for an incomplete frame."""
_PASSING: Final = frozenset(
    {CUT_OFF, "connection", "hold", "limit", "messages not found", "segment end", "store"}
)
"""Reasons that say nothing about the next frame."""


@dataclass(slots=True)
class _Run:
    """State of one connection.

    Attributes:
        length: frames declined in a row.
        tries: calls of the fast path since the last declined frame.
        skips: number of the next frames that skip the fast path.
    """

    length: int = 0
    tries: int = 0
    skips: int = 0


class DeclineRuns:
    """Counts the frames that one fast path declines in a row, by connection.

    Attributes:
        runs: the connections that had a frame declined, until they close. While it is empty,
            `skips` need not be called.
    """

    def __init__(self, declined: Counter[str]) -> None:
        """Count frames that skip the fast path in `declined`, its counter by reason."""
        self.runs: dict[Connection, _Run] = {}
        self._declined = declined

    def skips(self, connection: Connection) -> bool:
        """Return whether the connection's next frame is to skip the fast path, and count it."""
        run = self.runs.get(connection)
        if run is None:
            return False
        if run.skips:
            run.skips -= 1
            self._declined[_SKIPPED] += 1
            return True
        run.tries += 1
        return False

    def note(self, connection: Connection, reason: str) -> None:
        """Note that the fast path declined the first frame that it was called with."""
        if reason in _PASSING:
            return
        run = self.runs.get(connection)
        if run is None:
            if not connection.is_open:
                return  # its entry would stay forever
            run = self.runs[connection] = _Run()
            connection.on_closed.append(self._remove)
        run.length = run.length + 1 if run.tries <= 1 else 1
        run.tries = 0
        if run.length >= RUN:
            run.skips = SKIPS

    def _remove(self, connection: Connection) -> None:
        self.runs.pop(connection, None)
