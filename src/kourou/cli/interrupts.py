"""Deferred Ctrl-C for row-wise work: it takes effect between two rows, never within one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from kourou.cli.exits import INTERRUPTED

T = TypeVar("T")


class Interrupts:
    """Context manager that defers Ctrl-C until the next row is requested.

    A wait for a row, for example from a pipe, is interrupted at once. A second Ctrl-C ends the
    process immediately, like a kill.

    Attributes:
        done: number of completed rows, that is, rows after which the next one was requested.
    """

    def __init__(self) -> None:
        self.done = 0
        self._is_waiting = False
        self._is_requested = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def between(self, rows: Iterable[T]) -> Iterator[T]:
        """Yield the rows.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        waiting = iter(rows)
        while True:
            self._is_waiting = True
            if self._is_requested:
                raise KeyboardInterrupt
            try:
                row = next(waiting)
            except StopIteration:
                return
            finally:
                self._is_waiting = False
            yield row
            self.done += 1

    def _on_signal(self, *_: object) -> None:
        if self._is_requested:
            os._exit(INTERRUPTED)
        self._is_requested = True
        if self._is_waiting:
            raise KeyboardInterrupt
