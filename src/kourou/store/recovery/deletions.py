"""Finishing deletions of topics that a crash cut short; see `kourou.store.deletion`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.consumequeue_table import ConsumeQueueTable

log = logging.getLogger(__name__)


def finish_deletions(queues: ConsumeQueueTable, deleted_below: Mapping[str, int]) -> None:
    """Remove what is left of topics where a crash came between the note and the removal.

    Args:
        queues: as they were loaded.
        deleted_below: by topic, the log position below which it has no entries any more.

    Raises:
        OSError: a file cannot be read or removed.
    """
    for topic, below in deleted_below.items():
        there = queues.of_topic(topic)
        gone = [queue for queue in there if _is_from_before(queue, below)]
        if len(gone) < len(there):  # somebody made the topic again
            for queue in gone:
                queues.remove(queue)
        elif queues.has_files(topic):
            log.info("topic.deletion_finished name=%s queues=%d", topic, len(gone))
            queues.forget(topic)
            queues.remove_files(topic)


def _is_from_before(queue: ConsumeQueue, physical_offset: int) -> bool:
    """Tell whether the queue's files begin with a record below that place of the log.

    So are files without an entry: what is left of a removal, or of a newer queue, which the scan
    makes again.
    """
    entry = queue.first_entry()
    return entry is None or entry.physical_offset < physical_offset
