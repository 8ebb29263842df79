"""Detects the file sizes of an existing store, so that it can be opened without configuring them.

The sizes of a store never change. Kourou records them; a store of Java has files that were created
at full size.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kourou.disk import Disk
from kourou.errors import StoreError
from kourou.store.index.index_sizes import index_sizes
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    COMMITLOG,
    CONSUMEQUEUE,
    STORE_STATE,
    parse_file_name,
)
from kourou.store.state.config_file import ConfigFile
from kourou.store.state.store_state import SIZE_FIELDS, StoreState


def detect_sizes(disk: Disk) -> dict[str, int]:
    """Return the store's sizes by field of `StoreConfig`; {} for a new or unreadable store.

    Raises nothing: opening the store verifies the sizes and reports errors.
    """
    try:
        if disk.exists(STORE_STATE):
            return _recorded(disk)
        found = {
            "commitlog_segment_bytes": _first_size(disk, [COMMITLOG]),
            "consumequeue_file_bytes": _first_size(disk, _queue_directories(disk, CONSUMEQUEUE)),
            "batch_queue_file_bytes": _first_size(
                disk, _queue_directories(disk, BATCH_CONSUMEQUEUE)
            ),
            **index_sizes(disk),
        }
    except (StoreError, OSError):
        return {}
    return {name: size for name, size in found.items() if size}


def _recorded(disk: Disk) -> dict[str, int]:
    data = ConfigFile(disk, STORE_STATE, _decode).load()
    if data is None:
        return {}
    state = _decode(data)
    sizes = {name: getattr(state, name) for name in SIZE_FIELDS}
    if state.index_slots:
        return sizes | {"index_slots": state.index_slots, "index_entries": state.index_entries}
    return sizes | index_sizes(disk)


def _decode(data: bytes) -> StoreState:
    return msgspec.json.decode(data, type=StoreState)


def _queue_directories(disk: Disk, root: str) -> Iterator[str]:
    for topic in disk.list(root):
        for queue_id in disk.list(f"{root}/{topic}"):
            yield f"{root}/{topic}/{queue_id}"


def _first_size(disk: Disk, directories: Iterator[str] | list[str]) -> int:
    """Return the size of the first file that is not empty; 0 if there is none."""
    for directory in directories:
        for name in disk.list(directory):
            if parse_file_name(name) is not None and (size := disk.size(f"{directory}/{name}")):
                return size
    return 0
