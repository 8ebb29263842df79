"""Asynchronous file syncs with Linux's io_uring.

`os.fdatasync` on a thread does the same, but a Python thread needs the GIL to begin the sync and to
report its end, and must wait for the GIL while the event loop works. Here one system call starts
the sync, a kernel thread runs it, and a descriptor that the event loop watches becomes readable at
its end. Figures: docs/performance.md.

Two rings are shared with the kernel: requests (the submission queue, never more than one entry) and
ends (the completion queue). Each ring has two counters, each written by one side only:

    requests    tail: entries written by this process    head: entries read by the kernel
    ends        tail: entries written by the kernel      head: entries read by this process

A system call separates each write from the other side's read, so that neither side sees a
half-written entry. Older kernels have no io_uring, and a container may forbid it; the caller then
runs its syncs on threads.

Source: io_uring_setup(2), io_uring_enter(2), linux/io_uring.h; Linux 5.4.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import sys
from contextlib import suppress
from typing import Final, NamedTuple

_SETUP: Final = 425
_ENTER: Final = 426
_REGISTER: Final = 427
"""System call numbers, the same on all architectures; the C library has no functions for them."""

_REGISTER_EVENTFD: Final = 4
_SINGLE_MMAP: Final = 1
_REQUESTS_AT: Final = 0x1000_0000
_ENTRIES: Final = 2

_PARAMETERS: Final = struct.Struct("=10I")
"""`struct io_uring_params`: its first fields; the offsets within the two rings follow."""
_OFFSETS: Final = struct.Struct("=8IQ")
_PARAMETERS_BYTES: Final = _PARAMETERS.size + 2 * _OFFSETS.size

_REQUEST: Final = struct.Struct("=BBHiQQIIQ24x")
"""`struct io_uring_sqe`: operation, its flags, priority, descriptor, offset, address, size, flags
of the sync, user data."""
_FSYNC: Final = 3
_DATA_ONLY: Final = 1

NOT_BEGUN: Final = frozenset({errno.EAGAIN, errno.ECANCELED, errno.EINTR, errno.EINVAL})
"""Results of a sync that the kernel did not begin: it had no thread for it, or cannot run it
asynchronously."""

_END: Final = struct.Struct("=QiI")
"""`struct io_uring_cqe`: user data, the result, flags."""


class _RingOffsets(NamedTuple):
    """Byte offsets of a ring's counters and entries in the mapped memory."""

    head: int
    tail: int
    mask: int
    entries: int
    indexes: int
    ends: int

    @classmethod
    def of_requests(cls, parameters: bytes) -> _RingOffsets:
        head, tail, mask, _, _, _, array, *_ = _OFFSETS.unpack_from(parameters, _PARAMETERS.size)
        return cls(head, tail, mask, _PARAMETERS.unpack_from(parameters)[0], array, 0)

    @classmethod
    def of_ends(cls, parameters: bytes) -> _RingOffsets:
        at = _PARAMETERS.size + _OFFSETS.size
        head, tail, mask, _, _, ends, *_ = _OFFSETS.unpack_from(parameters, at)
        return cls(head, tail, mask, _PARAMETERS.unpack_from(parameters)[1], 0, ends)


class KernelSyncs:
    """Runs one sync at a time; created by `open`. None of its calls waits for a device."""

    def __init__(self, ring_fd: int, ended_fd: int, parameters: bytes) -> None:
        self._ring_fd = ring_fd
        requests, ends = _RingOffsets.of_requests(parameters), _RingOffsets.of_ends(parameters)
        size = max(requests.indexes + 4 * requests.entries, ends.ends + _END.size * ends.entries)
        self._rings = mmap.mmap(ring_fd, size)
        self._requests = mmap.mmap(ring_fd, _REQUEST.size * requests.entries, offset=_REQUESTS_AT)
        self._counters = memoryview(self._rings).cast("I")
        self._request_offsets, self._end_offsets = requests, ends
        self._begun = self._taken = 0
        self.ended_fd = ended_fd
        """A descriptor that is readable once the sync has ended; then call `result`."""

    @classmethod
    def open(cls) -> KernelSyncs | None:
        """Return a new instance; None if the kernel has no io_uring or does not permit it."""
        if sys.platform != "linux":
            return None
        parameters = ctypes.create_string_buffer(_PARAMETERS_BYTES)
        ring_fd = _system_call(_SETUP, _ENTRIES, parameters)
        if ring_fd < 0:
            return None
        ended_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        notifier = ctypes.c_int(ended_fd)
        if (
            _PARAMETERS.unpack_from(parameters.raw)[5] & _SINGLE_MMAP  # not before 5.4
            and not _system_call(_REGISTER, ring_fd, _REGISTER_EVENTFD, ctypes.byref(notifier), 1)
        ):
            with suppress(OSError):
                return cls(ring_fd, ended_fd, parameters.raw)
        os.close(ring_fd)
        os.close(ended_fd)
        return None

    def start(self, fd: int) -> bool:
        """Start `fdatasync` of the file; return False if the kernel refuses the request.

        The descriptor must stay open until the sync has ended, because the kernel thread reads it
        when it begins. The previous sync must have ended.
        """
        offsets, counters = self._request_offsets, self._counters
        index = self._begun & counters[offsets.mask // 4]
        _REQUEST.pack_into(
            self._requests, index * _REQUEST.size, _FSYNC, 0, 0, fd, 0, 0, 0, _DATA_ONLY, 0
        )
        counters[offsets.indexes // 4 + index] = index
        counters[offsets.tail // 4] = (self._begun + 1) & 0xFFFF_FFFF
        if _system_call(_ENTER, self._ring_fd, 1, 0, 0, None, 0) != 1:
            counters[offsets.tail // 4] = self._begun
            return False
        self._begun = (self._begun + 1) & 0xFFFF_FFFF
        return True

    def result(self) -> int | None:
        """Return 0 for a sync that succeeded, else its errno; None if none has ended.

        After an errno in `NOT_BEGUN` nothing was synced and nothing was lost: the caller may sync
        the file by other means.
        """
        try:
            os.eventfd_read(self.ended_fd)
        except BlockingIOError:
            return None
        offsets, counters = self._end_offsets, self._counters
        if counters[offsets.tail // 4] == self._taken:
            return None
        index = self._taken & counters[offsets.mask // 4]
        result: int = _END.unpack_from(self._rings, offsets.ends + index * _END.size)[1]
        self._taken = (self._taken + 1) & 0xFFFF_FFFF
        counters[offsets.head // 4] = self._taken
        return -result

    def close(self) -> None:
        """Close the rings; the result of a running sync is lost."""
        self._counters.release()
        self._rings.close()
        self._requests.close()
        os.close(self._ring_fd)
        os.close(self.ended_fd)


def write_back_file_system(path: str) -> None:
    """Write the cached data of the file system that holds `path` to its device, and wait.

    Errors are ignored, and on a system without `syncfs` nothing happens: the caller still syncs
    each file, which reports errors and is fast after the writeback. Releases the GIL.
    """
    call = getattr(_LIBC, "syncfs", None)
    if call is None:
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call(fd)
    finally:
        os.close(fd)


def _system_call(number: int, *arguments: object) -> int:
    """Make a system call and return its result; -1 if it fails."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    called: int = _call(ctypes.c_long(number), *words)
    return called


if sys.platform != "win32":  # clients on Windows import this module but call nothing in it
    # PyDLL keeps the GIL: the calls take microseconds, but reacquiring the GIL from a busy thread
    # could take milliseconds.
    _call: Final = ctypes.PyDLL(None).syscall
    _call.restype = ctypes.c_long

    _LIBC: Final = ctypes.CDLL(None)
