"""Parts of files mapped into memory, to be read only where that cannot wait for the device.

A call of preadv that gathers 32 records of 1 KB from among those of seven other queues copies eight
times what is wanted; a mapping lets each be copied once, to where it is sent from. Two things make
that safe, and both are asked of the kernel at each read (about 3 us):

    a page that is not in memory   would block who reads it: it is not handed out
    a page behind the file's end   would kill the process (SIGBUS): the size is looked at as well

Nothing is written through a mapping. What was handed out stays readable for as long as somebody has
it, whatever becomes of the file; so nobody may keep it.
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
"""Bytes mapped at once: what is unmapped in one go must not take long (about 1 ms)."""

_WINDOWS_MAX: Final = 32
"""Windows kept, the least recently read are unmapped first: 2 GiB of addresses, no memory of our
own. Each holds a descriptor."""

_PAGES_MAX: Final = 1024
"""Pages asked about at once; what is larger is read in another way."""
_PAGE_BYTES: Final = mmap.PAGESIZE
_ALL_THERE: Final = b"\1" * _PAGES_MAX


class _PyBuffer(ctypes.Structure):
    """`Py_buffer` of CPython's stable ABI, for the address of a mapping."""

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
        self.bytes = memoryview(mapping)  # which keeps the mapping, as its slices do
        self.file_size = mapping.size  # asks the system, each time


class MappedFiles:
    """The mapped parts of the files of one disk. Any thread may use it."""

    def __init__(self, *, windows_max: int = _WINDOWS_MAX) -> None:
        """Start with nothing mapped.

        Args:
            windows_max: windows that are kept.
        """
        self._windows_max = windows_max
        self._windows: OrderedDict[tuple[str, int], _Window] = OrderedDict()
        self._mutex = threading.Lock()
        self._is_of_use = True  # until the file system turns out not to know what would wait
        # Without the GIL released: that takes longer than the call does.
        self._mincore = ctypes.PyDLL(None).mincore
        self._mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
        self._present = bytearray(_PAGES_MAX)
        self._there = (ctypes.c_char * _PAGES_MAX).from_buffer(self._present)

    def find(self, name: str, offset: int, size: int) -> memoryview | None:
        """Return bytes of a file that is mapped there, if they are in memory."""
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
            if self._mincore(window.address + start, pages * _PAGE_BYTES, self._there):
                return None
            # Only the lowest bit of each says it today; were others set, none would count.
            return found if self._present.startswith(_ALL_THERE[:pages]) else None

    def lacks(self, name: str, offset: int) -> bool:
        """Tell whether the part of the file that has the byte is not mapped, and might be."""
        return self._is_of_use and (name, offset // WINDOW_BYTES) not in self._windows

    def add(self, name: str, fd: int, offset: int) -> None:
        """Map the part of the file that has the byte, if it can be."""
        number = offset // WINDOW_BYTES
        start = number * WINDOW_BYTES
        file_size = os.fstat(fd).st_size
        size = min(file_size - start, WINDOW_BYTES)
        if size <= 0:
            return
        if not _tells_what_waits(fd, file_size):
            self._is_of_use = False
            return
        try:
            mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=start)
        except (OSError, ValueError):  # no room for it, or the file was cut meanwhile
            return
        # Should a page leave just before it is read, it comes back alone, without those behind it.
        mapping.madvise(mmap.MADV_RANDOM)
        with self._mutex:
            self._windows[name, number] = _Window(mapping)
            if len(self._windows) > self._windows_max:
                self._windows.popitem(last=False)

    def drop(self, name: str) -> None:
        """Map no part of the file any more, so that its space is free once it is unlinked."""
        with self._mutex:
            for key in [key for key in self._windows if key[0] == name]:
                del self._windows[key]

    def clear(self) -> None:
        """Map nothing any more."""
        with self._mutex:
            self._windows.clear()


def _tells_what_waits(fd: int, file_size: int) -> bool:
    """Tell whether the file system knows what would wait; others may say that nothing does."""
    try:
        os.preadv(fd, [bytearray(1)], file_size, os.RWF_NOWAIT)  # reads nothing, not even ahead
    except OSError:
        return False
    return True


CAN_MAP: Final = sys.platform == "linux" and hasattr(os, "RWF_NOWAIT")
"""Whether this system has what that needs."""
