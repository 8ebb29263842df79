"""Recovery after a kill: pops and revives in the log that `consumerOffset.json` lacks.

The file is some seconds old. Without this step, a group would pop the messages of those seconds
once more, also those that it has acknowledged; and messages would be revived twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.checkpoint import CheckpointKey, is_relayed
from kourou.broker.popping.java_checkpoints import JavaCheckpoint, java_checkpoint_of
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.popping.revive_log import log_end_of, next_offset_of
from kourou.broker.popping.revived import REVIVED_MARK, revived_origin
from kourou.disk import Disk
from kourou.errors import MalformedBodyError
from kourou.model.properties import POP_LOG_END, TAGS, decode_properties
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.popping.revive_records import CHECKPOINT_TAG, decode_checkpoint
from kourou.store.log.log_walk import walk_log
from kourou.store.paths import COMMITLOG
from kourou.store.state.file_sizes import log_files

log = logging.getLogger(__name__)

_MARK = f"{POP_LOG_END}\x01".encode()


@dataclass(slots=True)
class LogFindings:
    """Pops and revives that were found at the end of the log.

    Attributes:
        popped: the offsets behind the messages of checkpoints.
        revived: checkpoint -> queue offsets of the messages that were revived.
        by_java: checkpoints of a Java broker that was killed before it saved any offsets.
    """

    popped: dict[PopQueue, int] = field(default_factory=dict)
    revived: dict[CheckpointKey, set[int]] = field(default_factory=dict)
    by_java: list[JavaCheckpoint] = field(default_factory=list)


def find_pops(
    disk: Disk,
    segment_bytes: int,
    positions: tuple[int, int],
    end: int,
    is_deleted: Callable[[PopQueue, int], bool],
) -> LogFindings:
    """Return the pops and revives that are not in the saved offsets; runs on any thread.

    Args:
        disk: holds the log.
        segment_bytes: size of its files.
        positions: see `ConsumerOffsets.loaded_positions`. Checkpoints that were stored before the
            first are left out, also if the timer delivered them later.
        end: the end of the log.
        is_deleted: called with the queue and group of a pop and the end of the log at the pop;
            returns whether the topic or the group was deleted since.

    Raises:
        OSError: the log cannot be read.
    """
    found = LogFindings()
    popped_from, _ = positions
    files = log_files(disk, COMMITLOG)
    for piece in walk_log(disk, files, segment_bytes, start=min(positions), end=end):
        header = piece.header
        if header is None:
            continue
        text = header.properties(piece.buffer)
        if _MARK in text:
            properties = decode_properties(text)
            log_end = log_end_of(properties) or 0
            is_own = properties.get(TAGS) == CHECKPOINT_TAG and not is_relayed(properties)
            if is_own and log_end >= popped_from:
                popped = _popped(properties, header.body(piece.buffer))
                if popped is not None and not is_deleted(popped[0], log_end):
                    queue, following = popped
                    found.popped[queue] = max(found.popped.get(queue, 0), following)
        elif REVIVED_MARK in text:
            origin = revived_origin(decode_properties(text))
            if origin is not None:
                found.revived.setdefault(origin[0], set()).add(origin[1])
        elif header.topic == TIMER_TOPIC and header.physical_offset >= popped_from:
            checkpoint = java_checkpoint_of(header, piece.buffer)
            if checkpoint is not None:
                found.by_java.append(checkpoint)
    return found


def was_deleted(context: BrokerContext, queue: PopQueue, log_end: int) -> bool:
    """Return whether topic or group of a queue were deleted after the log had this end."""
    if context.groups.was_deleted_after(queue.group, log_end):
        return True
    return log_end <= context.store.reader.topic_begin(queue.topic)


def _popped(properties: Mapping[str, str], body: bytes) -> tuple[PopQueue, int] | None:
    """Return the queue of a checkpoint, and the offset behind its messages; None if unknown."""
    following = next_offset_of(properties)
    if following is None:
        return None
    try:
        record = decode_checkpoint(body)
    except MalformedBodyError:
        return None  # sent by a client
    return PopQueue(record.topic, record.group, record.queue_id), following


def commit_popped(
    popped: dict[PopQueue, int], offsets: ConsumerOffsets, max_offset: Callable[[str, int], int]
) -> None:
    """Move the offsets of groups behind the messages that they have popped.

    Args:
        popped: see `LogFindings`.
        offsets: the committed offsets.
        max_offset: returns the end of a queue by topic and queue id; 0 for a missing queue.
    """
    for (topic, group, queue_id), following in popped.items():
        offset = min(following, max_offset(topic, queue_id))
        if (offsets.query(group, topic, queue_id) or 0) < offset:
            offsets.commit_popped(group, topic, queue_id, offset)
    if popped:
        log.info("pop_offsets.recovered queues=%d", len(popped))
