"""Bounds on the number and the bytes of peers' unanswered requests.

A request that waits for the disk or for a message stays in memory with its header texts and body,
even if the handler no longer needs them. Requests are counted here, where all of them arrive, so
that handlers need not count.
"""

from __future__ import annotations

from kourou.remoting.limits import ConnectionLimits


class UnansweredBytes:
    """Bytes of the unanswered requests of all connections of one server.

    Attributes:
        total: frame bytes.
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

    @property
    def count(self) -> int:
        """Number of unanswered requests."""
        return self._count

    def add(self, size: int, count: int = 1) -> bool:
        """Count requests whose frames have `size` bytes in all; False, uncounted, above a limit.

        Combines `has_room` and `add_all` to save two calls: it runs for each read.
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
        """Return whether `count` more requests, with frames of `size` bytes in all, are allowed."""
        limits = self._limits
        return (
            self._count + count <= limits.unanswered_requests_max
            and self._bytes + size <= limits.unanswered_bytes_max
            and self._shared.total + size <= limits.unanswered_bytes_total_max
        )

    def add_all(self, size: int, count: int) -> None:
        """Count requests for which `has_room` returned True; frames of `size` bytes in all."""
        self._count += count
        self._bytes += size
        self._shared.total += size

    def remove(self, size: int, count: int = 1) -> None:
        """Stop counting `count` answered requests with frames of `size` bytes in all."""
        self._count -= count
        self._bytes -= size
        self._shared.total -= size

    def close(self) -> None:
        """Stop counting all requests of this connection: it is closed.

        A read still in progress and late replies no longer change the server's total.
        """
        self._shared.total -= self._bytes
        self._shared = UnansweredBytes()
        self._count = self._bytes = 0
