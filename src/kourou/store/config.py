"""The store's options: sizes of its files, limits of reads, and when it refuses writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.model.delay import DELAY_LEVELS_MS
from kourou.store.retention import RetentionConfig

_MIB: Final = 1024 * 1024
_ENTRY_BYTES: Final = 20
_BATCH_ENTRY_BYTES: Final = 46
_EXTENSION_BYTES_MIN: Final = 64
_SEGMENT_BYTES_MIN: Final = 4096
_FREE_BYTES_MIN: Final = 512 * _MIB
BELIEVED_BYTES: Final = 256 * _MIB
"""A broker on a machine of 4 GiB keeps so much of its log in memory while others write too."""


@documented
@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """What a store is told when it is opened.

    The three file sizes are fixed when a store is made, and recorded in it. Java must be given the
    same ones to open it.

    Raises:
        ConfigError: a value is out of its range.
    """

    commitlog_segment_bytes: int = field(
        default=64 * _MIB, metadata={"key": "mappedFileSizeCommitLog"}
    )
    """Bytes of one commit log file, 4 KiB at least; Java's default is 1 GiB. No record may be
    larger than this less 8. The files are sparse: an empty one takes no space."""
    consumequeue_file_bytes: int = field(
        default=300_000 * _ENTRY_BYTES, metadata={"key": "mappedFileSizeConsumeQueue"}
    )
    """Bytes of one consume queue file, a multiple of 20; sparse too."""
    batch_queue_file_bytes: int = field(
        default=300_000 * _BATCH_ENTRY_BYTES, metadata={"key": "mapperFileSizeBatchConsumeQueue"}
    )
    """The same for topics with batch consume queues (`queue.type=BatchCQ`), a multiple of 46."""
    consumequeue_extension: bool = field(default=False, metadata={"key": "enableConsumeQueueExt"})
    """Whether each entry of a usual consume queue has an extension unit, with room for a bit map of
    the filters that its message passed. Those that Java made are read in any case."""
    extension_file_bytes: int = field(
        default=48 * _MIB, metadata={"key": "mappedFileSizeConsumeQueueExt"}
    )
    """Bytes of one file of such units; sparse too. Java must be given the same."""
    fill_segments_ahead: bool = field(default=True, metadata={"key": "warmMapedFileEnable"})
    """Whether, with SYNC_FLUSH, zeros are written ahead of the records while syncs are small (up to
    64 KiB), half a MiB at a time. A sync then seldom waits for the file system's journal: about a
    tenth more sends on ext4, and the device gets twice the bytes. Of no use where files are never
    overwritten in place (ZFS, Btrfs). Java's, which fills whole files, is false by default."""
    append_property_crc: bool = field(default=True, metadata={"key": "enabledAppendPropCRC"})
    """Whether each record ends with a checksum of all of it (property `__CRC32#`, 20 bytes), not
    of its body only. It costs about 1 us a message. Java's default is false; it reads both."""
    message_index_enable: bool = field(default=True, metadata={"key": "messageIndexEnable"})
    """Whether messages are found by key, unique id and tag. It costs about 3 us a message."""
    index_slots: int = field(default=250_000, metadata={"key": "maxHashSlotNum"})
    """Slots of one file of the key index, 4 bytes each, which are kept in memory for the newest
    file. Fixed when a store is made, as `index_entries`; Java's default is 5,000,000."""
    index_entries: int = field(default=1_000_000, metadata={"key": "maxIndexNum"})
    """Entries of one file of the key index, 20 bytes each: one for each key of each message. Java's
    default is 20,000,000. The files are sparse."""
    free_bytes_min: int = 0
    """Sends are refused while the file system has less free. 0 takes two segments, but 512 MiB at
    least."""
    queue_tail_bytes_max: int = 64 * 1024
    """Entries of one consume queue that wait in memory for the next flush. More are written at
    once. What a crash takes of them is made again from the commit log."""
    queue_sync_interval_ms: int = field(
        default=10_000, metadata={"key": "flushConsumeQueueThoroughInterval"}
    )
    """How often consume queues are synced; recovery scans what the log grew by since, about 3 us a
    message. Java's default is 60 seconds."""
    queue_files_per_sync: int = 8
    """Consume queue files that one such sync takes, beside those of the log."""
    scan_bytes_max: int = field(default=16_000, metadata={"key": "maxFilterMessageSize"})
    """Consume queue bytes that one read looks through for messages that pass the filter."""
    resident_bytes: int = 0
    """Bytes behind the log's end that count as in memory; reads of older messages keep the two
    limits below. 0: everything counts as in memory."""
    believed_bytes: int = 0
    """Bytes behind the log's end that count as in memory ever since this process wrote them, so
    that reads need not compare them with their checksums; and so many are believed after they were
    compared. 0 takes 256 MiB; `kourou serve` takes a sixteenth of the memory."""
    cold_get_bytes_max: int = field(
        default=64 * 1024, metadata={"key": "maxTransferBytesOnMessageInDisk"}
    )
    """Most bytes of one read of older messages; a single larger message is still handed out."""
    cold_get_messages_max: int = field(
        default=8, metadata={"key": "maxTransferCountOnMessageInDisk"}
    )
    """Most messages of one read of older messages."""
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """How long each delay level waits, level 1 first; a delayed message's queue entry holds when
    it is due."""
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    """How long messages are kept."""

    def __post_init__(self) -> None:
        for name, least in (
            ("commitlog_segment_bytes", _SEGMENT_BYTES_MIN),
            ("consumequeue_file_bytes", _ENTRY_BYTES),
            ("batch_queue_file_bytes", _BATCH_ENTRY_BYTES),
            ("extension_file_bytes", _EXTENSION_BYTES_MIN),
            ("index_slots", 1),
            ("index_entries", 2),
            ("free_bytes_min", 0),
            ("queue_tail_bytes_max", _ENTRY_BYTES),
            ("queue_sync_interval_ms", 1),
            ("queue_files_per_sync", 1),
            ("scan_bytes_max", _ENTRY_BYTES),
            ("resident_bytes", 0),
            ("believed_bytes", 0),
            ("cold_get_bytes_max", 1),
            ("cold_get_messages_max", 1),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be {least} at least")
        for name, size in (
            ("consumequeue_file_bytes", _ENTRY_BYTES),
            ("batch_queue_file_bytes", _BATCH_ENTRY_BYTES),
        ):
            if getattr(self, name) % size:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be a multiple of {size}, the size "
                    "of an entry"
                )
        if not self.delay_levels_ms:
            raise ConfigError("delay_levels_ms is empty; at least one level is needed")

    @property
    def free_bytes_needed(self) -> int:
        """Bytes that must be free on the file system for sends to be taken."""
        return self.free_bytes_min or max(2 * self.commitlog_segment_bytes, _FREE_BYTES_MIN)
