"""Requests of peers that are not answered yet: their number and their bytes are bounded.

Whatever waits for a disk or for a message keeps its request in memory, header texts and body, also
where the handler has no more use for them. They are counted here, at the one place where all
requests come in, so that no handler has to.
"""

from __future__ import annotations

from kourou.remoting.limits import ConnectionLimits


class UnansweredBytes:
    """What the unanswered requests of all connections of one server take together.

    Attributes:
        total: bytes of their frames.
    """

    def __init__(self) -> None:
        self.total = 0


class Unanswered:
    """The unanswered requests of one connection."""

    def __init__(self, limits: ConnectionLimits, shared: UnansweredBytes) -> None:
        self._limits = limits
        self._shared = shared
        self._count = 0
        self._bytes = 0
        self._is_closed = False

    def add(self, size: int) -> bool:
        """Count a request whose frame has `size` bytes; False, and not counted, beyond a limit."""
        limits = self._limits
        if (
            self._count >= limits.unanswered_requests_max
            or self._bytes + size > limits.unanswered_bytes_max
            or self._shared.total + size > limits.unanswered_bytes_total_max
        ):
            return False
        self._count += 1
        self._bytes += size
        self._shared.total += size
        return True

    def remove(self, size: int) -> None:
        """Count a request no more: it is answered."""
        if not self._is_closed:
            self._count -= 1
            self._bytes -= size
            self._shared.total -= size

    def close(self) -> None:
        """Count none of them any more: the connection has ended, and they are let go."""
        self._is_closed = True
        self._shared.total -= self._bytes
        self._bytes = 0
