"""The sizes of a store's files: detected before it is opened, verified when it is opened.

The sizes of a store never change. Kourou records them; a store of Java has files that were created
at full size. `detect_sizes` finds them, so that a store can be opened without configuring them;
`find_sizes` answers for a damaged store too.

Recovery verifies log segments and queue files (`check_log_sizes`, `check_queue_sizes`):

    file                           meaning and action
    longer                         the store was created with a larger size: refused
    shorter, no sizes recorded     Java created the store with a smaller size: refused
    shorter, log segment           refused as damaged if it lacks a durable part; otherwise its
                                   creation or truncation was interrupted: extended
    shorter, queue file            damaged or interrupted: extended, its queue is to be rebuilt

Java leaves an empty last file when it is killed while it creates one; that is extended too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from kourou.disk import Disk
from kourou.errors import CorruptRecordError, StoreConfigError, StoreError
from kourou.store.config import StoreConfig
from kourou.store.formats import BATCH_ENTRY_BYTES, ENTRY_BYTES
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
from kourou.store.log.segment_list import SegmentList
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    COMMITLOG,
    CONSUMEQUEUE,
    INDEX,
    STORE_STATE,
    is_queue_id,
    parse_file_name,
    topic_directory,
)
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.state.config_file import ConfigFile
from kourou.store.state.store_state import SIZE_FIELDS, StoreState

_SEGMENT_BYTES_MIN: Final = 64
_ENTRIES_PER_SLOT: Final = 4
_ENTRIES_VERIFIED: Final = 16


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


def index_sizes(disk: Disk) -> dict[str, int]:
    """Return `index_slots` and `index_entries` of the store's index; {} if not detected.

    Java does not record them, and a file's size gives only a combination of both. Java's default,
    which few change, is four entries per slot; the newest entries verify it, because their slots
    must name them.

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


def find_sizes(disk: Disk) -> StoreSizes:
    """Return the file sizes of a store in any condition: recorded, else usual, else default.

    For tools that inspect or repair a damaged store, which `MessageStore.open` would refuse.
    """
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


def _usual_size(directories: Iterator[str] | list[str], disk: Disk) -> int:
    sizes = Counter(
        file.size for directory in directories for file in log_files(disk, directory) if file.size
    )
    if not sizes:
        return 0
    size = sizes.most_common(1)[0][0]
    return size if size >= ENTRY_BYTES else 0


def queue_ids(disk: Disk) -> Iterator[tuple[str, int]]:
    """Yield topic and queue id of each directory that can be a consume queue's, sorted."""
    for topic in disk.list(CONSUMEQUEUE):
        names = disk.list(topic_directory(topic))
        for queue_id in sorted(int(name) for name in names if is_queue_id(name)):
            yield topic, queue_id


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


def check_log_sizes(
    disk: Disk, segments: SegmentList, *, are_recorded: bool, durable_below: int
) -> None:
    """Extend the commit log segments that a crash left short.

    Args:
        disk: holds the segments.
        segments: all segments of the log.
        are_recorded: the store has recorded the sizes it was created with.
        durable_below: the log was durable up to this position.

    Raises:
        StoreConfigError: the store was created with another size.
        CorruptRecordError: a segment lost a durable part.
    """
    for start in segments.starts():
        name, size = segments.name(start), disk.size(segments.name(start))
        if size == segments.file_bytes:
            continue
        is_last = start + segments.file_bytes == segments.end
        _refuse_other_size(name, size, segments, is_short=are_recorded or (not size and is_last))
        if start + size < durable_below:
            raise CorruptRecordError(
                name, size, f"the file ends here; it must be {segments.file_bytes} bytes long"
            )
        disk.truncate(name, segments.file_bytes)


def check_queue_sizes(
    disk: Disk, queues: Iterable[ConsumeQueue], *, are_recorded: bool
) -> list[ConsumeQueue]:
    """Extend short queue files; return their queues, one for each such file.

    Raises:
        StoreConfigError: the store was created with another size.
    """
    damaged = []
    for queue in queues:
        segments = queue.segments
        for start in segments.starts():
            name, size = segments.name(start), disk.size(segments.name(start))
            if size == segments.file_bytes:
                continue
            is_last = start + segments.file_bytes == segments.end
            _refuse_other_size(
                name, size, segments, is_short=are_recorded or (not size and is_last)
            )
            disk.truncate(name, segments.file_bytes)
            damaged.append(queue)
    return damaged


def _refuse_other_size(name: str, size: int, segments: SegmentList, *, is_short: bool) -> None:
    if is_short and size < segments.file_bytes:
        return
    raise StoreConfigError(
        f"{name} has {size} bytes, but the configured file size is {segments.file_bytes} bytes: "
        "open the store with the sizes it was created with"
    )
