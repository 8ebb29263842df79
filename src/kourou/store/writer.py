"""The write operations of a store: append, write, sync, dispatch. All run on the store's thread.

The caller decides when each step runs; `kourou.store.message_store` describes the order.

Source: CommitLog.asyncPutMessage and DefaultMessageStore.ReputMessageService, apache/rocketmq
5.5.0.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kourou.errors import InvalidMessageError, StoreError, StoreReadOnlyError
from kourou.model.sysflag import INNER_BATCH
from kourou.open_files import PinnedFile
from kourou.protocol.record.encode import (
    RecordDraft,
    encode_record,
    encode_sealed,
    record_size,
    sealed_size,
    unsealed,
)
from kourou.protocol.record.keys import is_visible, message_count, queue_tags_code
from kourou.store.config import StoreConfig
from kourou.store.deletion import FollowedDeletion, Pending, TopicDeletion
from kourou.store.index.index_feed import IndexFeed
from kourou.store.lifecycle import StoreFiles, close_files
from kourou.store.queues.appended import AppendedBatch, AppendedRecord, Arrival
from kourou.store.queues.batch_queue import with_base
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.extended_queue import BitMapOf
from kourou.store.reader import StoreReader
from kourou.store.reading.queue_repair import RepairedEntry, write_entries
from kourou.store.sealed_run import SealedRun
from kourou.store.state.abort_file import note_failed_sync
from kourou.store.sync_plan import SyncPlan
from kourou.store.write_guard import WriteGuard

_OUT_OF_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class StoreWriter:
    """The write operations of an open store; `MessageStore.writer`."""

    def __init__(self, files: StoreFiles, config: StoreConfig, reader: StoreReader) -> None:
        self._reader = reader
        self._config = config
        self._files = files
        self._log = files.log
        self._queues = files.queues
        self._disk = files.disk
        self._checkpoint = files.checkpoint
        self._encode = encode_sealed if config.append_property_crc else encode_record
        self._size = sealed_size if config.append_property_crc else record_size
        self._delay_levels_ms = config.delay_levels_ms
        self._guard = WriteGuard(files.disk, config.free_bytes_needed)
        self._guard.check_space()
        # Records appended but not dispatched yet.
        self._pending: Pending = deque()
        self._feed = IndexFeed(0) if files.index is None else files.index.feed
        self._run = SealedRun(self._queues.by_key, self._pending, self._feed)
        self._last_visible = files.recovery.last
        self._last_store_at_ms = max(
            files.recovery.last_store_at_ms, files.checkpoint.value.log_at_ms
        )
        self._written_store_at_ms = self._last_store_at_ms
        # The last visible record at the start of the flush round: the round writes its entry.
        self._flush_target: AppendedRecord | None = None

    @property
    def appended_position(self) -> int:
        """The lowest byte of the log at which the next record can begin."""
        return self._log.appended_position

    @property
    def last_store_at_ms(self) -> int:
        """The store time of the last message, the minimum for the next one; 0 in an empty store."""
        return self._last_store_at_ms

    def set_kind_lookup(self, has_batches: Callable[[str], bool]) -> None:
        """Set the function that tells whether a new topic has batch queues.

        Before this call the store uses `config/topics.json` and the queues' files as they were at
        the start.
        """
        self._queues.set_kind_lookup(has_batches)

    def set_bit_map_function(self, bit_map_of: BitMapOf) -> None:
        """Set the function that computes bit maps of extension units; see `kourou.filter.bloom`."""
        self._queues.bit_map_of = bit_map_of

    def append(self, draft: RecordDraft, now_ms: int) -> AppendedRecord:
        """Append the message to the log and assign its queue offset, in memory.

        Its store time is `now_ms`, but never earlier than that of the preceding record.

        Raises:
            InvalidMessageError: it exceeds a limit of the record layout, or is an inner batch and
                its topic has no batch queues.
            StoreFullError: too little free space is left.
            StoreReadOnlyError: an earlier write or sync failed.
            TopicRefusedError: its topic is being deleted.
            ClosedError: the store is closed.
        """
        if not self._guard.may_write:
            self._guard.check()
        draft = unsealed(draft)
        if draft.sys_flag & INNER_BATCH:
            draft = with_base(draft, self._queues.for_append(draft.topic, draft.queue_id))
        return self._append(
            draft, self._log.position_for(self._size(draft)), self._store_time(now_ms)
        )

    def append_batch(self, drafts: Sequence[RecordDraft], now_ms: int) -> list[AppendedRecord]:
        """Append all messages or none, one after another, in one segment of the log.

        Raises:
            InvalidMessageError: a message exceeds a limit or is an inner batch, or the messages
                together do not fit into a segment.
            StoreError, ClosedError: as `append`.
        """
        self._guard.check()
        drafts = [unsealed(draft) for draft in drafts]
        if any(draft.sys_flag & INNER_BATCH for draft in drafts):
            raise InvalidMessageError("an inner batch cannot be part of a batch")
        position = self._log.position_for(sum(map(self._size, drafts)))
        store_at_ms = self._store_time(now_ms)
        mark = self._log.mark()
        appended: list[AppendedRecord] = []
        try:
            for draft in drafts:
                appended.append(self._append(draft, position, store_at_ms))
                position = appended[-1].end
        except (InvalidMessageError, StoreError):
            self._log.roll_back(mark)
            self._drop_appends(mark.position)
            raise
        return appended

    def _append(self, draft: RecordDraft, position: int, store_at_ms: int) -> AppendedRecord:
        """Encode and append the record; on an error nothing has changed."""
        queue = self._queues.for_append(draft.topic, draft.queue_id)
        is_shown = is_visible(draft.sys_flag)
        queue_offset = queue.next_offset if is_shown else 0
        record = self._encode(draft, queue_offset, position, store_at_ms)
        self._log.add(position, record)
        self._last_store_at_ms = store_at_ms
        code = queue_tags_code(draft.topic, draft.properties, store_at_ms, self._delay_levels_ms)
        count = 1
        if draft.sys_flag & INNER_BATCH:
            count = message_count(draft.sys_flag, draft.properties)
        appended = AppendedRecord(
            position,
            queue_offset,
            len(record),
            queue.topic,
            queue.queue_id,
            code,
            store_at_ms,
            count,
        )
        if is_shown:
            queue.next_offset = queue_offset + count
            self._pending.append((queue, appended))
        else:
            self._pending.append((None, appended))
        return appended

    def begin_run(self, now_ms: int) -> SealedRun | None:
        """Return a run for appends of encoded records; `end_run` completes it.

        Used by the fast path, which thereby avoids a call for each record. Between the two calls
        the store must not be used otherwise. None if the store refuses messages or does not seal
        records.
        """
        if not (self._guard.may_write and self._config.append_property_crc):
            return None
        run = self._run
        run.position = self._log.appended_position
        run.limit, run.buffers = self._log.begin_run()
        run.store_at_ms = self._store_time(now_ms)
        run.keyed = self._feed.begin_run()
        return run

    def end_run(self, run: SealedRun) -> None:
        """Complete the run: accept its records as appended."""
        if run.position != self._log.appended_position:
            self._log.end_run(run.position)
            self._last_store_at_ms = run.store_at_ms

    def _store_time(self, now_ms: int) -> int:
        return max(now_ms, self._last_store_at_ms)

    def write(self) -> int:
        """Write all records appended since the last write, with one call per segment.

        Returns:
            The position up to which the log is now written.

        Raises:
            StoreFullError: the disk is full. These appends are undone and their results are void;
                the store accepts messages again when there is space.
            StoreReadOnlyError: the write failed for another reason, or the store was read-only.
                The appends are undone; the store accepts no more.
        """
        before = self._log.written_position
        if self._log.appended_position == before:
            return before
        if self._guard.read_only_reason is not None:
            self._log.drop_appends()
            self._drop_appends(before)
            self._guard.check()
        try:
            self._log.write()
        except OSError as error:
            self._undo_write(error)
        self._written_store_at_ms = self._last_store_at_ms
        self._guard.count_written(self._log.written_position - before)
        return self._log.written_position

    def _undo_write(self, error: OSError) -> None:
        """Undo a failed write in memory and in the files, and raise the error for the caller."""
        try:
            self._log.undo()
        except OSError as undo_error:
            note_failed_sync(self._disk)
            self.set_read_only(f"a failed write could not be undone: {undo_error}")
        self._drop_appends(self._log.written_position)
        if error.errno not in _OUT_OF_SPACE:
            self.set_read_only(f"a write failed: {error}")
        self._guard.check_space()
        if self._guard.read_only_reason is not None:
            raise StoreReadOnlyError(self._guard.read_only_reason) from error
        raise self._guard.full_error() from error

    def _drop_appends(self, position: int) -> None:
        """Drop the pending records at or after the position and free their queue offsets."""
        self._feed.drop_from(position)
        while self._pending and self._pending[-1][1].physical_offset >= position:
            queue, appended = self._pending.pop()
            if queue is not None:
                queue.next_offset = appended.queue_offset

    def sync_plan(self) -> SyncPlan | None:
        """Return the plan that makes all written records durable; None if they already are.

        The previous plan must have ended.
        """
        position = self._log.written_position
        if position == self._log.synced_position:
            return None
        return SyncPlan(
            position,
            self._written_store_at_ms,
            self._log.unsynced_files(),
            self._log.unsynced_directories(),
        )

    def queue_sync_plan(self) -> SyncPlan | None:
        """Return a plan for a few consume queue files, for the checkpoint; None if none is due.

        It does not cover the log and may run concurrently with a plan for the log. The previous
        queue plan must have ended.
        """
        files, directories = self._checkpoint.take_files()
        if not files:
            return None
        return SyncPlan(self._log.synced_position, 0, (), (), files, directories)

    def run_sync(self, plan: SyncPlan) -> None:
        """Run the plan; on any thread, while the store is in use.

        Raises:
            OSError: some records may never become durable: call `set_read_only`, do not retry.
        """
        try:
            plan.run(self._disk)
        except OSError:
            note_failed_sync(self._disk)  # at once: a kill may come before the error is handled
            raise

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

    def synced(self, plan: SyncPlan) -> None:
        """Record that `run_sync` succeeded. No effect on a read-only store."""
        if self._guard.read_only_reason is None:
            self._log.synced(plan.position)
            self._checkpoint.synced(plan, self._log.synced_position)

    def dispatch(self, until_position: int) -> list[Arrival]:
        """Make the written records that end at or below the position visible to readers.

        The records of an `AppendedBatch` become visible together.

        Returns:
            The records that got a queue entry, oldest first.
        """
        until_position = min(until_position, self._log.written_position)
        by_queue: dict[ConsumeQueue, list[AppendedRecord]] = {}  # one call per queue is faster
        arrivals: list[Arrival] = []
        for queue, record in self._pop_pending(until_position):
            if queue is None:
                continue
            arrivals.append(record)
            if type(record) is AppendedBatch:  # half the time of `isinstance`
                if queue in by_queue:
                    self._queues.put_all(queue, by_queue.pop(queue))
                self._queues.put_batch(queue, record)
            elif queue in by_queue:
                by_queue[queue].append(record)
            else:
                by_queue[queue] = [record]
        for queue, records in by_queue.items():
            self._queues.put_all(queue, records)
        if arrivals:
            self._last_visible = arrivals[-1].last
            self._flush_queues(self._queues.flush_long)
        self._reader.visible_position = max(self._reader.visible_position, until_position)
        return arrivals

    def _pop_pending(self, until_position: int) -> list[tuple[ConsumeQueue | None, Arrival]]:
        """Remove and return the pending records that end at or below the position."""
        pending = self._pending
        if pending and pending[-1][1].end <= until_position:
            popped = list(pending)
            pending.clear()
            return popped
        popped = []
        while pending and pending[0][1].end <= until_position:
            popped.append(pending.popleft())
        return popped

    def set_read_only(self, reason: str) -> None:
        """Refuse messages until the store is reopened; reads still work."""
        self._guard.set_read_only(reason)

    @property
    def read_only_reason(self) -> str | None:
        """The reason why the store is read-only; None if it is not."""
        return self._guard.read_only_reason

    def check_writable(self) -> None:
        """Raise the error that an append would raise.

        Raises:
            StoreFullError: too little free space is left.
            StoreReadOnlyError: an earlier write or sync failed.
            ClosedError: the store is closed.
        """
        self._guard.check()

    @property
    def unwritable_reason(self) -> str:
        """Why an append would be refused; empty if it would not."""
        try:
            self._guard.check()
        except StoreError as error:
            return str(error)
        return ""

    @property
    def master_flushed_offset(self) -> int:
        """The position in the checkpoint up to which the master was said to be durable."""
        return self._checkpoint.value.master_flushed_offset

    def set_master_flushed_offset(self, offset: int) -> None:
        """Let the next `flush` write the position to the checkpoint."""
        self._checkpoint.set_master_flushed(offset)

    def fill_ahead(self) -> None:
        """Write zeros ahead of the log if due, to speed up syncs; called after each `write`.

        Raises nothing: if the disk is full, the next append reports it.
        """
        if self._guard.may_write:
            self._try_write(self._log.fill_ahead)

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
            if self._files.index is not None:
                self._checkpoint.set_index_durable(self._files.index.durable_at_ms)
            self._try_write(self._checkpoint.write)
        self._guard.check_space()
        return not is_unfinished

    def write_repaired(self, repaired: Sequence[RepairedEntry]) -> None:
        """Write the queue entries that a read repaired; raises nothing.

        They are derived data: an entry that a crash loses, or that a read-only store cannot
        write, is repaired again by the next read.
        """
        if repaired and self._guard.read_only_reason is None:
            self._try_write(partial(write_entries, self._disk, self._queues, repaired))

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

    def followed_deletion(self, topic: str, below: int) -> FollowedDeletion | None:
        """Return the deletion of a topic's records below a position; None if it was followed."""
        if below <= self._reader.topic_begin(topic):
            return None
        return FollowedDeletion(self._files, topic, below)

    def close_files(self, now_ms: int) -> None:
        """Make everything durable and close the files.

        Raises:
            StoreError, OSError: something could not be made durable.
        """
        self.write()
        plan = self.sync_plan()
        if plan is not None:
            self.run_sync(plan)
            self.synced(plan)
        self.dispatch(self._log.written_position)
        close_files(self._files, self._last_visible, now_ms)

    def stop(self) -> None:
        """Refuse all further appends: the store is closed."""
        self._guard.close()

    def _flush_queues(self, flush: Callable[[], None]) -> bool:
        error = self._try_write(flush)
        self._guard.queues_flushed(error)
        return error is None

    def _try_write(self, write: Callable[[], None]) -> OSError | None:
        """Write derived data; return the error if that failed."""
        try:
            write()
        except OSError as error:
            if error.errno not in _OUT_OF_SPACE:
                self.set_read_only(f"a write failed: {error}")
            return error
        return None
