"""Memory of the incomplete requests of one server: shares it between all calls.

    request          memory                                            when it is full
    small            counted as it arrives; a quarter of the limit     the oldest call fails
    large            reserved at its announced size, in order; three   waits; at most its stream's
                     quarters of the limit                             window of it has arrived

A large request that makes others wait fails after a timeout: its client may have stalled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Upload(Protocol):
    """A call whose request is incomplete."""

    def on_reserved(self) -> None:
        """Handle that the whole request may be sent."""

    def on_memory_lost(self, reason: str) -> None:
        """End the call; the caller has forgotten it already."""


class RequestMemory:
    """The incomplete requests of all connections. Uploads are compared by identity."""

    def __init__(self, bytes_max: int, timeout_s: float, now_s: Callable[[], float]) -> None:
        """Start empty.

        Args:
            bytes_max: limit of all incomplete requests in bytes.
            timeout_s: time that a large request has while others wait.
            now_s: returns elapsed seconds.
        """
        self._now_s = now_s
        self._bytes_max = bytes_max
        self._reserved_max = bytes_max * 3 // 4
        self._small_max = bytes_max - self._reserved_max
        self._timeout_s = timeout_s
        self._small: dict[Upload, int] = {}  # oldest first, with those that wait
        self._small_bytes = 0
        self._reserved: dict[Upload, tuple[int, float]] = {}  # size, time; oldest first
        self._reserved_bytes = 0
        self._waiting: dict[Upload, int] = {}  # oldest first

    @property
    def total_bytes(self) -> int:
        """Bytes counted and reserved."""
        return self._small_bytes + self._reserved_bytes

    def count(self, upload: Upload, size: int) -> None:
        """Count `size` bytes of a small request, in place of the former count.

        Fails the oldest ones while there are too many, possibly `upload` itself.
        """
        self._small_bytes += size - self._small.get(upload, 0)
        self._small[upload] = size
        while self._small_bytes > self._small_max:
            oldest = next(iter(self._small))
            self.release(oldest)
            oldest.on_memory_lost(
                f"incomplete requests of all clients exceed {self._small_max} bytes: "
                "send fewer at once"
            )

    def reserve(self, upload: Upload, size: int) -> bool:
        """Reserve the memory of a large request; False if it has to wait for `on_reserved`."""
        if self._waiting or self._reserved_bytes + size > self._reserved_max:
            self._waiting[upload] = size
            return False
        self._take(upload, size)
        return True

    def release(self, upload: Upload) -> None:
        """Forget a request that is complete or has ended; ignored if it is unknown."""
        self._small_bytes -= self._small.pop(upload, 0)
        self._waiting.pop(upload, None)
        reserved = self._reserved.pop(upload, None)
        if reserved is not None:
            self._reserved_bytes -= reserved[0]

    def check(self) -> None:
        """Fail large requests that make others wait too long, then reserve for those that wait.

        Call it after `release` and from time to time.
        """
        while self._waiting:
            upload, size = next(iter(self._waiting.items()))
            if self._reserved_bytes + size <= self._reserved_max:
                self.release(upload)
                self._take(upload, size)
                upload.on_reserved()
                continue
            oldest = next(iter(self._reserved))
            if self._now_s() - self._reserved[oldest][1] < self._timeout_s:
                return
            self.release(oldest)
            oldest.on_memory_lost(
                f"the request is incomplete after {self._timeout_s:g} s, and others wait"
            )

    def _take(self, upload: Upload, size: int) -> None:
        self._small_bytes -= self._small.pop(upload, 0)
        self._reserved[upload] = (size, self._now_s())
        self._reserved_bytes += size
