"""Completes deletions of topics that a crash interrupted; see `kourou.store.deletion`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.consumequeue_table import ConsumeQueueTable

log = logging.getLogger(__name__)


def finish_deletions(queues: ConsumeQueueTable, deleted_below: Mapping[str, int]) -> None:
    """Remove the remaining files of topics whose deletion was noted but not completed.

    Args:
        queues: the loaded queues.
        deleted_below: by topic, the log position below which its records are deleted.

    Raises:
        OSError: a file cannot be read or removed.
    """
    for topic, below in deleted_below.items():
        existing = queues.of_topic(topic)
        outdated = [queue for queue in existing if _is_outdated(queue, below)]
        if len(outdated) < len(existing):  # the topic was created again
            for queue in outdated:
                queues.remove(queue)
        elif queues.has_files(topic):
            log.info("topic.deletion_finished name=%s queues=%d", topic, len(outdated))
            queues.forget(topic)
            queues.remove_files(topic)


def _is_outdated(queue: ConsumeQueue, physical_offset: int) -> bool:
    """Tell whether the queue's files begin with a record below that position.

    True for files without an entry: they remain from a removal, or belong to a newer queue, which
    the scan rebuilds.
    """
    entry = queue.first_entry()
    return entry is None or entry.physical_offset < physical_offset
