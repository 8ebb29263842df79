"""Frames of a replication stream, cut out of pieces that end anywhere, with few copies.

Pure. Frames that lie in one piece are views of it; only a frame that two pieces share is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TakeFrame = Callable[[memoryview], int]
"""Takes the frame at the start of the bytes, and returns its size. If it is not complete, takes
nothing and returns how many bytes must be there before it is called again: more than there are."""


class FramePieces:
    """The start of an incomplete frame: at most the bytes that `take` asks for."""

    __slots__ = ("_needed", "_rest", "_take")

    def __init__(self, take: TakeFrame) -> None:
        """Expect the first byte of a frame."""
        self._take: Final = take
        self._rest = bytearray()
        self._needed = 0  # bytes before `take` is called again

    def feed(self, data: bytes | memoryview) -> None:
        """Pass the frames that `data` completes to `take`, as views of it or of a copy."""
        rest, data = self._rest, memoryview(data)
        while rest and len(rest) + len(data) >= self._needed:
            missing = self._needed - len(rest)
            rest += data[:missing]
            data = data[missing:]
            frame = memoryview(bytes(rest))
            self._needed = self._take(frame)
            if self._needed <= len(frame):
                rest.clear()
        if rest:
            rest += data
            return
        while data:
            size = self._take(data)
            if size > len(data):
                self._needed = size
                rest += data
                return
            data = data[size:]
