"""The writing side of a store: append, write, sync, show. Everything runs on the store's thread.

The caller decides when each step is taken; `kourou.store.message_store` has the order.

Source: CommitLog.asyncPutMessage and DefaultMessageStore.ReputMessageService, apache/rocketmq
5.5.0.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from kourou.errors import InvalidMessageError, StoreError, StoreReadOnlyError
from kourou.model.sysflag import INNER_BATCH
from kourou.protocol.message_layout import RecordDraft, encode_record, record_size
from kourou.store.config import StoreConfig
from kourou.store.deletion import Pending
from kourou.store.index.index_feed import IndexFeed
from kourou.store.lifecycle import StoreFiles
from kourou.store.log.record_seal import encode_sealed, sealed_size, unsealed
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.dispatch import (
    Appended,
    AppendedRun,
    Arrival,
    is_visible,
    message_count,
    queue_tags_code,
)
from kourou.store.queues.extended_queue import BitMapOf
from kourou.store.queues.inner_batch import with_base
from kourou.store.reader import StoreReader
from kourou.store.sealed_run import SealedRun
from kourou.store.state.abort_file import note_failed_sync
from kourou.store.sync_plan import SyncPlan
from kourou.store.write_guard import WriteGuard

_OUT_OF_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class StoreWriter(StoreReader):
    """A store that takes messages; it reads as well."""

    def __init__(self, files: StoreFiles, config: StoreConfig) -> None:
        super().__init__(files.log, files.queues, config)
        self._files = files
        self._disk = files.disk
        self._checkpoint = files.checkpoint
        self._encode = encode_sealed if config.append_property_crc else encode_record
        self._size = sealed_size if config.append_property_crc else record_size
        self._delay_levels_ms = config.delay_levels_ms
        self._guard = WriteGuard(files.disk, config.free_bytes_needed)
        self._guard.look_at_space()
        # Appended and not dispatched yet.
        self._pending: Pending = deque()
        self._feed = IndexFeed(0) if files.index is None else files.index.feed
        self._run = SealedRun(self._queues.by_key, self._pending, self._feed)
        self._last_visible = files.recovery.last
        self._last_store_at_ms = max(
            files.recovery.last_store_at_ms, files.checkpoint.value.log_at_ms
        )
        self._written_store_at_ms = self._last_store_at_ms

    @property
    def appended_position(self) -> int:
        """Where the next record goes, at the earliest."""
        return self._log.appended_position

    @property
    def written_position(self) -> int:
        """Records below are in the files: they survive a kill of this process."""
        return self._log.written_position

    @property
    def last_store_at_ms(self) -> int:
        """The store time of the last message, which the next one is not before; 0 without any."""
        return self._last_store_at_ms

    @property
    def synced_position(self) -> int:
        """Records below are on the device: they survive a power cut."""
        return self._log.synced_position

    def ask_kinds(self, has_batches: Callable[[str], bool]) -> None:
        """From now on ask whether a topic that gets its first message has batch queues.

        Until then that is what `config/topics.json` and the queues' files said at the start.
        """
        self._queues.ask_kinds(has_batches)

    def ask_bit_maps(self, bit_map_of: BitMapOf) -> None:
        """Let extension units that come to be have bit maps; see `kourou.filter.bloom`."""
        self._queues.bit_map_of = bit_map_of

    def append(self, draft: RecordDraft, now_ms: int) -> Appended:
        """Give the message its place in the log and in its queue, in memory.

        Its store time is `now_ms`, but never before the one of the record before it.

        Raises:
            InvalidMessageError: it breaks a limit of the record layout, or is an inner batch and
                its topic's queues are not batch queues.
            StoreFullError: too little space is left.
            StoreReadOnlyError: a write or a sync failed.
            TopicRefusedError: its topic is being deleted.
            ClosedError: the store is closed.
        """
        if not self._guard.may_write:
            self._guard.check()
        draft = unsealed(draft)
        if draft.sys_flag & INNER_BATCH:
            draft = with_base(draft, self._queues.for_append(draft.topic, draft.queue_id))
        return self._append(draft, self._log.place(self._size(draft)), self._store_time(now_ms))

    def append_batch(self, drafts: Sequence[RecordDraft], now_ms: int) -> list[Appended]:
        """Append all messages or none, one after another, in one segment of the log.

        Raises:
            InvalidMessageError: one breaks a limit or is an inner batch, or they do not fit into a
                segment together.
            StoreError, ClosedError: as `append`.
        """
        self._guard.check()
        drafts = [unsealed(draft) for draft in drafts]
        if any(draft.sys_flag & INNER_BATCH for draft in drafts):
            raise InvalidMessageError("an inner batch cannot be a part of a batch")
        position = self._log.place(sum(map(self._size, drafts)))
        store_at_ms = self._store_time(now_ms)
        mark = self._log.mark()
        appended: list[Appended] = []
        try:
            for draft in drafts:
                appended.append(self._append(draft, position, store_at_ms))
                position = appended[-1].end
        except (InvalidMessageError, StoreError):
            self._log.back_to(mark)
            self._forget_appends(mark.position)
            raise
        return appended

    def _append(self, draft: RecordDraft, position: int, store_at_ms: int) -> Appended:
        """Encode the record and take it, or raise and leave everything as it was."""
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
        appended = Appended(
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
        """Return what takes encoded records one after another, until `end_run`.

        For the path of plain sends, which this spares a call a record; nothing else may be done
        with the store between the two. None if the store takes no messages now, or no seals.
        """
        if not (self._guard.may_write and self._config.append_property_crc):
            return None
        run = self._run
        run.position = self._log.appended_position
        run.limit, run.buffers = self._log.run()
        run.store_at_ms = self._store_time(now_ms)
        run.keyed = self._feed.begin_run()
        return run

    def end_run(self, run: SealedRun) -> None:
        """Take over what the run was given."""
        if run.position != self._log.appended_position:
            self._log.end_run(run.position)
            self._last_store_at_ms = run.store_at_ms

    def _store_time(self, now_ms: int) -> int:
        return max(now_ms, self._last_store_at_ms)

    def write(self) -> int:
        """Write all that was appended since the last write: one call for each segment touched.

        Returns:
            The position up to which the log is written now.

        Raises:
            StoreFullError: the disk is full. These appends are undone, their results void; the
                store takes messages again when there is space.
            StoreReadOnlyError: the write failed otherwise, or the store was read-only. The
                appends are undone; the store takes no more.
        """
        before = self._log.written_position
        if self._log.appended_position == before:
            return before
        if self._guard.read_only_reason is not None:
            self._log.drop_appends()
            self._forget_appends(before)
            self._guard.check()
        try:
            self._log.write()
        except OSError as error:
            self._undo_write(error)
        self._written_store_at_ms = self._last_store_at_ms
        self._guard.wrote(self._log.written_position - before)
        return self._log.written_position

    def _undo_write(self, error: OSError) -> None:
        """Take back what a failed write may have left, and raise what the caller is told."""
        try:
            self._log.undo()
        except OSError as undo_error:
            note_failed_sync(self._disk)
            self.set_read_only(f"a failed write could not be undone: {undo_error}")
        self._forget_appends(self._log.written_position)
        if error.errno not in _OUT_OF_SPACE:
            self.set_read_only(f"a write failed: {error}")
        self._guard.look_at_space()
        if self._guard.read_only_reason is not None:
            raise StoreReadOnlyError(self._guard.read_only_reason) from error
        raise self._guard.full_error() from error

    def _forget_appends(self, position: int) -> None:
        """Give back the queue offsets of all records at or behind the position."""
        self._feed.drop_from(position)
        while self._pending and self._pending[-1][1].physical_offset >= position:
            queue, appended = self._pending.pop()
            if queue is not None:
                queue.next_offset = appended.queue_offset

    def sync_plan(self) -> SyncPlan | None:
        """Return what to sync so that all written records are durable; None if they are.

        The plan before must have ended.
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
        """Return a few consume queue files to sync, for the checkpoint; None if none waits.

        It says nothing of the log, and may be run beside a plan of that; the one before must have
        ended.
        """
        files, directories = self._checkpoint.take_files()
        if not files:
            return None
        return SyncPlan(self._log.synced_position, 0, (), (), files, directories)

    def run_sync(self, plan: SyncPlan) -> None:
        """Do what the plan says; on any thread, while the store goes on.

        Raises:
            OSError: some records may never become durable: `set_read_only`, and do not try again.
        """
        try:
            plan.run(self._disk)
        except OSError:
            note_failed_sync(self._disk)  # at once: a kill may come before anybody is told
            raise

    def synced(self, plan: SyncPlan) -> None:
        """Note that `run_sync` returned. Without effect on a store that is read-only."""
        if self._guard.read_only_reason is None:
            self._log.synced(plan.position)
            self._checkpoint.synced(plan, self._log.synced_position)

    def dispatch(self, until_position: int) -> list[Arrival]:
        """Show the written records that end at or below the position to readers of the queues.

        Those of an `AppendedRun` only together.

        Returns:
            Those that got an entry, oldest first.
        """
        until_position = min(until_position, self._log.written_position)
        by_queue: dict[ConsumeQueue, list[Appended]] = {}  # what is done once a queue is spared
        arrivals: list[Arrival] = []
        for queue, record in self._take_pending(until_position):
            if queue is None:
                continue
            arrivals.append(record)
            if type(record) is AppendedRun:  # half the time of `isinstance`
                if queue in by_queue:
                    self._queues.put_all(queue, by_queue.pop(queue))
                self._queues.put_run(queue, record)
            elif queue in by_queue:
                by_queue[queue].append(record)
            else:
                by_queue[queue] = [record]
        for queue, records in by_queue.items():
            self._queues.put_all(queue, records)
        if arrivals:
            self._last_visible = arrivals[-1].last
            self._flush_queues(self._queues.flush_long)
        self._visible_position = max(self._visible_position, until_position)
        return arrivals

    def _take_pending(self, until_position: int) -> list[tuple[ConsumeQueue | None, Arrival]]:
        """Take out the records that end at or below the position."""
        pending = self._pending
        if pending and pending[-1][1].end <= until_position:
            taken = list(pending)
            pending.clear()
            return taken
        taken = []
        while pending and pending[0][1].end <= until_position:
            taken.append(pending.popleft())
        return taken

    def set_read_only(self, reason: str) -> None:
        """Take no more messages until the store is opened anew; reads go on."""
        self._guard.set_read_only(reason)

    @property
    def read_only_reason(self) -> str | None:
        """Why the store takes no messages; None if it does."""
        return self._guard.read_only_reason

    def check_writable(self) -> None:
        """Raise what an append would.

        Raises:
            StoreFullError: too little space is left.
            StoreReadOnlyError: a write or a sync failed.
            ClosedError: the store is closed.
        """
        self._guard.check()

    def _flush_queues(self, flush: Callable[[], None]) -> bool:
        error = self._try_write(flush)
        self._guard.queues_flushed(error)
        return error is None

    def _try_write(self, write: Callable[[], None]) -> OSError | None:
        """Write derived data; return why that failed, if it did."""
        try:
            write()
        except OSError as error:
            if error.errno not in _OUT_OF_SPACE:
                self.set_read_only(f"a write failed: {error}")
            return error
        return None
