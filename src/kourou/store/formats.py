"""Byte layouts that only the store reads: queue entry, checkpoint. Big-endian.

Source: ConsumeQueue.java CQ_STORE_UNIT_SIZE, StoreCheckpoint.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

ENTRY: Final = struct.Struct(">qiq")
"""A consume queue entry: physical offset, record size, tags code."""
ENTRY_BYTES: Final = ENTRY.size

BLANK_ENTRY_SIZE: Final = 0x7FFFFFFF
"""The record size in a blank entry, which stands for no record."""
BLANK_ENTRY: Final = ENTRY.pack(0, BLANK_ENTRY_SIZE, 0)
"""Fills a queue's first file up to the first message if that is not at the file's start."""

BATCH_ENTRY: Final = struct.Struct(">qiqqqhii")
"""A batch consume queue entry: physical offset, record size, tags code, store time, queue offset of
the first message, number of messages, compacted offset (-1), 0."""
BATCH_ENTRY_BYTES: Final = BATCH_ENTRY.size

_CHECKPOINT: Final = struct.Struct(">6q")
_COPY: Final = struct.Struct(">4s9q")
_COPY_V1: Final = struct.Struct(">4s7q")
_COPY_CRC: Final = struct.Struct(">I")
_COPY_MAGIC: Final = b"KOU2"
_COPIES: Final = ((_COPY_MAGIC, _COPY), (b"KOU1", _COPY_V1))
COPY_AT: Final = 512
"""The byte of the checkpoint at which Kourou's copy begins: in a sector that Java does not use."""
_JAVA_NUMBERS: Final = 6
COPY_BYTES: Final = _COPY.size + _COPY_CRC.size
CHECKPOINT_BYTES: Final = 4096


class QueueEntry(NamedTuple):
    """Position and size of a queue's message in the log, and the tags code for tag filters."""

    physical_offset: int
    size: int
    tags_code: int


class Checkpoint(NamedTuple):
    """Positions up to which the files are durable: each may lag behind the files, never lead.

    In the file: the first six values as 8-byte numbers in this order. From byte 512 on a copy that
    only Kourou writes and reads: "KOU2", all nine values, and the CRC-32 of these 76 bytes. Zeros
    up to byte 4096. An earlier version of the copy, "KOU1", lacks the last two values.

    Attributes:
        log_at_ms: store time of the last synced record (physicMsgTimestamp).
        queues_at_ms: store time of the last record whose queue entry is synced
            (logicsMsgTimestamp).
        index_at_ms: store time of the last record whose index entries are synced
            (indexMsgTimestamp).
        master_flushed_offset: used by replication.
        confirmed_offset: used by replication.
        queues_offset: physical offset of the last record up to which the log and all queue entries
            are synced, its own included (logicsPhysicalOffset, since 5.5; 0 in older files).
        synced_position: the log was synced up to here; in the copy only.
        queue_files: how many synced files the queues had, each counted from offset 0 to its last
            one; in the copy only, 0 if not known.
        deleted_files: how many files deletions of topics had removed, counted the same way; in the
            copy only.
    """

    log_at_ms: int = 0
    queues_at_ms: int = 0
    index_at_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    queues_offset: int = 0
    synced_position: int = 0
    queue_files: int = 0
    deleted_files: int = 0

    @property
    def java_values(self) -> Checkpoint:
        """The checkpoint with the values that only the copy has set to 0."""
        return Checkpoint._make((*self[:_JAVA_NUMBERS], 0, 0, 0))


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the values at the file's start; in one sector, so that a crash cannot tear them."""
    return _CHECKPOINT.pack(*checkpoint[:_JAVA_NUMBERS])


def encode_checkpoint_copy(checkpoint: Checkpoint) -> bytes:
    """Return the copy for byte `COPY_AT`; in one sector as well."""
    data = _COPY.pack(_COPY_MAGIC, *checkpoint)
    return data + _COPY_CRC.pack(zlib.crc32(data))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint; all 0, which is always safe, if the data is too short."""
    if len(data) < _CHECKPOINT.size:
        return Checkpoint()
    return Checkpoint(*_CHECKPOINT.unpack_from(data))


def decode_checkpoint_copy(data: bytes) -> Checkpoint | None:
    """Return the copy at the start of the data; None if it is missing or corrupt."""
    for magic, layout in _COPIES:
        if data.startswith(magic) and len(data) >= layout.size + _COPY_CRC.size:
            if _COPY_CRC.unpack_from(data, layout.size)[0] != zlib.crc32(data[: layout.size]):
                return None
            return Checkpoint(*layout.unpack_from(data)[1:])
    return None
