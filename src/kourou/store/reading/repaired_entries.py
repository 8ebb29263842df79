"""Writes repaired queue entries to their files.

Runs on the store's thread, so that no file is written that was removed meanwhile. Consecutive
entries take one write. Nothing is synced: an entry is derived data, and if a crash loses the
repair, the next read repairs it again (`kourou.store.reading.verified_get`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from kourou.disk import Disk
from kourou.store.formats import ENTRY, ENTRY_BYTES
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.reading.verified_get import RepairedEntry

log = logging.getLogger(__name__)


def write_entries(disk: Disk, queues: ConsumeQueueTable, repaired: Iterable[RepairedEntry]) -> None:
    """Write the entries whose files still exist, and log them.

    Args:
        disk: the disk that holds the queues' files.
        queues: all queues.
        repaired: the entries, in offset order within each queue.

    Raises:
        OSError: some entries are not written, or one is written in part.
    """
    for run in _runs(repaired):
        topic, queue_id, *_ = run[0]
        queue = queues.get(topic, queue_id)
        if queue is None:
            continue  # the topic was deleted meanwhile
        file_bytes = queue.segments.file_bytes
        # An expired file must not be created again.
        is_in_files = range(queue.segments.first, queue.file_end * ENTRY_BYTES)
        by_file: dict[int, list[RepairedEntry]] = {}
        for repair in run:
            byte = repair.queue_offset * ENTRY_BYTES
            if byte in is_in_files:
                by_file.setdefault(byte // file_bytes, []).append(repair)
        for entries in by_file.values():
            byte = entries[0].queue_offset * ENTRY_BYTES
            name, file_offset = queue.segments.name(byte), byte % file_bytes
            if not disk.exists(name):
                continue
            disk.write(
                name, file_offset, [b"".join(ENTRY.pack(*repair.entry) for repair in entries)]
            )
            log.warning(
                "consumequeue.entries_mended file=%s byte=%d count=%d topic=%s queue_id=%d "
                "queue_offset=%d",
                name, file_offset, len(entries), topic, queue_id, entries[0].queue_offset,
            )  # fmt: skip


def _runs(repaired: Iterable[RepairedEntry]) -> Iterator[list[RepairedEntry]]:
    """Yield lists of consecutive entries of one queue."""
    run: list[RepairedEntry] = []
    for repair in repaired:
        if run:
            last = run[-1]
            if repair[:3] != (last.topic, last.queue_id, last.queue_offset + 1):
                yield run
                run = []
        run.append(repair)
    if run:
        yield run
