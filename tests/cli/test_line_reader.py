"""Tests of the line reader: any fragmentation, and bounded memory for an endless line."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from kourou.cli.line_reader import CHUNK_BYTES, LineSplitter, read_lines
from kourou.errors import UsageError


def all_lines(stream: BinaryIO, line_bytes_max: int = 1000) -> list[bytes]:
    async def collect() -> list[bytes]:
        return [line async for lines in read_lines(stream, line_bytes_max) for line in lines]

    return asyncio.run(collect())


@given(
    lines=st.lists(st.binary(max_size=5).filter(lambda line: b"\n" not in line), max_size=6),
    step=st.integers(1, 7),
    is_ended=st.booleans(),
)
@examples(max_examples=100, deadline=None)
def test_lines_survive_any_fragmentation(lines: list[bytes], step: int, is_ended: bool) -> None:
    text = b"\n".join(lines) + (b"\n" if is_ended else b"")
    splitter = LineSplitter(100)
    received: list[bytes] = []
    for at in range(0, len(text), step):
        received += splitter.feed(text[at : at + step])
    received += splitter.close()

    assert received == [line for line in (line.removesuffix(b"\r") for line in lines) if line]


def test_stream_is_read_to_its_end() -> None:
    text = b"".join(b"line %d\r\n" % n for n in range(30_000)) + b"last"

    lines = all_lines(io.BytesIO(text))

    assert len(text) > 2 * CHUNK_BYTES
    assert (lines[0], lines[-1], len(lines)) == (b"line 0", b"last", 30_001)


def test_lines_of_a_pipe_are_yielded_before_its_end() -> None:
    reading, writing = os.pipe()

    async def first() -> list[bytes]:
        async for lines in read_lines(os.fdopen(reading, "rb", buffering=0), 100):
            return lines
        return []

    os.write(writing, b"one\ntw")
    try:
        assert asyncio.run(first()) == [b"one"]
    finally:
        os.close(writing)


WAITING = """
import asyncio, io, sys
from kourou.cli.line_reader import read_lines
async def main():
    lines = read_lines(io.FileIO(0, closefd=False), 100)
    print(await anext(lines), flush=True)
    await asyncio.sleep(0.05)  # the thread waits for what comes next
asyncio.run(main())
"""


def test_program_can_end_while_a_pipe_is_silent() -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert waiting.stdin is not None
    waiting.stdin.write(b"one\n")
    waiting.stdin.flush()
    with waiting:
        code = waiting.wait(60)
        assert waiting.stdout is not None
        assert waiting.stderr is not None
        assert (code, waiting.stdout.read(), waiting.stderr.read()) == (0, b"[b'one']\n", b"")


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_too_long_is_refused_with_its_number(end: bytes) -> None:
    with pytest.raises(UsageError, match=r"line 2 is longer than 1,000 bytes"):
        all_lines(io.BytesIO(b"ok\n" + b"x" * 1001 + end))


def test_endless_line_is_refused_before_it_is_buffered() -> None:
    splitter = LineSplitter(1000)
    for _ in range(10):
        splitter.feed(b"x" * 100)

    with pytest.raises(UsageError):
        splitter.feed(b"x")


class FailingDisk(io.BytesIO):
    def read(self, _size: int | None = -1, /) -> bytes:
        raise OSError(5, "Input/output error")


def test_read_error_of_a_stream_is_reported() -> None:
    with pytest.raises(UsageError, match="cannot read the lines: Input/output error"):
        all_lines(FailingDisk())
