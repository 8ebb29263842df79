"""Which process and machine a client lives in: its address, and whether it was forked away."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

from kourou.errors import ForkedError

_ELSEWHERE: Final = ("192.0.2.1", 9)
"""An address for documentation: nobody is there, and nothing is sent."""


def call_in_forked_children(function: Callable[[], None]) -> None:
    """Call the function in each child that this process forks; Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class _Forks:
    """Counts the forks that lead to this process: cheaper than asking for its id at every call."""

    def __init__(self) -> None:
        self.count = 0
        call_in_forked_children(self._on_forked)

    def _on_forked(self) -> None:
        self.count += 1


_forks: Final = _Forks()


class ProcessGuard:
    """Notices that the process was forked.

    A child has the connections of its parent: what both write would mix. Its copy of a client must
    touch none of them.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._generation = _forks.count

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that made the guard."""
        return _forks.count != self._generation

    def check(self, kind: str) -> None:
        """Refuse to work in a child.

        Args:
            kind: what the client is, for the text.

        Raises:
            ForkedError: the process was forked since the guard was made.
        """
        if _forks.count != self._generation:
            raise ForkedError(
                f"the {kind} was made by process {self._pid}, from which this one was forked: "
                f"make a new {kind} here, or start processes by 'spawn'"
            )


def local_ip() -> str:
    """Return the address of the interface with the default route; 127.0.0.1 if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
