"""Signals that stop commands: SIGINT and SIGTERM between two messages or rows, servers also SIGHUP.

Shells let commands in the background of a script ignore SIGINT, so that Ctrl-C ends only the
script. asyncio does not handle a SIGINT that is ignored, and SIGTERM, which raises it here, would
then end a command in the middle of a message. It is blocked instead, until something handles both.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from kourou.cli.exits import INTERRUPTED

if TYPE_CHECKING:
    import asyncio  # not imported: most commands that fail at once never need it

T = TypeVar("T")


def end_at_sigterm() -> None:
    """Let SIGTERM act like Ctrl-C, so that a consumer commits what it printed."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def handle_stop_signals(loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None]) -> None:
    """Call a function at each SIGINT or SIGTERM, and once when the terminal closes.

    SIGINT arrives also in the background of a script, SIGHUP not under `nohup`.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    unblock()
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return

    def on_hang_up() -> None:
        # The kernel and the shell may send one each, the second possibly when the loop, with its
        # handlers, has ended. It asks for nothing more.
        if loop.remove_signal_handler(hang_up):
            signal.signal(hang_up, signal.SIG_IGN)
            on_signal()

    loop.add_signal_handler(hang_up, on_hang_up)


def _interrupt(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)
    unblock()


def unblock() -> None:
    """Let SIGINT arrive: it is handled now, also in the background of a script."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


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
        unblock()
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
