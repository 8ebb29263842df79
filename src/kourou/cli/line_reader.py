"""Lines of a file or a pipe, read without blocking the event loop, in bounded memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from io import RawIOBase
from typing import BinaryIO, Final

from kourou.errors import UsageError

CHUNK_BYTES: Final = 64 * 1024
CHUNKS_AHEAD_MAX: Final = 8
"""Maximum number of chunks that are read ahead."""


class LineSplitter:
    """Splits chunks of any size into lines without line ends; omits empty lines.

    Buffers at most one incomplete line, of `line_bytes_max` bytes.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._partial = bytearray()
        self._number = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in `chunk`.

        Raises:
            UsageError: a line is too long; the text names its number.
        """
        *whole, rest = chunk.split(b"\n")
        lines = [self._finish(piece) for piece in whole]
        self._partial += rest
        self._check(len(self._partial))
        return [line for line in lines if line]

    def close(self) -> list[bytes]:
        """Return the last line if the stream ended without a line end.

        Raises:
            UsageError: the line is too long.
        """
        line = self._finish(b"")
        return [line] if line else []

    def _finish(self, piece: bytes) -> bytes:
        line = (bytes(self._partial) + piece).removesuffix(b"\r")
        self._check(len(line))
        self._partial.clear()
        self._number += 1
        return line

    def _check(self, size: int) -> None:
        if size > self._line_bytes_max:
            raise UsageError(
                f"line {self._number + 1} is longer than {self._line_bytes_max:,} bytes"
            )


async def read_lines(
    stream: RawIOBase | BinaryIO, line_bytes_max: int
) -> AsyncIterator[list[bytes]]:
    """Yield the stream's lines as they arrive, several at a time.

    A thread reads, so that a silent pipe does not block the event loop. The thread closes the
    stream at its end. If the iteration is abandoned, the stream stays open until the process ends.

    Args:
        stream: an unbuffered stream. With a buffered one, Python aborts if the process ends, for
            example after Ctrl-C, while a thread waits in a read.
        line_bytes_max: maximum length of a line in bytes.

    Raises:
        UsageError: a line is longer than `line_bytes_max`, or the stream cannot be read.
    """
    splitter = LineSplitter(line_bytes_max)
    async for chunk in _chunks(stream):
        if lines := splitter.feed(chunk):
            yield lines
    if lines := splitter.close():
        yield lines


async def _chunks(stream: RawIOBase | BinaryIO) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD_MAX)

    def pump() -> None:
        with stream:
            while room.acquire():
                try:
                    chunk: bytes | OSError = stream.read(CHUNK_BYTES) or b""
                except OSError as error:
                    chunk = error
                try:
                    loop.call_soon_threadsafe(arrived.put_nowait, chunk)
                except RuntimeError:
                    return  # the loop is closed: the lines are no longer needed
                if not chunk or isinstance(chunk, OSError):
                    return

    # A daemon thread: a read that never ends must not keep an interrupted command alive.
    threading.Thread(target=pump, name="kourou-lines", daemon=True).start()
    while chunk := await arrived.get():
        if isinstance(chunk, OSError):
            raise UsageError(f"cannot read the lines: {chunk.strerror or chunk}") from chunk
        room.release()
        yield chunk
