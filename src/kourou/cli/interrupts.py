"""SIGINT and SIGTERM of commands: both let a command end at one of its awaits.

Shells let commands in the background of a script ignore SIGINT, so that Ctrl-C ends only the
script. asyncio does not handle a SIGINT that is ignored, and SIGTERM, which raises it here, would
then end a command in the middle of a message. It is blocked instead.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio  # not imported: most commands that fail at once never need it


def end_at_sigterm() -> None:
    """Let SIGTERM act like Ctrl-C, so that a consumer commits what it printed."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def handle_stop_signals(loop: asyncio.AbstractEventLoop, on_signal: Callable[[], None]) -> None:
    """Call a function at each SIGINT or SIGTERM, also in the background of a script."""
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    _unblock()


def _interrupt(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)
    _unblock()


def _unblock() -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
