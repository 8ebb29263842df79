"""Writing queue entries again that rotted on the device.

Runs on the store's thread. Nothing is synced: such an entry is derived data, and is found anew by
the next read of it (`kourou.store.reading.checked_get`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kourou.disk import Disk
from kourou.store.formats import ENTRY, ENTRY_BYTES
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.reading.checked_get import Mended

log = logging.getLogger(__name__)


def write_mended(disk: Disk, queues: ConsumeQueueTable, mended: Iterable[Mended]) -> None:
    """Write those entries whose files are still there, and say which.

    Raises:
        OSError: some are as they were, or a half of one was written.
    """
    for topic, queue_id, queue_offset, entry in mended:
        queue = queues.get(topic, queue_id)
        byte = queue_offset * ENTRY_BYTES
        # Meanwhile the topic may have been deleted, or the queue's file have expired.
        if queue is None or not queue.segments.first <= byte < queue.file_end * ENTRY_BYTES:
            continue
        name, file_offset = queue.segments.name(byte), byte % queue.segments.file_bytes
        if not disk.exists(name):
            continue
        disk.write(name, file_offset, [ENTRY.pack(*entry)])
        log.warning(
            "consumequeue.entry_mended file=%s byte=%d topic=%s queue_id=%d queue_offset=%d",
            name, file_offset, topic, queue_id, queue_offset,
        )  # fmt: skip
