"""MappedFiles returns only bytes that are in memory and inside the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path

import pytest

from kourou.mapped_files import WINDOW_BYTES, MappedFiles


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"0123456789" * PAGESIZE, 0)
    yield fd
    os.close(fd)


def mapped(fd: int, offset: int = 0, *, windows_max: int = 2) -> MappedFiles:
    files = MappedFiles(windows_max=windows_max)
    files.add("file", fd, offset)
    return files


def test_bytes_in_memory_are_returned(fd: int) -> None:
    files = mapped(fd)

    assert bytes(files.find("file", 3, 5) or b"") == b"34567"
    assert bytes(files.find("file", 7, 2 * PAGESIZE) or b"") == os.pread(fd, 2 * PAGESIZE, 7)
    assert files.find("other", 3, 5) is None


def test_evicted_bytes_are_not_returned(fd: int) -> None:
    os.fsync(fd)
    files = mapped(fd)
    assert files.find("file", PAGESIZE, 5) is not None
    files.drop("file")

    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    files.add("file", fd, 0)
    assert files.find("file", PAGESIZE, 5) is None
    os.pread(fd, 10 * PAGESIZE, 0)
    assert bytes(files.find("file", PAGESIZE, 5) or b"") == os.pread(fd, 5, PAGESIZE)


def test_a_truncated_file_is_readable_up_to_its_end(fd: int) -> None:
    files = mapped(fd)

    os.ftruncate(fd, PAGESIZE + 3)

    assert files.find("file", PAGESIZE, 3) is not None
    assert files.find("file", PAGESIZE, 4) is None
    assert files.find("file", 3 * PAGESIZE, 1) is None


def test_an_unwritten_hole_is_not_returned(fd: int) -> None:
    os.ftruncate(fd, 1000 * PAGESIZE)

    assert mapped(fd).find("file", 900 * PAGESIZE, 5) is None


def test_a_range_across_two_windows_is_not_returned(fd: int) -> None:
    os.pwrite(fd, b"12345678", WINDOW_BYTES - 4)
    files = mapped(fd)

    assert files.find("file", WINDOW_BYTES - 4, 5) is None
    assert bytes(files.find("file", WINDOW_BYTES - 4, 4) or b"") == b"1234"
    assert files.is_mappable("file", WINDOW_BYTES)
    files.add("file", fd, WINDOW_BYTES)
    assert bytes(files.find("file", WINDOW_BYTES, 4) or b"") == b"5678"


def test_the_least_recently_read_window_is_unmapped_first(fd: int) -> None:
    files = mapped(fd)
    os.pwrite(fd, b"12345678", 2 * WINDOW_BYTES)
    files.add("file", fd, WINDOW_BYTES)
    files.find("file", 0, 1)

    files.add("file", fd, 2 * WINDOW_BYTES)

    assert [files.is_mappable("file", n * WINDOW_BYTES) for n in range(3)] == [False, True, False]


def test_a_returned_view_stays_readable(fd: int) -> None:
    files = mapped(fd)
    view = files.find("file", 3, 5)

    files.clear()

    assert view is not None
    assert bytes(view) == b"34567"
    assert files.find("file", 3, 5) is None


def test_nothing_beyond_the_end_is_mapped(fd: int) -> None:
    assert mapped(fd, 5 * WINDOW_BYTES).is_mappable("file", 5 * WINDOW_BYTES)
