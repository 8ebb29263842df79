"""Syncs that the kernel runs by itself, and says when they are over: Linux's io_uring.

`os.fdatasync` on a thread does the same, but a thread of Python needs the interpreter to begin its
sync and to tell of its end, and has to wait for it while the event loop works. One call here begins
the sync, a thread of the kernel's does it, and a descriptor that the loop watches becomes readable
at its end. Figures: docs/performance.md.

Two rings are shared with the kernel: requests, of which there is never more than one, and ends. A
number of each tells how many there were so far, and is written by one side alone:

    requests    tail: we have written so many      head: the kernel has taken so many
    ends        tail: the kernel has written       head: we have read

Begin and end are calls of the system, so that neither side sees half of what the other one wrote.
Not every kernel has this, and a container may forbid it: then there is none, and threads do it.

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
"""Numbers of the calls, the same on all machines; the C library has no names for them."""

_REGISTER_EVENTFD: Final = 4
_SINGLE_MMAP: Final = 1
_REQUESTS_AT: Final = 0x1000_0000
_ENTRIES: Final = 2

_PARAMETERS: Final = struct.Struct("=10I")
"""`struct io_uring_params`: its first fields; the places within the rings follow."""
_PLACES: Final = struct.Struct("=8IQ")
_PARAMETERS_BYTES: Final = _PARAMETERS.size + 2 * _PLACES.size

_REQUEST: Final = struct.Struct("=BBHiQQIIQ24x")
"""`struct io_uring_sqe`: operation, its flags, priority, descriptor, offset, address, size, flags
of the sync, what is handed back."""
_FSYNC: Final = 3
_DATA_ONLY: Final = 1

NOT_BEGUN: Final = frozenset({errno.EAGAIN, errno.ECANCELED, errno.EINTR, errno.EINVAL})
"""No thread could be had for it, or it cannot be done in this way."""

_END: Final = struct.Struct("=QiI")
"""`struct io_uring_cqe`: what is handed back, the result, flags."""


class _Places(NamedTuple):
    """Where the numbers of a ring, and what it holds, are in what is mapped; in bytes."""

    head: int
    tail: int
    mask: int
    entries: int
    indexes: int
    ends: int

    @classmethod
    def requests(cls, parameters: bytes) -> _Places:
        head, tail, mask, _, _, _, array, *_ = _PLACES.unpack_from(parameters, _PARAMETERS.size)
        return cls(head, tail, mask, _PARAMETERS.unpack_from(parameters)[0], array, 0)

    @classmethod
    def of_ends(cls, parameters: bytes) -> _Places:
        at = _PARAMETERS.size + _PLACES.size
        head, tail, mask, _, _, ends, *_ = _PLACES.unpack_from(parameters, at)
        return cls(head, tail, mask, _PARAMETERS.unpack_from(parameters)[1], 0, ends)


class KernelSyncs:
    """Runs one sync at a time. Made by `open`; none of its calls waits for a device."""

    def __init__(self, ring_fd: int, ended_fd: int, parameters: bytes) -> None:
        self._ring_fd = ring_fd
        requests, ends = _Places.requests(parameters), _Places.of_ends(parameters)
        size = max(requests.indexes + 4 * requests.entries, ends.ends + _END.size * ends.entries)
        self._rings = mmap.mmap(ring_fd, size)
        self._requests = mmap.mmap(ring_fd, _REQUEST.size * requests.entries, offset=_REQUESTS_AT)
        self._numbers = memoryview(self._rings).cast("I")
        self._places, self._ends = requests, ends
        self._begun = self._told = 0
        self.ended_fd = ended_fd
        """Readable when a sync has ended: then ask for its `result`."""

    @classmethod
    def open(cls) -> KernelSyncs | None:
        """Return one; None where the system has or allows none."""
        if sys.platform != "linux":
            return None
        parameters = ctypes.create_string_buffer(_PARAMETERS_BYTES)
        ring_fd = _system(_SETUP, _ENTRIES, parameters)
        if ring_fd < 0:
            return None
        ended_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        tells = ctypes.c_int(ended_fd)
        if (
            _PARAMETERS.unpack_from(parameters.raw)[5] & _SINGLE_MMAP  # not before 5.4
            and not _system(_REGISTER, ring_fd, _REGISTER_EVENTFD, ctypes.byref(tells), 1)
        ):
            with suppress(OSError):
                return cls(ring_fd, ended_fd, parameters.raw)
        os.close(ring_fd)
        os.close(ended_fd)
        return None

    def start(self, fd: int) -> bool:
        """Begin `fdatasync` of the file; False, and nothing is begun, if the kernel takes none.

        The descriptor must stay open until the sync has ended: the kernel's thread looks at it
        when it begins. The sync before must have ended.
        """
        places, numbers = self._places, self._numbers
        index = self._begun & numbers[places.mask // 4]
        _REQUEST.pack_into(
            self._requests, index * _REQUEST.size, _FSYNC, 0, 0, fd, 0, 0, 0, _DATA_ONLY, 0
        )
        numbers[places.indexes // 4 + index] = index
        numbers[places.tail // 4] = (self._begun + 1) & 0xFFFF_FFFF
        if _system(_ENTER, self._ring_fd, 1, 0, 0, None, 0) != 1:
            numbers[places.tail // 4] = self._begun
            return False
        self._begun = (self._begun + 1) & 0xFFFF_FFFF
        return True

    def result(self) -> int | None:
        """Return 0 for a sync that has ended well, else its errno; None if none has ended.

        After one of `NOT_BEGUN` nothing was synced, nor lost: another way may be tried.
        """
        try:
            os.eventfd_read(self.ended_fd)
        except BlockingIOError:
            return None
        places, numbers = self._ends, self._numbers
        if numbers[places.tail // 4] == self._told:
            return None
        index = self._told & numbers[places.mask // 4]
        result: int = _END.unpack_from(self._rings, places.ends + index * _END.size)[1]
        self._told = (self._told + 1) & 0xFFFF_FFFF
        numbers[places.head // 4] = self._told
        return -result

    def close(self) -> None:
        """Let go of it; nobody is told whether a sync that runs comes to its end."""
        self._numbers.release()
        self._rings.close()
        self._requests.close()
        os.close(self._ring_fd)
        os.close(self.ended_fd)


def write_back_file_system(path: str) -> None:
    """Write the cached data of the file system that holds `path` to its device, and wait.

    Errors are ignored, and a system without `syncfs` does nothing: callers still sync each file,
    which reports errors and is then quick. Other threads run meanwhile.
    """
    call = getattr(_LIBC, "syncfs", None)
    if call is None:
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call(fd)
    finally:
        os.close(fd)


def _system(number: int, *arguments: object) -> int:
    """Do a system call; -1 if it fails."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    called: int = _call(ctypes.c_long(number), *words)
    return called


if sys.platform != "win32":  # where clients import this module, and nothing calls it
    # PyDLL keeps the interpreter: these calls take microseconds, and giving it away to a thread
    # that works could take milliseconds.
    _call: Final = ctypes.PyDLL(None).syscall
    _call.restype = ctypes.c_long

    _LIBC: Final = ctypes.CDLL(None)
