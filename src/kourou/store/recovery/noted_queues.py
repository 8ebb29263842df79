"""Whether the queues found at a start are those that were noted: as many files, beginning as then.

    noted                    where, when                   what it tells
    files of all queues      checkpoint, each round        a queue without its last files, or all
    sum of where they begin  state, each start and stop    a first entry that rotted: it looks like
                                                           one whose record expired

Who finds a difference makes the queues again from all of the log. Files that come after a round
may hide as many that went missing since: the next clean stop counts entries.
"""

from __future__ import annotations

from kourou.store.formats import Checkpoint
from kourou.store.queues.consumequeue import count_files
from kourou.store.queues.consumequeue_table import ConsumeQueueTable
from kourou.store.state.store_state import QueueBegins, StoreState


def lacks_files(
    queues: ConsumeQueueTable, checkpoint: Checkpoint, state: StoreState | None
) -> bool:
    """Tell whether the queues have fewer files than when they were counted; as they are loaded."""
    return count_files(queues) < _noted_files(checkpoint, state)


def with_files_there(
    checkpoint: Checkpoint, queues: ConsumeQueueTable, state: StoreState | None
) -> Checkpoint:
    """Return the checkpoint with the files that there are after a recovery.

    Some may not be durable yet: what a power cut takes of them costs one longer recovery.
    """
    queues.deleted_files = 0 if state is None else state.deleted_files
    return checkpoint._replace(queue_files=count_files(queues), deleted_files=queues.deleted_files)


def _noted_files(checkpoint: Checkpoint, state: StoreState | None) -> int:
    """Return how many files there were, without those of topics deleted since; 0 if not known."""
    deleted = (0 if state is None else state.deleted_files) - checkpoint.deleted_files
    return max(checkpoint.queue_files - deleted, 0) if deleted >= 0 else 0


def begins_of(queues: ConsumeQueueTable, log_first: int) -> QueueBegins:
    """Return where the queues begin; about 0.2 us a queue."""
    return QueueBegins(log_first, sum(queue.min_offset for queue in queues))


def begin_elsewhere(queues: ConsumeQueueTable, log_first: int, state: StoreState | None) -> bool:
    """Tell whether the queues do not begin where they did, although the log does."""
    noted = None if state is None else state.begins
    if noted is None or noted.log_first != log_first:
        return False
    return begins_of(queues, log_first) != noted
