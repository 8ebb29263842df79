"""Progress line of long operations on the terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final, Self, TextIO

from kourou.clock import Clock, SystemClock

FIRST_MS: Final = 500
"""Shorter operations show no progress."""
INTERVAL_MS: Final = 100


class Progress:
    """One line on stderr that is overwritten during the operation and erased at its end.

    By default it is shown only if stderr is a terminal and stdout is not, because output lines on
    the same terminal would mix with it.

    Args:
        noun: the counted things, such as "messages".
        total: expected number.
        stream: the stream to write to; None for stderr.
        clock: determines the times of updates.
        is_shown: whether to show the line; None for the default above.
        first_ms: time before the line is shown, in ms.
    """

    def __init__(
        self,
        noun: str,
        total: int,
        *,
        stream: TextIO | None = None,
        clock: Clock | None = None,
        is_shown: bool | None = None,
        first_ms: int = FIRST_MS,
    ) -> None:
        self._noun = noun
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock or SystemClock()
        if is_shown is None:
            is_shown = self._stream.isatty() and not sys.stdout.isatty()
        self._is_shown = is_shown
        self._done = 0
        self._next_at_ms = self._clock.now_ms() + first_ms
        self._width = 0

    def advance(self, count: int = 1) -> None:
        """Add `count` to the number done, and update the line."""
        self.reach(self._done + count, self._total)

    def reach(self, done: int, total: int) -> None:
        """Set the number done and the expected total, and update the line."""
        self._done, self._total = done, total
        now_ms = self._clock.now_ms()
        if not self._is_shown or now_ms < self._next_at_ms:
            return
        self._next_at_ms = now_ms + INTERVAL_MS
        share = min(1.0, self._done / self._total) if self._total else 1.0
        self._write(f"{self._done:,} of {self._total:,} {self._noun} ({share:.0%})")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.erase()

    def erase(self) -> None:
        """Erase the line."""
        if self._width:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = max(self._width, len(text))
