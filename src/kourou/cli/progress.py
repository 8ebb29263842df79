"""Progress lines of long operations on the terminal."""

from __future__ import annotations

import logging
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


log = logging.getLogger(__name__)

RECOVERY_FIRST_MS: Final = 1_000
"""Shorter recoveries report no progress."""
RECOVERY_LOG_INTERVAL_MS: Final = 3_000
_MIB: Final = 1024 * 1024


class LogProgress:
    """Progress line of a read of the log; call it with the bytes done and the total.

    Args:
        verb: the operation, such as "verified".
        is_shown: False if output lines of the command go to the same terminal.
    """

    def __init__(self, verb: str, *, is_shown: bool = True) -> None:
        self._verb = verb
        # These commands print only at their end, so the same terminal can show both.
        self._is_shown = is_shown and sys.stderr.isatty()
        self._line: Progress | None = None
        self._shown = 0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Update the line."""
        if self._line is None:
            self._line = Progress(
                f"MiB of the log {self._verb}", total_bytes // _MIB, is_shown=self._is_shown
            )
        done = done_bytes // _MIB
        self._line.advance(max(0, done - self._shown))
        self._shown = done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._line is not None:
            self._line.erase()


class RecoveryProgress:
    """One line on a terminal, overwritten and erased at the end; otherwise periodic log entries.

    Called on the recovery thread; nothing else writes to the terminal meanwhile.

    Args:
        stream: the stream to write to, a terminal or not; None for stderr.
        clock: determines the times of reports.
    """

    def __init__(self, *, stream: TextIO | None = None, clock: Clock | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock or SystemClock()
        self._is_terminal = self._stream.isatty()
        self._next_log_at_ms = self._clock.now_ms() + RECOVERY_FIRST_MS
        self._line: Progress | None = None
        self._shown = 0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Report the progress, in bytes of the log."""
        if self._is_terminal:
            self._show(done_bytes // _MIB, total_bytes // _MIB)
            return
        now_ms = self._clock.now_ms()
        if now_ms >= self._next_log_at_ms:
            self._next_log_at_ms = now_ms + RECOVERY_LOG_INTERVAL_MS
            log.info("store.recovered_in_part bytes=%d of=%d", done_bytes, total_bytes)

    def _show(self, done_mib: int, total_mib: int) -> None:
        if self._line is None:
            self._line = Progress(
                "MiB of the log checked: the last stop was not clean",
                total_mib,
                stream=self._stream,
                clock=self._clock,
                is_shown=True,
                first_ms=RECOVERY_FIRST_MS,
            )
        self._line.advance(done_mib - self._shown)
        self._shown = done_mib

    def end(self) -> None:
        """Erase the line, if there is one."""
        if self._line is not None:
            self._line.erase()
