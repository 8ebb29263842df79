"""Where the bytes of a connection land until they are whole frames.

All connections of a thread read into one shared buffer, because a buffer for each would cost a
gigabyte at a thousand connections, and a fresh one for each read half of the throughput. asyncio
and uvloop ask for the buffer and report what they read into it back to back, so between two reads
it belongs to nobody. What a read leaves of a frame is moved out of it:

    held           where
    0              nowhere
    up to 64 KiB   a copy, put back in front of the next read
    more           a private buffer, into which further reads go directly; it starts at twice the
                   bytes that came, and doubles as they come: what a frame announces costs nothing
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

SHARED_BYTES: Final = 1024 * 1024
"""Size of the buffer that all connections of a thread share: the most that one read takes."""

COPIED_BYTES_MAX: Final = 64 * 1024
"""Longest partial frame that is copied out and back; copying a longer one at each read adds up."""

_LENGTH_SIZE: Final = 4


class Holder(Protocol):
    """Somebody who holds bytes of a frame that is not whole yet."""

    def drop(self, reason: str) -> None:
        """Let go of everything at once, and tell the log why."""


class PartialFrames:
    """How many bytes of partial frames a server holds for all its connections together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}  # oldest frame first
        self.total_bytes = 0

    def hold(self, holder: Holder, size: int) -> None:
        """Record that the frame of `holder` now takes `size` bytes of memory.

        While the total is above the limit, drops the holder whose frame is the oldest, which may be
        `holder` itself: one who sends slowly is more likely to be up to no good than one who has
        just begun.
        """
        self.total_bytes += size - self._held.get(holder, 0)
        self._held[holder] = size
        while self.total_bytes > self._bytes_max:
            oldest = next(iter(self._held))
            self.release(oldest)
            oldest.drop(f"frames not whole yet take more than {self._bytes_max} bytes together")

    def release(self, holder: Holder) -> None:
        """Forget the frame of `holder`, if it has one."""
        self.total_bytes -= self._held.pop(holder, 0)


class _SharedBuffer(threading.local):
    """One buffer for each thread, made when its first connection is."""

    def __init__(self) -> None:
        self.data = bytearray(SHARED_BYTES)
        self.view = memoryview(self.data)


_shared = _SharedBuffer()


class FrameBuffer:
    """The read side of one connection, which it does not refer to: a cycle would be left of it.

    For each read, in this order: `space`, `received`, then `keep` with what was not consumed.

    Attributes:
        is_empty: nothing is held. What a read brings then lies in `shared`, from 0 on; if all of it
            is consumed, the two calls after `space` may be left out.
        shared, shared_view: see above.
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
        """Return where the next read shall put its bytes; never empty."""
        if self.is_empty:
            return self.shared_view
        if self._private is not None:
            return memoryview(self._private)[self._private_size :]
        size = len(self._copy)
        self.shared_view[:size] = self._copy
        return self.shared_view[size:]

    def received(self, size: int) -> tuple[bytearray, int]:
        """Return the buffer, and where the bytes in it end after a read of `size` more bytes.

        They begin at 0, are valid until `keep`, and must not be kept beyond it.
        """
        if self._private is not None:
            self._private_size += size
            return self._private, self._private_size
        return self.shared, len(self._copy) + size

    def keep(self, start: int, end: int, holder: Holder) -> None:
        """Remember the bytes from `start` to `end` of the buffer; those before are consumed.

        `holder` is dropped if they are too many, with those of others; always the same for one.
        """
        if start == end and self.is_empty:
            return  # the usual case: whole frames came, and nothing was held
        self.is_empty = start == end
        if start or start == end:
            self._partials.release(holder)
        if start == end:
            self._copy, self._private = b"", None
        elif self._private is None:
            self._keep_shared(start, end, holder)
        else:
            assert start == 0, "a private buffer ends where its frame ends"
            self._keep_private(self._private, end, holder)

    def put_back(self, frames: bytes, holder: Holder) -> None:
        """Hold frames that were consumed, as if they had just been kept; nothing else is held."""
        self.is_empty = False
        self._copy = frames
        self._partials.hold(holder, len(frames))

    def clear(self, holder: Holder) -> None:
        """Forget everything: the connection is closed."""
        self.is_empty = True
        self._partials.release(holder)
        self._copy, self._private = b"", None

    def _keep_shared(self, start: int, end: int, holder: Holder) -> None:
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

    def _keep_private(self, private: bytearray, end: int, holder: Holder) -> None:
        """Make room for more of the one frame that a private buffer holds."""
        frame = _frame_bytes(private, 0)
        if end == len(private) < frame:
            # A new buffer: the loop may still export the old one, which then cannot be resized.
            grown = bytearray(min(frame, 2 * end))
            grown[:end] = private
            self._private = grown
            self._partials.hold(holder, len(grown))


def _frame_bytes(data: bytearray, at: int) -> int:
    """Return how many bytes the frame at `at` has, its length field counted."""
    return _LENGTH_SIZE + int.from_bytes(data[at : at + _LENGTH_SIZE], "big")
