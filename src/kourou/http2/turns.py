"""Shares of connections in a turn of the event loop.

A connection that sends many frames at once has them handled over several turns, in each of which
the others have their share. The more connections send, the smaller is the share of each, so that
how long a client waits for the others hardly depends on their number.
"""

from __future__ import annotations

from typing import Final

TURN_FRAMES: Final = 128
"""Frames of all connections in one turn: 64 calls, whose records leave in one write."""
SHARE_FRAMES_MIN: Final = 8
"""Smallest share: to go on in another turn costs as much as some calls."""
PERIOD_S: Final = 0.02
"""Time for which a connection counts as one that sends."""


class Turns:
    """Counts the connections that send, and returns the share of one."""

    def __init__(self) -> None:
        self._senders: set[int] = set()
        self._senders_before = 0
        self._period_ends_s = 0.0

    def share(self, connection_id: int, now_s: float) -> int:
        """Return how many frames of a connection, which sends now, are handled in this turn.

        Args:
            connection_id: its number.
            now_s: the loop's time.
        """
        senders = self._senders
        if now_s >= self._period_ends_s:
            self._period_ends_s = now_s + PERIOD_S
            self._senders_before = len(senders)
            senders.clear()
        senders.add(connection_id)
        return max(SHARE_FRAMES_MIN, TURN_FRAMES // max(len(senders), self._senders_before))
