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
"""Chunks that are read before anybody asks for them."""


class LineSplitter:
    """Cuts chunks of any size into lines without their ends; empty lines are left out.

    Holds at most one unfinished line, of `line_bytes_max` bytes.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()
        self._number = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in `chunk`.

        Raises:
            UsageError: a line is too long; the text has its number.
        """
        *whole, rest = chunk.split(b"\n")
        lines = [self._finish(piece) for piece in whole]
        self._rest += rest
        self._check(len(self._rest))
        return [line for line in lines if line]

    def close(self) -> list[bytes]:
        """Return the last line, where the stream did not end it.

        Raises:
            UsageError: it is too long.
        """
        line = self._finish(b"")
        return [line] if line else []

    def _finish(self, piece: bytes) -> bytes:
        line = (bytes(self._rest) + piece).removesuffix(b"\r")
        self._check(len(line))
        self._rest.clear()
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
    """Yield the stream's lines as they come, some at a time.

    A thread reads, so that a pipe which says nothing holds up nobody. It closes the stream at its
    end; one that nobody reads on stays open until the process ends.

    Args:
        stream: without a buffer of its own: Python aborts where a thread waits in the read of one
            while the process ends, as after Ctrl-C.
        line_bytes_max: more are too long.

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
                    return  # the loop was closed: nobody reads on
                if not chunk or isinstance(chunk, OSError):
                    return

    # A daemon: a read that never ends must not keep an interrupted command alive.
    threading.Thread(target=pump, name="kourou-lines", daemon=True).start()
    while chunk := await arrived.get():
        if isinstance(chunk, OSError):
            raise UsageError(f"cannot read the lines: {chunk.strerror or chunk}") from chunk
        room.release()
        yield chunk
