"""Credit of a client for frames that cost the server work and the client little."""

from __future__ import annotations

from collections.abc import Callable

from kourou.errors import Http2Error
from kourou.http2.frames import ErrorCode


class FloodCredit:
    """The credit of one connection: a burst, a number a second, and one for each answered call.

    Attributes:
        answered: calls that were answered; incremented by the connection.
    """

    __slots__ = ("_answered_before", "_burst", "_left", "_now_s", "_per_s", "_read_s", "answered")

    def __init__(self, burst: int, per_s: int, now_s: Callable[[], float]) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._now_s = now_s
        self._left = self._burst
        self._read_s = now_s()
        self.answered = self._answered_before = 0

    def charge(self, what: str, count: int = 1) -> None:
        """Take the credit of `count` frames; `what` names them.

        Raises:
            Http2Error: there is not enough of it.
        """
        self._left -= count
        if self._left > 0:
            return
        now_s = self._now_s()
        self._left += (now_s - self._read_s) * self._per_s
        self._left += self.answered - self._answered_before
        self._left = min(self._left, self._burst)
        self._read_s = now_s
        self._answered_before = self.answered
        if self._left <= 0:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, f"too many frames, the last of them {what}"
            )
