"""File access: the only module that calls the operating system's file functions.

All other modules use the `Disk` protocol. `OsDisk` is the real implementation;
`kourou.testing.disk.SimDisk` simulates a crash by dropping data that was not synced. Both pass
tests/contracts/test_disk.py.

File names are '/'-separated and relative to the disk's root. Every OSError passes through
unchanged: the caller decides whether a missing file or a full disk is an error.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from kourou.errors import UsageError
from kourou.file_locks import FILE_LOCKS
from kourou.kernel_syncs import write_back_file_system
from kourou.mapped_files import CAN_MAP, MappedFiles
from kourou.open_files import OpenFiles, PinnedFile

Buffer = bytes | bytearray | memoryview

_IOV_MAX = 1024
"""The most buffers that one pwritev accepts (IOV_MAX of Linux and macOS)."""

_PAGE_BYTES: Final = mmap.PAGESIZE

_SYNC_THREADS: Final = 16
"""Concurrent syncs: the file system combines several into one commit of its journal. On ext4,
syncing 5,000 queues takes a third of the time of sequential syncs; 64 threads are no faster."""

_WRITEBACK_SYNCS: Final = 2_000
"""The number of syncs from which the whole file system is written back first. The writeback writes
the files in device order and commits the journal once, which halves the time of 40,000 syncs. It
also writes data of other programs, so it does not pay for few files."""


class Disk(Protocol):
    """Positioned operations on named files. Offsets and sizes in bytes.

    Nothing is durable before `sync` (contents and size) and `sync_directory` (names) return.
    """

    root: str
    """The path of the root directory, for messages only."""

    def exists(self, name: str) -> bool:
        """Tell whether there is a file or directory of that name."""

    def size(self, name: str) -> int:
        """Return the size of the file.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer at the end of the file.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
        """Return what `read` would, or None if that might wait for the device."""

    def view_resident(self, name: str, offset: int, size: int) -> memoryview | None:
        """Return a view of the bytes in memory, without a copy, or None.

        The caller must use the view at once and not store it. None if views are not supported, if
        the read might wait, or if the file ends before the range does; `read_resident` tells these
        cases apart.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def next_data(self, name: str, offset: int) -> int:
        """Return the first byte at or after `offset` that is not in a hole; else the file's size.

        A hole reads as zeros. A file system that does not report holes returns `offset`.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write the buffers one after the other at `offset`; creates the file if it is missing.

        Raises:
            OSError: any part of the buffers may have been written.
        """

    def truncate(self, name: str, size: int) -> None:
        """Cut the file to `size`, or extend it with a hole; creates the file if it is missing."""

    def sync(self, name: str) -> None:
        """Make every earlier write to the file durable; safe during writes on another thread.

        Raises:
            OSError: data that was not durable before may never become durable, even if a later
                call succeeds.
        """

    def pin(self, name: str) -> PinnedFile | None:
        """Return the open file, for a caller that syncs it by other means than `sync`.

        None if only `sync` can sync the file.

        Raises:
            OSError: the file could not be opened.
        """

    def sync_all(self, files: Sequence[str], directories: Sequence[str]) -> None:
        """Call `sync` for the files and `sync_directory` for the directories, in any order.

        Faster than single calls where there are many. Missing files and directories are ignored.

        Raises:
            OSError: as `sync`, for any of them; the others may not have been synced.
        """

    def sync_directory(self, name: str) -> None:
        """Make every earlier creation, rename and removal in the directory durable."""

    def drop_cache(self, name: str, offset: int = 0) -> None:
        """Drop the file's clean cached pages from `offset` on.

        The next read then reads the device. This matters after a failed `sync`: the cache may hold
        pages marked clean that never reached the device.
        """

    def make_directory(self, name: str) -> None:
        """Create the directory and its parents, if they do not exist."""

    def list(self, name: str) -> list[str]:
        """Return the sorted names in the directory; an empty list if it does not exist."""

    def rename(self, old: str, new: str) -> None:
        """Rename the file within its directory; replaces an existing file `new`."""

    def unlink(self, name: str) -> None:
        """Remove the file.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory."""

    def modified_at_ms(self, name: str) -> int:
        """Return when the file was last written, in epoch milliseconds."""

    def free_bytes(self) -> int:
        """Return how many bytes an unprivileged process can still write to the file system."""

    def space(self) -> tuple[int, int, int]:
        """Return three sizes of the file system in bytes: total, free, free without privileges."""

    def lock(self, name: str) -> Callable[[], None]:
        """Lock the file against other processes and other holders in this one.

        Returns:
            A function that releases the lock; a second call has no effect.

        Raises:
            StoreLockedError: the file is already locked.
        """

    def is_locked(self, name: str) -> bool:
        """Tell whether a process, perhaps this one, holds the file's lock; takes no lock."""

    def close(self) -> None:
        """Close all open files. Nothing is synced."""


def replace(disk: Disk, name: str, data: bytes, *, backup: str | None) -> None:
    """Replace the file's contents durably; after a crash they are either the old or the new ones.

    With `backup` the old contents are renamed to that name, like RocketMQ's `.bak` files. A crash
    between the two renames then leaves no file `name`; its reader must read the backup.
    """
    temporary = f"{name}.tmp"
    disk.truncate(temporary, 0)
    disk.write(temporary, 0, [data])
    disk.sync(temporary)
    if backup is not None and disk.exists(name):
        disk.rename(name, backup)
    disk.rename(temporary, name)
    disk.sync_directory(name.rpartition("/")[0])


def require_file_calls(purpose: str) -> None:
    """Refuse an operating system that is_mappable the file calls of `OsDisk`, such as Windows.

    Args:
        purpose: begins the error's text: the feature that needs the calls.

    Raises:
        UsageError: the calls are missing.
    """
    if not hasattr(os, "pwritev"):
        raise UsageError(
            f"{purpose} needs Linux or macOS: servers, stores, and the offset files of "
            "broadcasting consumers do not work on Windows; other clients do"
        )


class OsDisk:
    """A directory of a local file system; at most `open_files_max` descriptors stay open.

    Raises:
        UsageError: the operating system is_mappable the file calls (Windows).
    """

    def __init__(self, root: Path, *, open_files_max: int = 512) -> None:
        require_file_calls(f"the use of {root}")
        self.root = str(root)
        self._files = OpenFiles(self._path, open_files_max)
        self._mapped = MappedFiles() if CAN_MAP else None

    def exists(self, name: str) -> bool:
        return Path(self._path(name)).exists()

    def size(self, name: str) -> int:
        return Path(self._path(name)).stat().st_size

    def read(self, name: str, offset: int, size: int) -> bytes:
        file = self._files.acquire(name, for_writing=False)
        try:
            data = os.pread(file.fd, size, offset)
            # pread returns less than asked only at the end of a regular file, or beyond 2 GiB.
            while 0 < len(data) < size:
                more = os.pread(file.fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            self._files.release(file)

    def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
        if not hasattr(os, "RWF_NOWAIT"):
            return None
        file = self._files.acquire(name, for_writing=False)
        try:
            buffer = bytearray(size)
            count = os.preadv(file.fd, [buffer], offset, os.RWF_NOWAIT)
            if count < size and offset + count < os.fstat(file.fd).st_size:
                return None
            return bytes(memoryview(buffer)[:count])
        except OSError as error:
            # EAGAIN: not in memory. EOPNOTSUPP: the file system has no RWF_NOWAIT.
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        finally:
            self._files.release(file)

    def view_resident(self, name: str, offset: int, size: int) -> memoryview | None:
        mapped = self._mapped
        if mapped is None:
            return None
        found = mapped.find(name, offset, size)
        if found is None and mapped.is_mappable(name, offset):
            file = self._files.acquire(name, for_writing=False)
            try:
                mapped.add(name, file.fd, offset)
                if not file.is_cached:  # another thread may have unlinked it since
                    mapped.drop(name)
            finally:
                self._files.release(file)
            found = mapped.find(name, offset, size)
        return found

    def next_data(self, name: str, offset: int) -> int:
        file = self._files.acquire(name, for_writing=False)
        try:  # lseek moves the descriptor's file offset, which nothing else uses
            return os.lseek(file.fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return os.fstat(file.fd).st_size
        finally:
            self._files.release(file)

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        file = self._files.acquire(name, for_writing=True)
        try:
            for at in range(0, len(buffers), _IOV_MAX):
                chunk = buffers[at : at + _IOV_MAX]
                size = sum(map(len, chunk))
                written = os.pwritev(file.fd, chunk, offset)
                if written < size:
                    _finish_write(file.fd, offset, b"".join(chunk), written)
                offset += size
        finally:
            self._files.release(file)

    def truncate(self, name: str, size: int) -> None:
        file = self._files.acquire(name, for_writing=True)
        try:
            os.ftruncate(file.fd, size)
        finally:
            self._files.release(file)

    def sync(self, name: str) -> None:
        file = self._files.acquire(name, for_writing=False)
        try:
            _sync_descriptor(file.fd)
        finally:
            self._files.release(file)

    def pin(self, name: str) -> PinnedFile | None:
        return self._files.pin(name)

    def sync_all(self, files: Sequence[str], directories: Sequence[str]) -> None:
        syncs = [partial(self.sync, name) for name in files]
        syncs += [partial(self.sync_directory, name) for name in directories]
        if len(syncs) < _SYNC_THREADS:
            _sync_each(syncs)
            return
        if len(syncs) >= _WRITEBACK_SYNCS:
            write_back_file_system(self.root)
        with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="kourou-sync") as threads:
            # one slice per thread: one task per file costs as much CPU as the sync itself
            for _ in threads.map(
                _sync_each, (syncs[n::_SYNC_THREADS] for n in range(_SYNC_THREADS))
            ):
                pass

    def sync_directory(self, name: str) -> None:
        fd = os.open(self._path(name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def drop_cache(self, name: str, offset: int = 0) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        self._drop_mapped(name)  # the kernel does not drop mapped pages
        file = self._files.acquire(name, for_writing=False)
        try:
            # The kernel drops whole pages only, so the range begins at a page boundary.
            os.posix_fadvise(file.fd, offset & -_PAGE_BYTES, 0, os.POSIX_FADV_DONTNEED)
        finally:
            self._files.release(file)

    def make_directory(self, name: str) -> None:
        Path(self._path(name)).mkdir(parents=True, exist_ok=True)

    def list(self, name: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(name)))  # noqa: PTH208 - names, not paths
        except (FileNotFoundError, NotADirectoryError):
            return []

    def rename(self, old: str, new: str) -> None:
        self._drop(old)
        self._drop(new)
        Path(self._path(old)).replace(self._path(new))

    def unlink(self, name: str) -> None:
        Path(self._path(name)).unlink()
        self._drop(name)  # after the unlink: another thread could reopen it in between

    def remove_directory(self, name: str) -> None:
        Path(self._path(name)).rmdir()

    def modified_at_ms(self, name: str) -> int:
        return Path(self._path(name)).stat().st_mtime_ns // 1_000_000

    def free_bytes(self) -> int:
        return self.space()[2]

    def space(self) -> tuple[int, int, int]:
        status = os.statvfs(self.root)
        size = status.f_frsize
        return status.f_blocks * size, status.f_bfree * size, status.f_bavail * size

    def lock(self, name: str) -> Callable[[], None]:
        return FILE_LOCKS.acquire(self._path(name))

    def is_locked(self, name: str) -> bool:
        return FILE_LOCKS.is_locked(self._path(name))

    def close(self) -> None:
        self._files.close()
        if self._mapped is not None:
            self._mapped.clear()

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    def _drop(self, name: str) -> None:
        """Close the file's cached descriptor and its mappings."""
        self._files.drop(name)
        self._drop_mapped(name)

    def _drop_mapped(self, name: str) -> None:
        if self._mapped is not None:
            self._mapped.drop(name)


def _finish_write(fd: int, offset: int, data: bytes, written: int) -> None:
    """Finish a short write: the next call either continues it or raises the cause (ENOSPC)."""
    rest = memoryview(data)[written:]
    while rest:
        count = os.pwrite(fd, rest, offset + len(data) - len(rest))
        rest = rest[count:]


def _sync_each(syncs: Sequence[Callable[[], None]]) -> None:
    """Run the syncs in order; missing files are ignored."""
    for sync in syncs:
        with suppress(FileNotFoundError):
            sync()


def _sync_descriptor(fd: int) -> None:
    """Make the file's contents durable, including the drive's cache where the system allows it."""
    if sys.platform == "darwin":
        import fcntl  # noqa: PLC0415  # not on Windows, where clients import this module

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # macOS's fsync leaves data in the drive's cache
    else:
        os.fdatasync(fd)
