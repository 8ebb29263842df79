"""Recovery of the offsets of pops that a killed Java broker has not saved.

Java writes `consumerOffset.json` every few seconds, without a position of the log. Its checkpoints
tell what was popped since: each is stored before the group's offset moves behind its messages.

A checkpoint also tells that all messages before the offset from which its pop read were popped, or
filtered out. That holds without `enablePopBufferMerge` only. With it, the checkpoints of earlier
pops may have been lost with the memory of the broker, and the offset stays before the first gap.

Checkpoints of ordered pops do not exist; their offsets move with acknowledgements.

Source: PopMessageProcessor.popMsgFromQueue, PopBufferMergeService, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from kourou.broker.popping.checkpoint import is_relayed
from kourou.broker.popping.pop_run import PopQueue
from kourou.broker.popping.revive_log import REVIVE_PREFIX
from kourou.errors import MalformedBodyError, MalformedMessageError
from kourou.model.properties import (
    POP_LOG_END,
    REAL_TOPIC,
    TAGS,
    TIMER_ROLL_TIMES,
    decode_properties,
)
from kourou.model.topic import TIMER_TOPIC
from kourou.protocol.popping.revive_records import CHECKPOINT_TAG, decode_checkpoint
from kourou.protocol.record.layout import RecordHeader
from kourou.protocol.record.read import read_record
from kourou.store.reader import StoreReader

FIRST_SAVE_MS: Final = 10_000
"""Time from the start of a Java broker to the first time that it saves the offsets."""


class JavaCheckpoint(NamedTuple):
    """A checkpoint that Java stored.

    Attributes:
        start: queue offset from which the pop read.
        end: queue offset after its last message.
        position: byte of the log at which it was stored.
    """

    queue: PopQueue
    start: int
    end: int
    position: int


def unsaved_ms(save_interval_ms: int) -> int:
    """Return for how long before a kill the offsets of pops may not have been saved.

    Args:
        save_interval_ms: `flushConsumerOffsetInterval`. One save may have failed or been late.
    """
    return FIRST_SAVE_MS + 2 * save_interval_ms


def find_java_checkpoints(reader: StoreReader, age_ms: int) -> list[JavaCheckpoint]:
    """Return the checkpoints of Java at the end of the timer topic; may wait for the device.

    Args:
        reader: reads the store.
        age_ms: how much older than the topic's last message they may be. The broker was killed
            after that message, so that this reaches as far before the kill, or further.

    Raises:
        OSError: the log cannot be read.
    """
    records = recent_timer_records(reader, age_ms)
    return [found for one in records if (found := java_checkpoint_of(*one)) is not None]


def recent_timer_records(reader: StoreReader, age_ms: int) -> Iterator[tuple[RecordHeader, bytes]]:
    """Yield the records at the end of the timer topic, as old as for `find_java_checkpoints`.

    Raises:
        OSError: the log cannot be read.
    """
    end = reader.max_offset(TIMER_TOPIC, 0)
    last_at_ms = reader.store_time(TIMER_TOPIC, 0, end - 1) if end else -1
    first = reader.offset_by_time(TIMER_TOPIC, 0, last_at_ms - age_ms)
    yield from queue_records(reader, TIMER_TOPIC, 0, first)


def queue_records(
    reader: StoreReader, topic: str, queue_id: int, first: int, end: int | None = None
) -> Iterator[tuple[RecordHeader, bytes]]:
    """Yield the records of a queue from an offset on, without damaged ones; may wait.

    Ends before offset `end`, or at the end of the queue.

    Raises:
        OSError: the log cannot be read.
    """
    start = max(first, reader.min_offset(topic, queue_id))
    queue_end = reader.max_offset(topic, queue_id)
    for offset in range(start, queue_end if end is None else min(end, queue_end)):
        entry = reader.entry(topic, queue_id, offset)
        record = None if entry is None else reader.read_record(entry.physical_offset)
        if record is not None:
            yield read_record(record, check_crc=False), record


def java_checkpoint_of(header: RecordHeader, buffer: bytes) -> JavaCheckpoint | None:
    """Return the checkpoint in a record of the log; None if it is no checkpoint of a pop by Java.

    Checkpoints that replace another one, or that the timer put off, belong to earlier pops; those
    that were sent, to other brokers.

    Args:
        header: of the record.
        buffer: the bytes that the header was read from.
    """
    if header.topic != TIMER_TOPIC:
        return None
    try:
        properties = decode_properties(header.properties(buffer))
        if (
            properties.get(TAGS) != CHECKPOINT_TAG
            or not properties.get(REAL_TOPIC, "").startswith(REVIVE_PREFIX)
            or POP_LOG_END in properties
            or TIMER_ROLL_TIMES in properties
            or is_relayed(properties)
        ):
            return None
        record = decode_checkpoint(header.body(buffer))
    except (MalformedBodyError, MalformedMessageError):
        return None  # sent by a client
    if record.re_puts is not None or record.count <= 0:
        return None
    diffs = record.diffs[: record.count] if record.diffs else (record.count - 1,)
    queue = PopQueue(record.topic, record.group, record.queue_id)
    start = record.start_offset
    return JavaCheckpoint(queue, start, start + max(diffs) + 1, header.physical_offset)


def popped_by_java(
    checkpoints: Iterable[JavaCheckpoint],
    reader: StoreReader,
    committed: dict[PopQueue, int],
    *,
    may_be_buffered: bool,
) -> dict[PopQueue, int]:
    """Return the offsets of groups behind the messages that Java has popped.

    A checkpoint whose last message was stored after it is of a deleted topic of the same name. May
    wait for the device.

    Args:
        checkpoints: in any order.
        reader: tells where messages are stored.
        committed: the offsets of the groups, where they are known.
        may_be_buffered: see `enable_pop_buffer_merge`.
    """
    offsets: dict[PopQueue, int] = {}
    for found in sorted(checkpoints, key=attrgetter("queue", "start")):
        topic, _, queue_id = queue = found.queue
        last = reader.entry(topic, queue_id, found.end - 1)
        if last is None or last.physical_offset > found.position:
            continue
        known = offsets.get(queue, committed.get(queue))
        if known is None:
            known = reader.min_offset(topic, queue_id)
        if found.start <= known or not may_be_buffered:
            offsets[queue] = max(known, found.end)
    return offsets
