"""The store's options: file sizes, limits of reads, and the free space below which writes fail."""

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
"""Default of `believed_bytes`. On a machine of 4 GiB, this much of the log stays in the page cache
even while other programs write files."""


@documented
@dataclass(frozen=True, kw_only=True)
class StoreConfig:
    """The options with which a store is opened.

    The three file sizes are fixed when a store is created, and recorded in it. A Java broker must
    be configured with the same sizes to open it.

    Raises:
        ConfigError: a value is out of its range.
    """

    commitlog_segment_bytes: int = field(
        default=64 * _MIB, metadata={"key": "mappedFileSizeCommitLog"}
    )
    """The size of a commit log file in bytes, at least 4 KiB; Java's default is 1 GiB. A record may
    have at most 8 bytes less than this. The files are sparse: an empty one takes no space."""
    consumequeue_file_bytes: int = field(
        default=300_000 * _ENTRY_BYTES, metadata={"key": "mappedFileSizeConsumeQueue"}
    )
    """The size of a consume queue file in bytes, a multiple of 20; the files are sparse."""
    batch_queue_file_bytes: int = field(
        default=300_000 * _BATCH_ENTRY_BYTES, metadata={"key": "mapperFileSizeBatchConsumeQueue"}
    )
    """The same for topics with batch consume queues (`queue.type=BatchCQ`), a multiple of 46."""
    consumequeue_extension: bool = field(default=False, metadata={"key": "enableConsumeQueueExt"})
    """Whether each entry of a simple consume queue has an extension unit, with room for a bit map
    of the filters that its message passed. Units that Java wrote are read in any case."""
    extension_file_bytes: int = field(
        default=48 * _MIB, metadata={"key": "mappedFileSizeConsumeQueueExt"}
    )
    """The size of a file of extension units in bytes; the files are sparse. A Java broker must be
    configured with the same size."""
    fill_segments_ahead: bool = field(default=True, metadata={"key": "warmMapedFileEnable"})
    """Whether, with SYNC_FLUSH, zeros are written ahead of the records while syncs are small (up to
    64 KiB), half a MiB at a time. A sync then seldom waits for the file system's journal: about a
    tenth more sends on ext4, for twice the bytes written to the device. Has no benefit on file
    systems that never overwrite in place (ZFS, Btrfs). Java's option fills whole files and is false
    by default."""
    append_property_crc: bool = field(default=True, metadata={"key": "enabledAppendPropCRC"})
    """Whether each record ends with a checksum of the whole record (property `__CRC32#`, 20 bytes)
    in addition to the checksum of its body. It costs about 1 us a message. Java's default is false;
    Java reads records with and without it."""
    message_index_enable: bool = field(default=True, metadata={"key": "messageIndexEnable"})
    """Whether messages are indexed by key, unique id and tag. It costs about 3 us a message."""
    index_slots: int = field(default=250_000, metadata={"key": "maxHashSlotNum"})
    """Slots of one key index file, 4 bytes each; those of the newest file are held in memory. Fixed
    when a store is created, like `index_entries`; Java's default is 5,000,000."""
    index_entries: int = field(default=1_000_000, metadata={"key": "maxIndexNum"})
    """Entries of one key index file, 20 bytes each: one for each key of each message. Java's
    default is 20,000,000. The files are sparse."""
    free_bytes_min: int = 0
    """Sends are refused while the file system has fewer free bytes. 0 means the size of two commit
    log files, but at least 512 MiB."""
    queue_tail_bytes_max: int = 64 * 1024
    """Bytes of entries of one consume queue that are buffered in memory until the next flush. A
    longer buffer is written at once. Entries lost in a crash are rebuilt from the commit log."""
    queue_sync_interval_ms: int = field(
        default=10_000, metadata={"key": "flushConsumeQueueThoroughInterval"}
    )
    """How often consume queues are synced. Recovery scans the log written since the last such sync,
    about 3 us a message. Java's default is 60 seconds."""
    queue_files_per_sync: int = 8
    """Consume queue files in one such sync, in addition to those of the log."""
    scan_bytes_max: int = field(default=16_000, metadata={"key": "maxFilterMessageSize"})
    """Consume queue bytes that one read examines for messages that pass the filter."""
    resident_bytes: int = 0
    """Bytes before the log's end that count as in memory; for reads of older messages the two
    limits below apply. 0: the whole log counts as in memory."""
    believed_bytes: int = 0
    """Bytes before the log's end that count as still in memory since this process wrote them, so
    that reads do not verify their checksums. The same number of bytes is trusted after a
    verification. 0 means 256 MiB; `kourou serve` uses a sixteenth of the machine's memory."""
    cold_get_bytes_max: int = field(
        default=64 * 1024, metadata={"key": "maxTransferBytesOnMessageInDisk"}
    )
    """The most bytes of one read of older messages; a single larger message is still returned."""
    cold_get_messages_max: int = field(
        default=8, metadata={"key": "maxTransferCountOnMessageInDisk"}
    )
    """The most messages of one read of older messages."""
    delay_levels_ms: tuple[int, ...] = DELAY_LEVELS_MS
    """The delay of each level, level 1 first. The queue entry of a delayed message holds its due
    time."""
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    """How long messages are kept."""

    def __post_init__(self) -> None:
        for name, minimum in (
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
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {minimum}")
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
        """Bytes that must be free on the file system for the store to accept messages."""
        return self.free_bytes_min or max(2 * self.commitlog_segment_bytes, _FREE_BYTES_MIN)
