"""Images of a simulated disk's files, from which changed copies of the disk are created."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kourou.testing.disk import SimDisk
from kourou.testing.simulated_broker import ColdDisk


@dataclass(frozen=True, slots=True)
class File:
    """One file: its size, and its bytes without trailing zeros."""

    size: int
    data: bytes

    def replaced(self, at: int, some: bytes) -> File:
        """Return the file with `some` at byte `at`; it must lie within the file."""
        padded = self.data.ljust(at + len(some), b"\0")
        changed = padded[:at] + some + padded[at + len(some) :]
        return File(self.size, changed.rstrip(b"\0"))

    def cut(self, size: int) -> File:
        """Return the file truncated to `size`."""
        return File(size, self.data[:size])


Image = Mapping[str, File]


def image_of(disk: SimDisk, *, without: tuple[str, ...] = ("lock",)) -> dict[str, File]:
    """Return all files, durable or not, except those in `without`."""
    files = {}
    for name in _names(disk, ""):
        if name not in without:
            size = disk.size(name)
            files[name] = File(size, disk.read(name, 0, size).rstrip(b"\0"))
    return files


def disk_of(image: Image, *, is_cold: bool = False) -> SimDisk:
    """Return a disk with these files, all durable; a cold one has an empty page cache."""
    disk = ColdDisk() if is_cold else SimDisk()
    directories = {""}
    for name, file in image.items():
        directory = name.rpartition("/")[0]
        if directory not in directories:
            disk.make_directory(directory)
            while directory:
                directories.add(directory)
                directory = directory.rpartition("/")[0]
        disk.truncate(name, file.size)
        if file.data:
            disk.write(name, 0, [file.data])
    disk.sync_all(tuple(image), sorted(directories))
    return disk


def _names(disk: SimDisk, directory: str) -> Iterator[str]:
    for base in disk.list(directory):
        name = f"{directory}/{base}" if directory else base
        if not disk.list(name) and _is_file(disk, name):
            yield name
        else:
            yield from _names(disk, name)


def _is_file(disk: SimDisk, name: str) -> bool:
    try:
        disk.size(name)
    except IsADirectoryError:
        return False
    return True
