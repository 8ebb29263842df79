"""Layouts of the files that only the store reads: queue entry, blank, checkpoint. Big-endian.

Source: ConsumeQueue.java CQ_STORE_UNIT_SIZE, CommitLog.java END_FILE_MIN_BLANK_LENGTH,
StoreCheckpoint.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kourou.protocol.message_layout import MAGIC_BLANK

ENTRY: Final = struct.Struct(">qiq")
"""A consume queue entry: physical offset, record size, tags code."""
ENTRY_BYTES: Final = ENTRY.size

BLANK_ENTRY_SIZE: Final = 0x7FFFFFFF
"""The record size in an entry that stands for nothing."""
BLANK_ENTRY: Final = ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
"""Fills a queue's first file up to the first message, when that is not at the file's start."""

RECORD_START: Final = struct.Struct(">ii")
"""Size and magic, with which every record and every blank begins."""
BLANK_BYTES: Final = RECORD_START.size
"""Kept free behind every record of a segment, so that a blank always fits."""

SYS_FLAG: Final = struct.Struct(">i")
SYS_FLAG_AT: Final = 36
"""Byte of a record where its sys flag is."""
STORE_TIME: Final = struct.Struct(">q")
STORE_TIME_AT: Final = 56
"""Byte of a record where its store time begins, if the producer's address is IPv4."""
STORE_TIME_AT_V6: Final = 68
STORE_TIME_READ_BYTES: Final = STORE_TIME_AT_V6 + STORE_TIME.size

_CHECKPOINT: Final = struct.Struct(">6q")
CHECKPOINT_BYTES: Final = 4096


class QueueEntry(NamedTuple):
    """Where a message of a queue lies, and what a tag filter compares."""

    physical_offset: int
    size: int
    tags_code: int


class Checkpoint(NamedTuple):
    """How far the files were known to be durable; each value may lag, none may lead.

    In the file: six 8-byte numbers in this order, then zeros up to 4096 bytes.

    Attributes:
        log_at_ms: store time of the last synced record (physicMsgTimestamp).
        queues_at_ms: store time of the last record whose queue entry is synced
            (logicsMsgTimestamp).
        index_at_ms: the same for the key index (indexMsgTimestamp).
        master_flushed_offset: replication's.
        confirmed_offset: replication's.
        queues_offset: physical offset of the last record whose queue entry, and all before it,
            are synced with the log up to its end (logicsPhysicalOffset, since 5.5; 0 in older).
    """

    log_at_ms: int = 0
    queues_at_ms: int = 0
    index_at_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    queues_offset: int = 0


def encode_blank(rest: int) -> bytes:
    """Return what ends a segment of which `rest` bytes are left, these included."""
    return RECORD_START.pack(rest, MAGIC_BLANK)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the numbers that begin the file; one sector, so that a crash cannot tear them."""
    return _CHECKPOINT.pack(*checkpoint)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint; all 0, which is always safe, if the data is too short."""
    if len(data) < _CHECKPOINT.size:
        return Checkpoint()
    return Checkpoint._make(_CHECKPOINT.unpack_from(data))
