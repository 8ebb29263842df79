"""The message store: appends, writes, syncs and dispatches records, reads and recovers them.

The caller decides when each step runs. For a record the order is:

    step        call                            the record after a crash
    append      append, append_batch            lost
    write       write                           survives if only the process dies
    sync        sync_plan, run_sync, synced     survives
    dispatch    dispatch                        survives; recovery rebuilds its queue entry
    flush       flush, every second             survives; recovery starts later in the log

Everything runs on one thread, except `run_sync`, the reads of `kourou.store.reader`, and methods
whose docstring allows any thread.

Source: DefaultMessageStore.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from kourou.disk import Disk
from kourou.errors import StoreError
from kourou.open_files import PinnedFile
from kourou.store.config import StoreConfig
from kourou.store.deletion import TopicDeletion
from kourou.store.expiry import Expiry
from kourou.store.index.index_feed import SLICE_MAX
from kourou.store.index.index_query import FoundMessages, KeyQuery, find_messages
from kourou.store.index.key_index import IndexStep, KeyIndex
from kourou.store.lifecycle import StoreFiles, close_files, open_files
from kourou.store.queues.dispatch import AppendedBatch, AppendedRecord, Arrival
from kourou.store.reading.fast_get import FastGetResult
from kourou.store.reading.get_plan import GetPlan, GetStatus
from kourou.store.reading.repaired_entries import write_entries
from kourou.store.reading.verified_get import GetRequest, GetResult, RepairedEntry
from kourou.store.recovery.recovery import Progress, RecoveryReport
from kourou.store.sealed_run import SealedRun
from kourou.store.state.abort_file import note_failed_sync
from kourou.store.sync_plan import SyncPlan
from kourou.store.writer import StoreWriter

__all__ = [
    "AppendedBatch",
    "AppendedRecord",
    "Arrival",
    "FastGetResult",
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


class MessageStore(StoreWriter):
    """One open store directory; created by `open`.

    Attributes:
        recovery: the report of the recovery at opening.
        index: the key index; None if indexing is disabled.
        expiry: removes expired files; its caller must check `read_only_reason` first.
    """

    def __init__(self, files: StoreFiles, config: StoreConfig) -> None:
        super().__init__(files, config)
        self.recovery: RecoveryReport = files.recovery
        self.index: KeyIndex | None = files.index
        self.expiry = Expiry(
            files.disk, files.log, files.queues, lambda: files.checkpoint.value.queues_offset
        )
        self._is_closed = False
        # The last visible record at the start of the flush round: the round writes its entry.
        self._flush_target: AppendedRecord | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        config: StoreConfig,
        now_ms: int,
        *,
        pid: int,
        progress: Progress | None = None,
    ) -> MessageStore:
        """Open the store on the disk and recover it, or create a new one.

        Args:
            disk: the store's directory; only one store may use it.
            config: sizes and limits.
            now_ms: the time.
            pid: of this process; recorded in `abort`.
            progress: called at intervals with the progress of a recovery.

        Raises:
            StoreLockedError: the store is already open.
            StoreConfigError: it was created with other file sizes.
            CorruptRecordError: records that were durable cannot be read; nothing is truncated.
            OSError: a file cannot be read or written.
        """
        return cls(open_files(disk, config, now_ms, pid=pid, progress=progress), config)

    def begin_deletion(self, topic: str) -> TopicDeletion | None:
        """Write all appended records, and refuse messages of the topic from now on.

        Returns:
            The deletion, whose remaining steps the caller runs; None if the topic has no queue.

        Raises:
            StoreFullError, StoreReadOnlyError: as `write`; the topic is not refused.
        """
        self.write()
        if not self._queues.has_topic(topic):
            return None
        deletion = TopicDeletion(self._files, topic, self._pending)
        deletion.refuse()
        return deletion

    def index_step(self, records_max: int = SLICE_MAX) -> IndexStep:
        """Index at most `records_max` further synced records, without waiting for the device.

        IDLE if indexing is disabled or the store is read-only. `index_step`, `index_upkeep` and
        `index_save` must not run concurrently.

        Raises:
            OSError: the log cannot be read.
        """
        if self.index is None or self._guard.read_only_reason is not None:
            return IndexStep.IDLE
        return self.index.step(self._log.synced_position, records_max)

    def index_upkeep(self, now_ms: int) -> None:
        """Do the work that blocks `index_step` and may wait for the device; on any thread.

        Raises:
            OSError: as `KeyIndex.upkeep`.
        """
        if self.index is not None:
            self.index.upkeep(self._log.synced_position, now_ms)

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
        return 0 if self.index is None else self.index.lag_bytes(self._log.written_position)

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
        deleted_below = self.topic_begin(query.topic)
        query = query._replace(deleted_below=max(query.deleted_below, deleted_below))
        return find_messages(query, self.index, self._log, self._visible_position, self.read_record)

    def write_repaired(self, repaired: Sequence[RepairedEntry]) -> None:
        """Write the queue entries that a read repaired; raises nothing.

        They are derived data: an entry that a crash loses, or that a read-only store cannot
        write, is repaired again by the next read.
        """
        if repaired and self._guard.read_only_reason is None:
            self._try_write(partial(write_entries, self._disk, self._queues, repaired))

    def topic_begin(self, topic: str) -> int:
        return self._files.state.deleted_topics.get(topic, 0)

    def fill_ahead(self) -> None:
        """Write zeros ahead of the log if due, to speed up syncs; called after each `write`.

        Raises nothing: if the disk is full, the next append reports it.
        """
        if self._guard.may_write:
            self._try_write(self._log.fill_ahead)

    def pinned_sync_file(self, plan: SyncPlan) -> PinnedFile | None:
        """Return the plan's only file, for a caller that syncs it by other means than `run_sync`.

        None if the plan has more than one file, or only `run_sync` can sync it. If the sync fails,
        the caller must call `note_failed_sync` before anything else.

        Raises:
            OSError: the file could not be opened; `run_sync` then raises as well.
        """
        if len(plan.files) != 1 or plan.directories or plan.queue_files or plan.queue_directories:
            return None
        return self._disk.pin(plan.files[0])

    def note_failed_sync(self) -> None:
        """Record in `abort` that a sync failed, like `run_sync`; raises nothing."""
        note_failed_sync(self._disk)

    def flush(self, now_ms: int) -> bool:
        """Write the queues' tails and the checkpoint, and check the free space; called each second.

        False if more queues remain to be written: call again after some milliseconds. Raises
        nothing: after a failure the store refuses appends.
        """
        if self._guard.read_only_reason is not None:
            return True
        if not self._queues.is_flushing:
            self._flush_target = self._last_visible
        is_unfinished = False
        if self._flush_queues(self._queues.flush_some):
            is_unfinished = self._queues.is_flushing
            if not is_unfinished:
                self._checkpoint.begin_round(self._flush_target, now_ms)
            if self.index is not None:
                self._checkpoint.set_index_durable(self.index.durable_at_ms)
            self._try_write(self._checkpoint.write)
        self._guard.check_space()
        return not is_unfinished

    def close(self, now_ms: int) -> None:
        """Make everything durable and release the directory. A second call has no effect.

        A read-only store writes nothing: the next start recovers it.

        Raises:
            StoreError: something could not be made durable; the next start recovers the store.
        """
        if self._is_closed:
            return
        try:
            if self.read_only_reason is None:
                self._close_files(now_ms)
        except OSError as error:
            raise StoreError(f"{self._disk.root} was not closed cleanly: {error}") from error
        finally:
            self.abandon()
        log.info("store.closed path=%s end=%d", self._disk.root, self.written_position)

    def _close_files(self, now_ms: int) -> None:
        self.write()
        plan = self.sync_plan()
        if plan is not None:
            self.run_sync(plan)
            self.synced(plan)
        self.dispatch(self.written_position)
        close_files(self._files, self._last_visible, now_ms)

    def abandon(self) -> None:
        """Release the directory without writing anything, like a kill."""
        self._is_closed = True
        self._guard.close()
        self._files.unlock()
