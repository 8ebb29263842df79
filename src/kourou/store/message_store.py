"""The store as the broker sees it: append, write, sync, show; read; recover.

The caller decides when each step is taken. For a record they come in this order:

    step        call                            a crash after it
    append      append, append_batch            nothing of it remains
    write       write                           kept if only the process dies
    sync        sync_plan, run_sync, synced     kept
    dispatch    dispatch                        kept; its queue entry is made again
    flush       flush, every second             kept; recovery starts later in the log

Everything runs on one thread, but for `run_sync` and what `kourou.store.reader` says.

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
from kourou.store.queues.dispatch import Appended, AppendedRun, Arrival
from kourou.store.reading.checked_get import Asked, Found, Mended
from kourou.store.reading.get_plan import GetPlan, GetStatus
from kourou.store.reading.plain_get import PlainFound
from kourou.store.reading.queue_mending import write_mended
from kourou.store.recovery.recovery import Progress, RecoveryReport
from kourou.store.sealed_run import SealedRun
from kourou.store.state.abort_file import note_failed_sync
from kourou.store.sync_plan import SyncPlan
from kourou.store.writer import StoreWriter

__all__ = [
    "Appended",
    "AppendedRun",
    "Arrival",
    "Asked",
    "Found",
    "GetPlan",
    "GetStatus",
    "IndexStep",
    "MessageStore",
    "PlainFound",
    "Progress",
    "RecoveryReport",
    "SealedRun",
    "SyncPlan",
    "TopicDeletion",
]

log = logging.getLogger(__name__)


class MessageStore(StoreWriter):
    """One store directory, open. Made by `open`.

    Attributes:
        recovery: what opening found and did.
        index: of keys; None if none is kept.
        expiry: removes what is too old; whoever runs it asks `read_only_reason` first.
    """

    def __init__(self, files: StoreFiles, config: StoreConfig) -> None:
        super().__init__(files, config)
        self.recovery: RecoveryReport = files.recovery
        self.index: KeyIndex | None = files.index
        self.expiry = Expiry(
            files.disk, files.log, files.queues, lambda: files.checkpoint.value.queues_offset
        )
        self._is_closed = False
        self._flush_target: Appended | None = None  # its entry is written when the round is over

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
        """Open the store on the disk and recover it, or make a new one.

        Args:
            disk: the store's own; nobody else may open it meanwhile.
            config: sizes and limits.
            now_ms: the time.
            pid: of this process, for whoever finds the store in use.
            progress: told now and then how far a recovery is.

        Raises:
            StoreLockedError: somebody has it open.
            StoreConfigError: it was made with other file sizes.
            CorruptRecordError: records that were durable cannot be read; nothing is cut off.
            OSError: a file cannot be read or written.
        """
        return cls(open_files(disk, config, now_ms, pid=pid, progress=progress), config)

    def begin_deletion(self, topic: str) -> TopicDeletion | None:
        """Write what was appended, and refuse messages of the topic from now on.

        Returns:
            Whose further steps delete the topic; None if it has no queue.

        Raises:
            StoreFullError, StoreReadOnlyError: as `write`; nothing was changed.
        """
        self.write()
        if not self._queues.has_topic(topic):
            return None
        deletion = TopicDeletion(self._files, topic, self._pending)
        deletion.refuse()
        return deletion

    def index_step(self, records_max: int = SLICE_MAX) -> IndexStep:
        """Bring the key index up by so many records that are synced at most; waits for nothing.

        IDLE on a store that keeps none, or is read-only. Neither this nor the next two at once.

        Raises:
            OSError: the log cannot be read.
        """
        if self.index is None or self._guard.read_only_reason is not None:
            return IndexStep.IDLE
        return self.index.step(self._log.synced_position, records_max)

    def index_upkeep(self, now_ms: int) -> None:
        """Do what keeps `index_step` back and may wait for the device; on any thread.

        Raises:
            OSError: as `KeyIndex.upkeep`.
        """
        if self.index is not None:
            self.index.upkeep(self._log.synced_position, now_ms)

    def index_save(self) -> None:
        """Make the key index durable as it is; on any thread. The next `flush` says so on disk.

        Raises:
            OSError: as `KeyIndex.save`.
        """
        if self.index is not None:
            self.index.save()

    @property
    def index_lag_bytes(self) -> int:
        """Bytes of the log that the key index has still to follow."""
        return 0 if self.index is None else self.index.lag_bytes(self._log.written_position)

    @property
    def index_feed_fullness(self) -> float:
        """What the index keeps ready of records that it has still to follow, to what it may."""
        return 0.0 if self.index is None else self.index.feed.fullness

    def find_messages(self, query: KeyQuery) -> FoundMessages:
        """Return the newest messages with a key; waits for the device, on any thread.

        Raises:
            OSError: a file of the index cannot be read.
        """
        if self.index is None:
            return FoundMessages([], 0, 0)
        gone_below = self.topic_begin(query.topic)
        query = query._replace(gone_below=max(query.gone_below, gone_below))
        return find_messages(query, self.index, self._log, self._visible_position, self.read_record)

    def mend(self, mended: Sequence[Mended]) -> None:
        """Write queue entries again that a read found to have rotted; raises nothing.

        They are derived data: an entry that a crash takes, or that a read-only store cannot
        write, is found anew by the next read.
        """
        if mended and self._guard.read_only_reason is None:
            self._try_write(partial(write_mended, self._disk, self._queues, mended))

    def topic_begin(self, topic: str) -> int:
        return self._files.state.deleted_topics.get(topic, 0)

    def fill_ahead(self) -> None:
        """Write zeros ahead of the log at times, for the syncs' sake; called after each `write`.

        Raises nothing: a disk without room for them is as full as the next append finds it.
        """
        if self._guard.may_write:
            self._try_write(self._log.fill_ahead)

    def pinned_to_sync(self, plan: SyncPlan) -> PinnedFile | None:
        """Return the plan's one file, for who does in another way what `run_sync` does.

        None if there is more to the plan, or only `run_sync` can do it. Who finds that the sync
        failed calls `note_failed_sync` before anything else.

        Raises:
            OSError: the file could not be opened; `run_sync` then says so.
        """
        if len(plan.files) != 1 or plan.directories or plan.queue_files or plan.queue_directories:
            return None
        return self._disk.pinned(plan.files[0])

    def note_failed_sync(self) -> None:
        """Note for the next start, as `run_sync` does, that a sync failed; raises nothing."""
        note_failed_sync(self._disk)

    def flush(self, now_ms: int) -> bool:
        """Write the queues' tails and the checkpoint, and look at the space left; each second.

        False if there are many queues: call again in some milliseconds for more of them. Raises
        nothing: what fails here makes the store refuse appends.
        """
        if self._guard.read_only_reason is not None:
            return True
        if not self._queues.is_flushing:
            self._flush_target = self._last_visible
        has_rest = False
        if self._flush_queues(self._queues.flush_some):
            has_rest = self._queues.is_flushing
            if not has_rest:
                self._checkpoint.begin_round(self._flush_target, now_ms)
            if self.index is not None:
                self._checkpoint.index_is_durable(self.index.durable_at_ms)
            self._try_write(self._checkpoint.write)
        self._guard.look_at_space()
        return not has_rest

    def close(self, now_ms: int) -> None:
        """Make everything durable and let go of the directory. Calling it again does nothing.

        A read-only store is left as it is: the next start recovers it.

        Raises:
            StoreError: something could not be made durable; the next start recovers.
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
        """Let go of the directory and write nothing, as a kill would."""
        self._is_closed = True
        self._guard.close()
        self._files.unlock()
