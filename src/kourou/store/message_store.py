"""The message store: appends, writes, syncs and dispatches records, reads and recovers them.

The caller decides when each step runs. For a record the order is:

    step        call                            the record after a crash
    append      append, append_batch            lost
    write       write                           survives if only the process dies
    sync        sync_plan, run_sync, synced     survives
    dispatch    dispatch                        survives; recovery rebuilds its queue entry
    flush       flush, every second             survives; recovery starts later in the log

Everything runs on one thread, except `run_sync`, the reads of `reader`, and methods
whose docstring allows any thread.

Source: DefaultMessageStore.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging

from kourou.disk import Disk
from kourou.errors import StoreError
from kourou.store.config import StoreConfig
from kourou.store.deletion import FollowedDeletion, TopicDeletion
from kourou.store.expiry import Expiry
from kourou.store.index.index_feed import SLICE_MAX
from kourou.store.index.key_index import FoundMessages, IndexStep, KeyIndex, KeyQuery, find_messages
from kourou.store.lifecycle import StoreFiles, open_files
from kourou.store.queues.appended import AppendedBatch, AppendedRecord, Arrival
from kourou.store.reader import StoreReader
from kourou.store.reading.fast_get import FastGetResult
from kourou.store.reading.get_plan import GetPlan, GetStatus
from kourou.store.reading.verified_get import GetRequest, GetResult
from kourou.store.recovery.recovery import Progress, RecoveryReport
from kourou.store.replica_writer import ReplicaWriter
from kourou.store.sealed_run import SealedRun
from kourou.store.sync_plan import SyncPlan
from kourou.store.writer import StoreWriter

__all__ = [
    "AppendedBatch",
    "AppendedRecord",
    "Arrival",
    "FastGetResult",
    "FollowedDeletion",
    "GetPlan",
    "GetRequest",
    "GetResult",
    "GetStatus",
    "IndexStep",
    "MessageStore",
    "Progress",
    "RecoveryReport",
    "SealedRun",
    "SyncPlan",
    "TopicDeletion",
]

log = logging.getLogger(__name__)


class MessageStore:
    """One open store directory; created by `open`.

    Attributes:
        files: the open files: log, consume queues, checkpoint, state.
        recovery: the report of the recovery at opening.
        reader: offsets, reads of queues and records; its methods allow any thread.
        writer: append, write, sync, dispatch, flush.
        index: the key index; None if indexing is disabled.
        expiry: removes expired files; its caller must check `writer.read_only_reason` first.
    """

    def __init__(self, files: StoreFiles, config: StoreConfig, *, is_replica: bool = False) -> None:
        self.files = files
        self.recovery: RecoveryReport = files.recovery
        self.reader = StoreReader(files, config)
        self.writer: StoreWriter
        if is_replica:
            self.writer = ReplicaWriter(files, config, self.reader)
        else:
            self.writer = StoreWriter(files, config, self.reader)
        self.index: KeyIndex | None = files.index
        self.expiry = Expiry(
            files.disk, files.log, files.queues, lambda: files.checkpoint.value.queues_offset
        )
        self._is_closed = False

    @classmethod
    def open(
        cls,
        disk: Disk,
        config: StoreConfig,
        now_ms: int,
        *,
        pid: int,
        progress: Progress | None = None,
        is_replica: bool = False,
    ) -> MessageStore:
        """Open the store on the disk and recover it, or create a new one.

        Args:
            disk: the store's directory; only one store may use it.
            config: sizes and limits.
            now_ms: the time.
            pid: of this process; recorded in `abort`.
            progress: called at intervals with the progress of a recovery.
            is_replica: the log is a copy of a master's: `writer` is a `ReplicaWriter`.

        Raises:
            StoreLockedError: the store is already open.
            StoreConfigError: it was created with other file sizes.
            CorruptRecordError: records that were durable cannot be read; nothing is truncated.
            OSError: a file cannot be read or written.
        """
        files = open_files(disk, config, now_ms, pid=pid, progress=progress)
        return cls(files, config, is_replica=is_replica)

    def index_step(self, records_max: int = SLICE_MAX) -> IndexStep:
        """Index at most `records_max` further synced records, without waiting for the device.

        IDLE if indexing is disabled or the store is read-only. `index_step`, `index_upkeep` and
        `index_save` must not run concurrently.

        Raises:
            OSError: the log cannot be read.
        """
        if self.index is None or self.writer.read_only_reason is not None:
            return IndexStep.IDLE
        return self.index.step(self.files.log.synced_position, records_max)

    def index_upkeep(self, now_ms: int) -> None:
        """Do the work that blocks `index_step` and may wait for the device; on any thread.

        Raises:
            OSError: as `KeyIndex.upkeep`.
        """
        if self.index is not None:
            self.index.upkeep(self.files.log.synced_position, now_ms)

    def index_save(self) -> None:
        """Make the key index durable; on any thread. The next `flush` records that on disk.

        Raises:
            OSError: as `KeyIndex.save`.
        """
        if self.index is not None:
            self.index.save()

    @property
    def index_lag_bytes(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return 0 if self.index is None else self.index.lag_bytes(self.files.log.written_position)

    @property
    def index_feed_fullness(self) -> float:
        """The fill level of the index feed, from 0 to 1."""
        return 0.0 if self.index is None else self.index.feed.fullness

    def find_messages(self, query: KeyQuery) -> FoundMessages:
        """Return the newest messages with a key; may wait for the device, on any thread.

        Raises:
            OSError: a file of the index cannot be read.
        """
        if self.index is None:
            return FoundMessages([], 0, 0)
        deleted_below = self.reader.topic_begin(query.topic)
        query = query._replace(deleted_below=max(query.deleted_below, deleted_below))
        return find_messages(
            query,
            self.index,
            self.files.log,
            self.reader.visible_position,
            self.reader.read_record,
        )

    def repair(self, position: int, data: bytes) -> None:
        """Write whole records over damaged bytes of one segment, durably; on any thread.

        Raises:
            OSError: the bytes there are the old ones, the new ones, or mixed.
        """
        segments = self.files.log.segments
        name = segments.name(position)
        self.files.disk.write(name, self.files.log.file_offset(position), [data])
        self.files.disk.sync(name)

    def close(self, now_ms: int) -> None:
        """Make everything durable and release the directory. A second call has no effect.

        A read-only store writes nothing: the next start recovers it.

        Raises:
            StoreError: something could not be made durable; the next start recovers the store.
        """
        if self._is_closed:
            return
        try:
            if self.writer.read_only_reason is None:
                self.writer.close_files(now_ms)
        except OSError as error:
            raise StoreError(f"{self.files.disk.root} was not closed cleanly: {error}") from error
        finally:
            self.abandon()
        log.info(
            "store.closed path=%s end=%d", self.files.disk.root, self.files.log.written_position
        )

    def abandon(self) -> None:
        """Release the directory without writing anything, like a kill."""
        self._is_closed = True
        self.writer.stop()
        self.files.unlock()
