"""Recovery after a kill: pops and revives in the log that `consumerOffset.json` lacks.

The file is some seconds old. Without this step, a group would pop the messages of those seconds
once more, also those that it has acknowledged; and messages would be revived twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.checkpoint import CheckpointKey, is_relayed
from kourou.broker.popping.java_checkpoints import (
    JavaCheckpoint,
    find_java_checkpoints,
    java_checkpoint_of,
    popped_by_java,
    recent_timer_records,
    unsaved_ms,
)
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
from kourou.store.reader import StoreReader
from kourou.store.state.file_sizes import log_files

log = logging.getLogger(__name__)

COPIED_MS: Final = 30_000
"""Time in which a slave has copied the offsets of its master, which it does each 10 s."""
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

    def add_popped(
        self,
        properties: Mapping[str, str],
        body: bytes,
        popped_from: int,
        is_deleted: Callable[[PopQueue, int], bool],
    ) -> None:
        """Add the pop of a checkpoint of Kourou, if the log ended at `popped_from` or later."""
        log_end = log_end_of(properties) or 0
        is_own = properties.get(TAGS) == CHECKPOINT_TAG and not is_relayed(properties)
        popped = _popped(properties, body) if is_own and log_end >= popped_from else None
        if popped is not None and not is_deleted(popped[0], log_end):
            queue, following = popped
            self.popped[queue] = max(self.popped.get(queue, 0), following)


async def complete_popped(
    context: BrokerContext, offsets: ConsumerOffsets, positions: tuple[int, int] | None
) -> LogFindings:
    """Move the offsets of groups behind the pops that they lack; return what was found.

    Args:
        context: the broker's state and services.
        offsets: the committed offsets.
        positions: `ConsumerOffsets.loaded_positions`; None if Java wrote the offsets.

    Raises:
        OSError: the log cannot be read.
    """
    reader = context.store.reader
    if positions is None:
        age_ms = unsaved_ms(context.config.consumer_offset_interval_ms)
        by_java = await context.offload(find_java_checkpoints, reader, age_ms)
        found = LogFindings(by_java=by_java)
    else:
        segment_bytes = context.config.store.commitlog_segment_bytes
        found = await context.offload(
            find_pops,
            context.disk,
            segment_bytes,
            positions,
            reader.written_position,
            partial(was_deleted, context),
        )
    commit_popped(found.popped, offsets, reader.max_offset)
    await _commit_java_pops(context, offsets, found.by_java)
    return found


async def complete_copied(context: BrokerContext, offsets: ConsumerOffsets) -> None:
    """Move the offsets of groups, copied from a master, behind the pops since the last copies.

    Raises:
        OSError: the log cannot be read.
    """
    reader = context.store.reader
    is_deleted = partial(was_deleted, context)
    found = await context.offload(find_recent_pops, reader, COPIED_MS, is_deleted)
    commit_popped(found.popped, offsets, reader.max_offset)
    await _commit_java_pops(context, offsets, found.by_java)


def find_recent_pops(
    reader: StoreReader, age_ms: int, is_deleted: Callable[[PopQueue, int], bool]
) -> LogFindings:
    """Return the pops whose checkpoints are at the end of the timer topic, of Java and of Kourou.

    Args:
        reader: reads the store.
        age_ms: as for `find_java_checkpoints`.
        is_deleted: as for `find_pops`.

    Raises:
        OSError: the log cannot be read.
    """
    found = LogFindings()
    for header, record in recent_timer_records(reader, age_ms):
        text = header.properties(record)
        if _MARK in text:
            found.add_popped(decode_properties(text), header.body(record), 0, is_deleted)
        elif (checkpoint := java_checkpoint_of(header, record)) is not None:
            found.by_java.append(checkpoint)
    return found


async def _commit_java_pops(
    context: BrokerContext, offsets: ConsumerOffsets, checkpoints: Sequence[JavaCheckpoint]
) -> None:
    """Move the offsets of groups behind the messages of checkpoints of Java."""
    reader = context.store.reader
    committed = {
        queue: offset
        for queue in {checkpoint.queue for checkpoint in checkpoints}
        if (offset := offsets.query(queue.group, queue.topic, queue.queue_id)) is not None
    }
    popped = await context.offload(
        popped_by_java,
        checkpoints,
        reader,
        committed,
        may_be_buffered=context.live_config.current.pop.enable_pop_buffer_merge,
    )
    commit_popped(popped, offsets, reader.max_offset)


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
            found.add_popped(properties, header.body(piece.buffer), popped_from, is_deleted)
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
