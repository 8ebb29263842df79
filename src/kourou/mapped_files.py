"""Memory-mapped parts of files, read only where the read cannot wait for the device.

A preadv that reads 32 records of 1 KB lying between records of seven other queues copies eight
times the wanted bytes; with a mapping each record is copied once, into the buffer that is sent.
Two checks make each read safe; both ask the kernel (about 3 us):

    a page not in memory            reading it would block: no view is returned
    a page beyond the file's end    reading it would kill the process (SIGBUS): the size is checked

Nothing is written through a mapping. A returned view keeps its window mapped, even after the file
is removed; so callers must not store views.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections import OrderedDict
from typing import Final

WINDOW_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one mapping; unmapping one must not take long (about 1 ms)."""

_WINDOWS_MAX: Final = 32
"""Windows that stay mapped; the least recently read is unmapped first. They take 2 GiB of address
space but no memory of the process. Each holds a descriptor."""

_PAGES_MAX: Final = 1024
"""The most pages of one `mincore` call; `find` returns None for larger reads."""
_PAGE_BYTES: Final = mmap.PAGESIZE
_ALL_PRESENT: Final = b"\1" * _PAGES_MAX


class _PyBuffer(ctypes.Structure):
    """`Py_buffer` of CPython's stable ABI; gives the address of a mapping."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


def _address(mapping: mmap.mmap) -> int:
    buffer = _PyBuffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get(ctypes.py_object(mapping), ctypes.byref(buffer), 0)
    address = buffer.buf or 0
    release(ctypes.byref(buffer))
    return address


class _Window:
    """A part of one file."""

    __slots__ = ("address", "bytes", "file_size")

    def __init__(self, mapping: mmap.mmap) -> None:
        self.address = _address(mapping)
        self.bytes = memoryview(mapping)  # it and its slices keep the mapping alive
        self.file_size = mapping.size  # a function: asks the system at each call


class MappedFiles:
    """The mapped parts of the files of one disk. Any thread may use it."""

    def __init__(self, *, windows_max: int = _WINDOWS_MAX) -> None:
        """Create an empty table.

        Args:
            windows_max: the most windows that stay mapped.
        """
        self._windows_max = windows_max
        self._windows: OrderedDict[tuple[str, int], _Window] = OrderedDict()
        self._mutex = threading.Lock()
        self._is_supported = True  # False once the file system turns out to have no RWF_NOWAIT
        # PyDLL does not release the GIL, because that takes longer than the call.
        self._mincore = ctypes.PyDLL(None).mincore
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
        self._present = bytearray(_PAGES_MAX)
        self._present_buffer = (ctypes.c_char * _PAGES_MAX).from_buffer(self._present)

    def find(self, name: str, offset: int, size: int) -> memoryview | None:
        """Return a view of the bytes if they are mapped and in memory; else None."""
        number, at = divmod(offset, WINDOW_BYTES)
        with self._mutex:
            key = (name, number)
            window = self._windows.get(key)
            if window is None:
                return None
            self._windows.move_to_end(key)
            found = window.bytes[at : at + size]
            start = at & -_PAGE_BYTES
            pages = -(-(at + size - start) // _PAGE_BYTES)
            if len(found) != size or pages > _PAGES_MAX or offset + size > window.file_size():
                return None
            if self._mincore(window.address + start, pages * _PAGE_BYTES, self._present_buffer):
                return None
            # Only the lowest bit of each byte is defined; a page with other bits set counts as
            # not in memory.
            return found if self._present.startswith(_ALL_PRESENT[:pages]) else None

    def is_mappable(self, name: str, offset: int) -> bool:
        """Tell whether the window that contains the byte is not mapped but could be."""
        return self._is_supported and (name, offset // WINDOW_BYTES) not in self._windows

    def add(self, name: str, fd: int, offset: int) -> None:
        """Map the window that contains the byte, if possible."""
        number = offset // WINDOW_BYTES
        start = number * WINDOW_BYTES
        file_size = os.fstat(fd).st_size
        size = min(file_size - start, WINDOW_BYTES)
        if size <= 0:
            return
        if not _supports_nowait(fd, file_size):
            self._is_supported = False
            return
        try:
            mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=start)
        except (OSError, ValueError):  # no address space left, or the file was truncated meanwhile
            return
        # A page evicted between check and read is read alone, without read-ahead.
        mapping.madvise(mmap.MADV_RANDOM)
        with self._mutex:
            self._windows[name, number] = _Window(mapping)
            if len(self._windows) > self._windows_max:
                self._windows.popitem(last=False)

    def drop(self, name: str) -> None:
        """Unmap the file, so that its space is freed once it is unlinked."""
        with self._mutex:
            for key in [key for key in self._windows if key[0] == name]:
                del self._windows[key]

    def clear(self) -> None:
        """Unmap all files."""
        with self._mutex:
            self._windows.clear()


def _supports_nowait(fd: int, file_size: int) -> bool:
    """Tell whether the file system supports RWF_NOWAIT.

    A file system without it may report all pages as in memory.
    """
    try:
        os.preadv(
            fd, [bytearray(1)], file_size, os.RWF_NOWAIT
        )  # at the end: no read, no read-ahead
    except OSError:
        return False
    return True


CAN_MAP: Final = sys.platform == "linux" and hasattr(os, "RWF_NOWAIT")
"""Whether this system supports `MappedFiles`."""
