"""Detects the numbers of slots and entries in the index files of a store that Java created.

Java does not record them, and a file's size gives only a combination of both. Java's default, which
few change, is four entries per slot; the newest entries verify it, because their slots must name
them.
"""

from __future__ import annotations

from typing import Final

from kourou.disk import Disk
from kourou.store.index.index_file import (
    HEADER,
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    SLOT_BYTES,
    IndexFile,
    IndexHeader,
    IndexLayout,
    index_file_names,
)
from kourou.store.paths import INDEX

_ENTRIES_PER_SLOT: Final = 4
_ENTRIES_VERIFIED: Final = 16


def index_sizes(disk: Disk) -> dict[str, int]:
    """Return `index_slots` and `index_entries` of the store's index; {} if not detected.

    Raises:
        OSError: a file cannot be read.
    """
    for name in index_file_names(disk):
        size = disk.size(f"{INDEX}/{name}") - HEADER_BYTES
        slots, rest = divmod(size, SLOT_BYTES + INDEX_ENTRY_BYTES * _ENTRIES_PER_SLOT)
        layout = IndexLayout(slots, slots * _ENTRIES_PER_SLOT)
        if slots > 0 and not rest and _has_layout(disk, name, layout):
            return {"index_slots": layout.slots, "index_entries": layout.entries}
    return {}


def _has_layout(disk: Disk, name: str, layout: IndexLayout) -> bool:
    """Tell whether the slots of the file's newest entries name them, or newer ones."""
    header = IndexHeader._make(HEADER.unpack(disk.read(f"{INDEX}/{name}", 0, HEADER_BYTES)))
    if not 1 < header.count <= layout.entries:
        return False
    file = IndexFile(disk, name, layout, header)
    for number in range(max(1, header.count - _ENTRIES_VERIFIED), header.count):
        entry = file.entry(number)
        if not number <= file.slot(entry.key_hash % layout.slots) < header.count:
            return False
    return True
