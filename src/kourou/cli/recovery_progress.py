"""Progress report of a long store recovery: a line on the terminal, or log entries."""

from __future__ import annotations

import logging
import sys
from typing import Final, TextIO

from kourou.cli.progress import Progress
from kourou.clock import Clock, SystemClock

log = logging.getLogger(__name__)

FIRST_MS: Final = 1_000
"""Shorter recoveries report no progress."""
LOG_INTERVAL_MS: Final = 3_000
_MIB: Final = 1024 * 1024


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
        self._next_log_at_ms = self._clock.now_ms() + FIRST_MS
        self._line: Progress | None = None
        self._shown = 0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Report the progress, in bytes of the log."""
        if self._is_terminal:
            self._show(done_bytes // _MIB, total_bytes // _MIB)
            return
        now_ms = self._clock.now_ms()
        if now_ms >= self._next_log_at_ms:
            self._next_log_at_ms = now_ms + LOG_INTERVAL_MS
            log.info("store.recovered_in_part bytes=%d of=%d", done_bytes, total_bytes)

    def _show(self, done_mib: int, total_mib: int) -> None:
        if self._line is None:
            self._line = Progress(
                "MiB of the log checked: the last stop was not clean",
                total_mib,
                stream=self._stream,
                clock=self._clock,
                is_shown=True,
                first_ms=FIRST_MS,
            )
        self._line.advance(done_mib - self._shown)
        self._shown = done_mib

    def end(self) -> None:
        """Erase the line, if there is one."""
        if self._line is not None:
            self._line.erase()
