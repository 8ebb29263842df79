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

    def add(self, size: int, count: int = 1) -> bool:
        """Count requests, their frames of `size` bytes together; False, and none, beyond a limit.

        `has_room` and `add_all` in one, without two more calls: it is asked for each read.
        """
        limits, shared = self._limits, self._shared
        counted, own, total = self._count + count, self._bytes + size, shared.total + size
        if (
            counted > limits.unanswered_requests_max
            or own > limits.unanswered_bytes_max
            or total > limits.unanswered_bytes_total_max
        ):
            return False
        self._count, self._bytes, shared.total = counted, own, total
        return True

    def has_room(self, size: int, count: int) -> bool:
        """Tell whether so many more requests are allowed, their frames of `size` bytes in all."""
        limits = self._limits
        return (
            self._count + count <= limits.unanswered_requests_max
            and self._bytes + size <= limits.unanswered_bytes_max
            and self._shared.total + size <= limits.unanswered_bytes_total_max
        )

    def add_all(self, size: int, count: int) -> None:
        """Count requests for which `has_room` is true; their frames have `size` bytes together."""
        self._count += count
        self._bytes += size
        self._shared.total += size

    def remove(self, size: int, count: int = 1) -> None:
        """Count a request no more: it is answered; or several, of `size` bytes together."""
        self._count -= count
        self._bytes -= size
        self._shared.total -= size

    def close(self) -> None:
        """Count none of them any more: the connection has ended, and they are let go.

        What a read that goes on still adds, and what is answered late, changes nobody's total.
        """
        self._shared.total -= self._bytes
        self._shared = UnansweredBytes()
        self._count = self._bytes = 0
