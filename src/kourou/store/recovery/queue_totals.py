"""Compares the queues found at a start with recorded totals, to detect lost or corrupt queue files.

    recorded value           where, when                   detects
    files of all queues      checkpoint, each round        a queue that lost its last files, or all
    sum of minimum offsets   state, each start and stop    a corrupt first entry, which looks like
                                                           one whose record expired

If a value differs, the caller rebuilds the queues from the whole log. New files since the last
round may hide the loss of as many others; the entry count recorded at the next clean stop detects
such a loss.
"""

from __future__ import annotations

from kourou.store.formats import Checkpoint
from kourou.store.queues.consumequeue import count_files
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.state.store_state import QueueBegins, StoreState


def lacks_files(
    queues: ConsumeQueueTable, checkpoint: Checkpoint, state: StoreState | None
) -> bool:
    """Tell whether the loaded queues have fewer files than recorded."""
    return count_files(queues) < _recorded_files(checkpoint, state)


def with_file_count(
    checkpoint: Checkpoint, queues: ConsumeQueueTable, state: StoreState | None
) -> Checkpoint:
    """Return the checkpoint with the number of files after a recovery.

    Some files may not be durable yet: if a power cut loses them, the next recovery takes longer.
    """
    queues.deleted_files = 0 if state is None else state.deleted_files
    return checkpoint._replace(queue_files=count_files(queues), deleted_files=queues.deleted_files)


def _recorded_files(checkpoint: Checkpoint, state: StoreState | None) -> int:
    """Return the recorded number of files, less those of topics deleted since; 0 if not known."""
    deleted = (0 if state is None else state.deleted_files) - checkpoint.deleted_files
    return max(checkpoint.queue_files - deleted, 0) if deleted >= 0 else 0


def begin_totals(queues: ConsumeQueueTable, log_first: int) -> QueueBegins:
    """Return the log's begin and the sum of the queues' minimum offsets; about 0.2 us a queue."""
    return QueueBegins(log_first, sum(queue.min_offset for queue in queues))


def has_other_begins(queues: ConsumeQueueTable, log_first: int, state: StoreState | None) -> bool:
    """Tell whether the queues begin elsewhere than recorded, although the log does not."""
    recorded = None if state is None else state.begins
    if recorded is None or recorded.log_first != log_first:
        return False
    return begin_totals(queues, log_first) != recorded
