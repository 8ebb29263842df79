"""Read buffer of a connection: holds received bytes until they form complete frames.

All connections of a thread read into one shared buffer. A buffer for each connection would cost a
gigabyte at a thousand connections, and a new one for each read half of the throughput. asyncio and
uvloop request the buffer and report the read without running other code in between, so the buffer
is free between two reads. Bytes of an incomplete frame are moved out of it after a read:

    held bytes     stored in
    0              -
    up to 64 KiB   a copy, put back in front of the next read; so are more bytes if they begin with
                   a complete frame
    more           a private buffer, into which further reads go directly; it starts at twice the
                   received bytes and doubles as more arrive, so that a large announced frame size
                   alone allocates nothing
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

SHARED_BYTES: Final = 1024 * 1024
"""Size of the buffer that all connections of a thread share: the largest single read."""

COPIED_BYTES_MAX: Final = 64 * 1024
"""Longest partial frame that is copied out and back; longer ones would be copied at each read."""

_LENGTH_SIZE: Final = 4


class Holder(Protocol):
    """A connection that holds bytes of an incomplete frame."""

    def drop(self, reason: str) -> None:
        """Close immediately and log the reason."""


class PartialFrames:
    """Count of the bytes of partial frames that all connections of a server hold."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}  # oldest frame first
        self.total_bytes = 0

    def hold(self, holder: Holder, size: int) -> None:
        """Record that the partial frame of `holder` now takes `size` bytes of memory.

        While the total is above the limit, drops the holder whose frame is the oldest, possibly
        `holder` itself: a slow sender is more likely to be malicious than one that has just begun.
        """
        self.total_bytes += size - self._held.get(holder, 0)
        self._held[holder] = size
        while self.total_bytes > self._bytes_max:
            oldest = next(iter(self._held))
            self.release(oldest)
            oldest.drop(f"incomplete frames take more than {self._bytes_max} bytes in total")

    def release(self, holder: Holder) -> None:
        """Stop counting the frame of `holder`, if it has one."""
        self.total_bytes -= self._held.pop(holder, 0)


class _SharedBuffer(threading.local):
    """One buffer for each thread, created at import or when another thread first uses it."""

    def __init__(self) -> None:
        self.data = bytearray(SHARED_BYTES)
        self.view = memoryview(self.data)


_shared = _SharedBuffer()


class FrameBuffer:
    """The read buffer of one connection. It has no reference to it, to avoid a cycle.

    For each read, call `space`, `received`, then `hold` with the range that was not consumed.

    Attributes:
        is_empty: no bytes are held. The bytes of a read are then in `shared` from 0 on, and if all
            of them are consumed, `received` and `hold` need not be called.
        shared, shared_view: the thread's shared buffer and its view.
    """

    def __init__(self, partials: PartialFrames) -> None:
        self._partials = partials
        self.shared = _shared.data
        self.shared_view = _shared.view
        self.is_empty = True
        self._copy = b""
        self._private: bytearray | None = None
        self._private_size = 0

    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet consumed."""
        return len(self._copy) if self._private is None else self._private_size

    def space(self) -> memoryview:
        """Return the buffer for the next read; never empty."""
        if self.is_empty:
            return self.shared_view
        if self._private is not None:
            return memoryview(self._private)[self._private_size :]
        size = len(self._copy)
        self.shared_view[:size] = self._copy
        return self.shared_view[size:]

    def received(self, size: int) -> tuple[bytearray, int]:
        """Return the buffer and the end of its valid bytes after a read of `size` more bytes.

        The bytes begin at 0 and are valid until `hold` is called.
        """
        if self._private is not None:
            self._private_size += size
            return self._private, self._private_size
        return self.shared, len(self._copy) + size

    def hold(self, start: int, end: int, holder: Holder) -> None:
        """Hold the bytes from `start` to `end` of the buffer; those before are consumed.

        Connections are dropped if all held bytes exceed the limit; see `PartialFrames.hold`.
        `holder` must be the same object in each call.
        """
        if start == end and self.is_empty:
            return  # the usual case: only complete frames, nothing held before
        self.is_empty = start == end
        if start or start == end:
            self._partials.release(holder)
        if start == end:
            self._copy, self._private = b"", None
        elif self._private is None:
            self._hold_shared(start, end, holder)
        else:
            assert start == 0, "a private buffer ends where its frame ends"
            self._grow_private(self._private, end, holder)

    def put_back(self, frames: bytes, holder: Holder) -> None:
        """Hold frames that were consumed before. Nothing else may be held."""
        self.is_empty = False
        self._copy = frames
        self._partials.hold(holder, len(frames))

    def clear(self, holder: Holder) -> None:
        """Discard all held bytes: the connection is closed."""
        self.is_empty = True
        self._partials.release(holder)
        self._copy, self._private = b"", None

    def _hold_shared(self, start: int, end: int, holder: Holder) -> None:
        """Move bytes out of the shared buffer."""
        held = end - start
        frame = _frame_bytes(self.shared, start) if held >= _LENGTH_SIZE else 0
        if held <= COPIED_BYTES_MAX or frame <= held:
            self._copy = bytes(self.shared_view[start:end])
            self._partials.hold(holder, held)
            return
        private = bytearray(min(frame, 2 * held))
        private[:held] = self.shared_view[start:end]
        self._copy, self._private, self._private_size = b"", private, held
        self._partials.hold(holder, len(private))

    def _grow_private(self, private: bytearray, end: int, holder: Holder) -> None:
        """Enlarge the private buffer if it is full before its frame is complete."""
        frame = _frame_bytes(private, 0)
        if end == len(private) < frame:
            # A new buffer: the loop may still export the old one, which then cannot be resized.
            grown = bytearray(min(frame, 2 * end))
            grown[:end] = private
            self._private = grown
            self._partials.hold(holder, len(grown))


def _frame_bytes(data: bytearray, at: int) -> int:
    """Return the size in bytes of the frame at `at`, length field included."""
    return _LENGTH_SIZE + int.from_bytes(data[at : at + _LENGTH_SIZE], "big")
