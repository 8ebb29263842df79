"""Sizes and names of a store's files, for tools that inspect or repair a damaged store.

Opening a store refuses files of other sizes than recorded. Tools need an answer in any case: the
recorded size, else the size of most files, else the default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from kourou.disk import Disk
from kourou.store.config import StoreConfig
from kourou.store.formats import BATCH_ENTRY_BYTES, ENTRY_BYTES
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    COMMITLOG,
    CONSUMEQUEUE,
    parse_file_name,
    topic_directory,
)
from kourou.store.state.detected_sizes import detect_sizes

_SEGMENT_BYTES_MIN: Final = 64


class StoreSizes(NamedTuple):
    """Sizes in bytes of a commit log segment, a consume queue file and a batch queue file."""

    segment_bytes: int
    queue_bytes: int
    batch_queue_bytes: int


class LogFile(NamedTuple):
    """A file whose name is that of a log's file.

    Attributes:
        name: path below the store's root.
        start: log position at which the file begins.
        size: in bytes.
    """

    name: str
    start: int
    size: int


def find_sizes(disk: Disk) -> StoreSizes:
    """Return the file sizes of a store in any condition: recorded, else usual, else default."""
    recorded = detect_sizes(disk)
    defaults = StoreConfig()
    segment = recorded.get("commitlog_segment_bytes", 0)
    if segment < _SEGMENT_BYTES_MIN:
        segment = _usual_size([COMMITLOG], disk) or defaults.commitlog_segment_bytes
    queue = recorded.get("consumequeue_file_bytes", 0)
    batch_queue = recorded.get("batch_queue_file_bytes", 0)
    return StoreSizes(
        segment,
        _queue_size(disk, CONSUMEQUEUE, queue, ENTRY_BYTES) or defaults.consumequeue_file_bytes,
        _queue_size(disk, BATCH_CONSUMEQUEUE, batch_queue, BATCH_ENTRY_BYTES)
        or defaults.batch_queue_file_bytes,
    )


def _queue_size(disk: Disk, root: str, recorded: int, entry_bytes: int) -> int:
    """Return the size of the queue files below a directory; 0 if it is unknown."""
    if recorded >= entry_bytes and recorded % entry_bytes == 0:
        return recorded
    topics = (f"{root}/{topic}" for topic in disk.list(root))
    size = _usual_size((f"{one}/{name}" for one in topics for name in disk.list(one)), disk)
    return size - size % entry_bytes


def queue_ids(disk: Disk) -> Iterator[tuple[str, int]]:
    """Yield topic and queue id of each directory that can be a consume queue's, sorted."""
    for topic in disk.list(CONSUMEQUEUE):
        names = disk.list(topic_directory(topic))
        for queue_id in sorted(int(name) for name in names if is_queue_id(name)):
            yield topic, queue_id


def is_queue_id(name: str) -> bool:
    """Tell whether a directory's name is a queue id."""
    return name.isascii() and name.isdecimal() and name == str(int(name))


def log_files(disk: Disk, directory: str) -> list[LogFile]:
    """Return the files of a log or of a queue, oldest first; other files are left out."""
    found = []
    for name in disk.list(directory):
        start = parse_file_name(name)
        if start is not None:
            path = f"{directory}/{name}"
            try:
                found.append(LogFile(path, start, disk.size(path)))
            except OSError:  # removed meanwhile, or not a file
                continue
    return found


def _usual_size(directories: Iterator[str] | list[str], disk: Disk) -> int:
    sizes = Counter(
        file.size for directory in directories for file in log_files(disk, directory) if file.size
    )
    if not sizes:
        return 0
    size = sizes.most_common(1)[0][0]
    return size if size >= ENTRY_BYTES else 0
