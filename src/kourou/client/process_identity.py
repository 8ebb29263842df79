"""Process and machine of a client: fork detection and the local IP address."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

from kourou.errors import ForkedError

_PROBE_ADDRESS: Final = ("192.0.2.1", 9)
"""An address reserved for documentation; connecting a UDP socket to it sends nothing."""


def call_in_forked_children(function: Callable[[], None]) -> None:
    """Call the function in each forked child of this process; no effect on Windows."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class _Forks:
    """Counts the forks from which this process descends; cheaper than `os.getpid` in each call."""

    def __init__(self) -> None:
        self.count = 0
        call_in_forked_children(self._on_forked)

    def _on_forked(self) -> None:
        self.count += 1


_forks: Final = _Forks()


class ProcessGuard:
    """Detects that the process was forked since the guard was created.

    A child inherits the sockets of its parent. If both wrote to them, their bytes would mix, so the
    child's copy of a client must not use them.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._generation = _forks.count

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the process that created the guard."""
        return _forks.count != self._generation

    def check(self, kind: str) -> None:
        """Raise in a forked child.

        Args:
            kind: the kind of client, for the error text.

        Raises:
            ForkedError: the process was forked since the guard was created.
        """
        if _forks.count != self._generation:
            raise ForkedError(
                f"the {kind} was created by process {self._pid}, from which this one was forked: "
                f"create a new {kind} here, or start processes by 'spawn'"
            )


def local_ip() -> str:
    """Return the address of the interface with the default route; 127.0.0.1 if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_PROBE_ADDRESS)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
