"""A simulated disk in memory: loses unsynced data in a crash, and fails on request.

Faults that a store must survive; the seed determines their effects:

    crash        each 4 KiB page written since the file's last sync is kept, lost, or torn at a
                 512-byte sector; a change of the file's size is kept or lost. Of the creations,
                 renames and removals in a directory since its last sync, the first n survive.
    failed call  `fail_after` makes any operation raise; a failed write has written a part.
    failed sync  the pages count as clean from then on, but never reach the device: a later sync
                 succeeds without them; a crash or `drop_cache` restores the old bytes (Linux).
    full disk    a write that needs more new pages than `free` allows writes a part and raises
                 ENOSPC.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from kourou.disk import Buffer
from kourou.errors import StoreLockedError

PAGE = 4096
SECTOR = 512
_ZEROS = bytes(PAGE)


class _Inode:
    """A file's contents, in the page cache and on the device."""

    __slots__ = (
        "device_pages", "device_size", "dirty", "lost", "modified_at_ms", "pages", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pages: dict[int, bytearray] = {}
        self.size = 0
        self.device_pages: dict[int, bytes] = {}
        self.device_size = 0
        self.dirty: set[int] = set()
        self.lost: set[int] = set()  # clean since a failed sync, but not on the device
        self.modified_at_ms = 0

    def read(self, offset: int, size: int) -> bytes:
        end = min(self.size, offset + size)
        parts: list[bytes | bytearray] = []
        while offset < end:
            number, start = divmod(offset, PAGE)
            count = min(PAGE - start, end - offset)
            parts.append(self.pages.get(number, _ZEROS)[start : start + count])
            offset += count
        return b"".join(parts)

    def write(self, offset: int, data: bytes) -> None:
        at = 0
        while at < len(data):
            number, start = divmod(offset + at, PAGE)
            some = data[at : at + PAGE - start]
            page = self.pages.setdefault(number, bytearray(PAGE))
            page[start : start + len(some)] = some
            self.dirty.add(number)
            at += len(some)
        if data:
            self.size = max(self.size, offset + len(data))

    def next_data(self, offset: int) -> int:
        at = min((n * PAGE for n in self.pages if (n + 1) * PAGE > offset), default=self.size)
        return min(max(at, offset), self.size)

    def count_pages(self) -> int:
        return len(self.pages)

    def new_pages(self, offset: int, size: int) -> int:
        touched = range(offset // PAGE, -(-(offset + size) // PAGE))
        return sum(number not in self.pages for number in touched)

    def truncate(self, size: int) -> None:
        for number in [n for n in self.pages if n * PAGE >= size]:
            del self.pages[number]
            self.dirty.add(number)
        last, start = divmod(size, PAGE)
        if last in self.pages:
            self.pages[last][start:] = bytes(PAGE - start)
            self.dirty.add(last)
        self.size = size

    def sync(self) -> None:
        for number in self.dirty:
            if number in self.pages:
                self.device_pages[number] = bytes(self.pages[number])
            else:
                self.device_pages.pop(number, None)
        self.lost -= self.dirty
        self.dirty.clear()
        self.device_size = self.size

    def fail_sync(self) -> None:
        self.lost |= self.dirty
        self.dirty.clear()

    def drop_cache(self, offset: int) -> None:
        """Reload clean pages from the device; the size, as metadata, may stay in the cache."""
        forgotten = {number for number in self.lost if number >= offset // PAGE}
        for number in forgotten:
            if number in self.device_pages:
                self.pages[number] = bytearray(self.device_pages[number])
            else:
                self.pages.pop(number, None)
        self.lost -= forgotten

    def crash(self, rng: random.Random) -> None:
        for number in sorted(self.dirty):
            old = self.device_pages.get(number, _ZEROS)
            new = bytes(self.pages.get(number, _ZEROS))
            page = _torn(old, new, rng)
            if page == _ZEROS:
                self.device_pages.pop(number, None)
            else:
                self.device_pages[number] = page
        self.device_size = rng.choice((self.device_size, self.size))
        self.dirty.clear()
        self.lost.clear()
        self.pages = {n: bytearray(page) for n, page in self.device_pages.items()}
        self.truncate(self.device_size)
        self.sync()


def _torn(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """Return the old page, the new one, or a mix of their sectors."""
    fate = rng.randrange(3)
    if fate < 2:
        return (old, new)[fate]
    sectors = range(0, PAGE, SECTOR)
    return b"".join(rng.choice((old, new))[at : at + SECTOR] for at in sectors)


class _Directory:
    """Names in one directory: the current ones, those on the device, the changes in between."""

    __slots__ = ("changes", "device_names", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Inode | _Directory] = {}
        self.device_names: dict[str, _Inode | _Directory] = {}
        self.changes: list[Callable[[dict[str, _Inode | _Directory]], object]] = []

    def put(self, name: str, node: _Inode | _Directory) -> None:
        self._change(lambda names: names.__setitem__(name, node))

    def remove(self, name: str) -> None:
        self._change(lambda names: names.pop(name))

    def rename(self, old: str, new: str) -> None:
        self._change(lambda names: names.__setitem__(new, names.pop(old)))

    def _change(self, change: Callable[[dict[str, _Inode | _Directory]], object]) -> None:
        change(self.names)
        self.changes.append(change)

    def sync(self) -> None:
        self.device_names = dict(self.names)
        self.changes.clear()

    def count_pages(self) -> int:
        return sum(node.count_pages() for node in self.names.values())

    def crash(self, rng: random.Random) -> None:
        for change in self.changes[: rng.randint(0, len(self.changes))]:
            change(self.device_names)
        self.changes.clear()
        self.names = dict(self.device_names)
        for name in sorted(self.names):
            self.names[name].crash(rng)


class SimDisk:
    """Implements `kourou.disk.Disk` in memory, with sparse pages.

    Attributes:
        operations: number of operations begun.
        on_operation: called before each operation with its name and the file's. Its exceptions
            pass through, so that a test can stop at any operation and then call `crash()`.
        free: bytes left for new pages.
        now_ms: returns the time for modification times, which survive a crash; constant unless it
            is replaced.
    """

    def __init__(self, seed: int = 0, *, free: int = 1 << 40) -> None:
        self.root = f"sim:{seed}"
        self.operations = 0
        self.on_operation: Callable[[str, str], None] | None = None
        self.free = free
        self.now_ms: Callable[[], int] = lambda: 0
        self._rng = random.Random(seed)
        self._tree = _Directory()
        self._locks: dict[str, object] = {}
        self._faults: list[tuple[int, Exception, Collection[str]]] = []

    def crash(self) -> None:
        """Lose power: a part of the unsynced data, chosen by the seed, survives."""
        self.release_locks()
        self.clear_faults()
        pages_before = self._tree.count_pages()
        self._tree.crash(self._rng)
        self.free += (pages_before - self._tree.count_pages()) * PAGE

    def release_locks(self) -> None:
        """Release all locks, as the end of a killed process does."""
        self._locks.clear()

    def fail_after(
        self, count: int, error: Exception, operations: Collection[str] = ("write", "sync")
    ) -> None:
        """Make one operation raise: the first of these kinds after `count` more of any kind."""
        self._faults.append((self.operations + count, error, operations))

    def clear_faults(self) -> None:
        """Let all further operations succeed."""
        self._faults.clear()

    def exists(self, name: str) -> bool:
        self._begin("exists", name)
        return self._find(name) is not None

    def size(self, name: str) -> int:
        self._begin("size", name)
        return self._file(name).size

    def read(self, name: str, offset: int, size: int) -> bytes:
        self._begin("read", name)
        return self._file(name).read(offset, size)

    def read_resident(self, name: str, offset: int, size: int) -> bytes | None:
        self._begin("read_resident", name)
        return self._file(name).read(offset, size)

    def view_resident(self, name: str, offset: int, size: int) -> memoryview | None:
        found = self.read_resident(name, offset, size)
        return memoryview(found) if found is not None and len(found) == size else None

    def next_data(self, name: str, offset: int) -> int:
        self._begin("next_data", name)
        return self._file(name).next_data(offset)

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        try:
            self._begin("write", name)
        except OSError:
            inode = self._create(name)
            inode.write(offset, data[: self._rng.randint(0, len(data))])
            raise
        inode = self._create(name)
        needed = inode.new_pages(offset, len(data)) * PAGE
        if needed > self.free:
            inode.write(offset, data[: self.free // PAGE * PAGE])
            self.free = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        self.free -= needed
        inode.write(offset, data)

    def truncate(self, name: str, size: int) -> None:
        self._begin("truncate", name)
        inode = self._create(name)
        before = inode.count_pages()
        inode.truncate(size)
        self.free += (before - inode.count_pages()) * PAGE

    def sync(self, name: str) -> None:
        try:
            self._begin("sync", name)
        except OSError:
            self._file(name).fail_sync()
            raise
        self._file(name).sync()

    def pin(self, name: str) -> None:
        """Return None: there are no descriptors."""

    def sync_all(self, files: Sequence[str], directories: Sequence[str]) -> None:
        for sync, names in ((self.sync, files), (self.sync_directory, directories)):
            for name in names:
                with suppress(FileNotFoundError):
                    sync(name)

    def sync_directory(self, name: str) -> None:
        self._begin("sync_directory", name)
        self._directory(name).sync()

    def drop_cache(self, name: str, offset: int = 0) -> None:
        self._begin("drop_cache", name)
        self._file(name).drop_cache(offset)

    def make_directory(self, name: str) -> None:
        self._begin("make_directory", name)
        directory = self._tree
        for part in name.split("/") if name else ():
            node = directory.names.get(part)
            if node is None:
                node = _Directory()
                directory.put(part, node)
            if not isinstance(node, _Directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
            directory = node

    def list(self, name: str) -> list[str]:
        self._begin("list", name)
        node = self._find(name)
        return sorted(node.names) if isinstance(node, _Directory) else []

    def rename(self, old: str, new: str) -> None:
        self._begin("rename", old)
        parent, _, base = old.rpartition("/")
        new_parent, _, new_base = new.rpartition("/")
        if parent != new_parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), new)
        self._file(old)
        if (replaced := self._find(new)) is not None:
            self.free += replaced.count_pages() * PAGE
        self._directory(parent).rename(base, new_base)

    def unlink(self, name: str) -> None:
        self._begin("unlink", name)
        self.free += self._file(name).count_pages() * PAGE
        parent, _, base = name.rpartition("/")
        self._directory(parent).remove(base)

    def remove_directory(self, name: str) -> None:
        self._begin("remove_directory", name)
        if self._directory(name).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
        parent, _, base = name.rpartition("/")
        self._directory(parent).remove(base)

    def modified_at_ms(self, name: str) -> int:
        self._begin("modified_at_ms", name)
        return self._file(name).modified_at_ms

    def free_bytes(self) -> int:
        self._begin("free_bytes", "")
        return self.free

    def space(self) -> tuple[int, int, int]:
        used = self._tree.count_pages() * PAGE
        return self.free + used, self.free, self.free

    def lock(self, name: str) -> Callable[[], None]:
        self._begin("lock", name)
        if name in self._locks:
            raise StoreLockedError(f"{self.root}/{name} is locked by another store of this process")
        self._create(name).write(0, b"lock")
        holder = self._locks[name] = object()

        def unlock() -> None:
            if self._locks.get(name) is holder:
                del self._locks[name]

        return unlock

    def is_locked(self, name: str) -> bool:
        return name in self._locks

    def close(self) -> None:
        """Do nothing: there are no descriptors."""

    def _begin(self, operation: str, name: str) -> None:
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(operation, name)
        for fault in self._faults:
            after, error, operations = fault
            if self.operations > after and operation in operations:
                self._faults.remove(fault)
                raise error

    def _find(self, name: str) -> _Inode | _Directory | None:
        node: _Inode | _Directory | None = self._tree
        for part in name.split("/") if name else ():
            if not isinstance(node, _Directory):
                return None
            node = node.names.get(part)
        return node

    def _file(self, name: str) -> _Inode:
        node = self._find(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if not isinstance(node, _Inode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        return node

    def _directory(self, name: str) -> _Directory:
        node = self._find(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if not isinstance(node, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        return node

    def _create(self, name: str) -> _Inode:
        """Return the file for an operation that changes it; create it if it does not exist."""
        node = self._find(name)
        if node is None:
            parent, _, base = name.rpartition("/")
            node = _Inode()
            self._directory(parent).put(base, node)
        if not isinstance(node, _Inode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        node.modified_at_ms = self.now_ms()
        return node
