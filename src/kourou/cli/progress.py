"""How far long work is, on the terminal of who waits for it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Final, Self, TextIO

from kourou.clock import Clock, SystemClock

FIRST_MS: Final = 500
"""Work that is done sooner shows nothing."""
INTERVAL_MS: Final = 100


class Progress:
    """One line on stderr that is written over as the work goes on, and wiped at its end.

    Shown to a person only: stderr is a terminal, and stdout, where the work's lines would be
    mixed with it, is not.

    Args:
        noun: what is counted, as "messages".
        total: how many there will be, as far as is known.
        stream: where to write; None for stderr.
        clock: tells when to write.
        is_shown: None: if there is somebody to see it.
        first_ms: work that is done sooner shows nothing.
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
        """Note that so many more are done."""
        self.reach(self._done + count, self._total)

    def reach(self, done: int, total: int) -> None:
        """Note how many are done, of how many as is known now."""
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
        self.wipe()

    def wipe(self) -> None:
        """Take the line away."""
        if self._width:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = max(self._width, len(text))
