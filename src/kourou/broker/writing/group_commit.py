"""Group commit: the order in which a message is written, synced, made visible and acknowledged.

`put` appends to the commit log in memory and returns. `_advance` runs the further steps for all
messages that are ready for them, once a turn of the event loop and again when a sync ends:

    step      effect                                      after a crash, the message
    append    assigns log position and queue offset       is lost
    write     one pwritev for all appends of the turn     survives kill -9; a power cut may lose it
    sync      one fdatasync for all written meanwhile     survives
    dispatch  adds the queue entry: visible to consumers  survives; recovery rebuilds the entry
    wake      answers the pulls held for the queue        survives
    reply     answers the producer with SEND_OK           survives

With `wait_for_copies`, puts of clients are answered only when slaves have the records too
(`copy_waits.py`). These get records that are synced; in controller mode records that are written,
so that master and slaves sync at the same time. There records are also dispatched only up to the
confirm offset: what all members of the in-sync set have, so that consumers see nothing that a
failover could remove. Puts of the broker itself then wait for it too: what follows from them, such
as the answer to an acknowledgement or a check of a transaction, must not be undone by a failover
either.

With ASYNC_FLUSH the chain does not contain the sync, which follows within `flush_interval_ms`; at
once while slaves wait for records that are synced.

After a failed sync no later sync counts as success, because the kernel may have dropped the pages
that it could not write: the store becomes read-only, and all pending puts are refused.

Source: CommitLog.handleDiskFlush and its GroupCommitService, apache/rocketmq 5.5.0, for the
behaviour that producers observe. Unlike in Java, in sync mode consumers see no message that a power
cut could still lose.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.writing.copy_waits import CopyRule, CopyWaits
from kourou.broker.writing.flusher import Flusher
from kourou.broker.writing.put import Done, PendingPuts, PutResult, PutStatus, PutWaiter, Waiter
from kourou.broker.writing.queue_syncs import QueueSyncs
from kourou.errors import InvalidMessageError, StoreError, TopicRefusedError
from kourou.protocol.record.encode import RecordDraft, record_size
from kourou.store.message_store import (
    Arrival,
    FollowedDeletion,
    MessageStore,
    SyncPlan,
    TopicDeletion,
)

__all__ = ["Done", "GroupCommit", "PutResult", "PutStatus"]

log = logging.getLogger(__name__)


class GroupCommit:
    """Stores messages, and reports when they are as durable as the flush mode promises.

    Everything runs on the event loop, except the syncs, which the flusher runs.

    Attributes:
        on_write: called after each write to the log.
        on_written: called after each write, when its sync has begun, if that follows at once.
        on_synced: called after each sync of the log.
        on_dispatched: called when records have become visible, and their puts are answered.
        is_sync_mode: whether the flush mode is SYNC_FLUSH: a put that waits for its sync is stored
            only when it is synced.
        copies: the number of brokers that have the records of a put that waited for copies, if no
            election can lose them; else 1. Valid while the put is answered.
        has_slaves: returns whether a slave waits until the next records are synced: then they are
            synced at once.
        confirmed_position: in controller mode, returns the position up to which records that are
            stored here up to its argument may be dispatched.
    """

    def __init__(
        self,
        store: MessageStore,
        flusher: Flusher,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        on_arrivals: Callable[[list[Arrival]], None],
    ) -> None:
        """Create the group commit of `store`.

        Args:
            store: no other component may append to it, write, sync or dispatch.
            flusher: runs the syncs, one at a time.
            loop: the event loop.
            config: the flush mode, its times, and the limits.
            on_arrivals: called with the messages that became visible to consumers, oldest first.
        """
        self._reader = store.reader
        self._writer = store.writer
        self._flusher = flusher
        self._loop = loop
        self._config = config
        self._on_arrivals = on_arrivals
        self.is_sync_mode = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._pending = PendingPuts(config)
        # A put moves from the first of these to the second, and to the third if it is late.
        self._unwritten: list[Waiter] = []
        self._unsynced: deque[Waiter] = deque()
        self._late: deque[Waiter] = deque()
        self._plan: SyncPlan | None = None  # of the running sync
        self._idle = asyncio.Event()  # set while no sync runs
        self._idle.set()
        self._queue_syncs = QueueSyncs(store.writer, flusher, loop, self._fail)
        self._copies: CopyWaits | None = None
        self._timer: asyncio.TimerHandle | None = None  # next time-out; next sync in async mode
        self._is_scheduled = False
        self._before_write: list[Callable[[], None]] = []
        self._refusal: PutResult | None = None  # the answer to all new puts
        self._is_closed = False
        self._late_reason = f"the sync did not end within {config.sync_flush_timeout_ms} ms"
        self.on_write: Callable[[], None] | None = None
        self.on_written: Callable[[], None] | None = None
        self.on_synced: Callable[[], None] | None = None
        self.on_dispatched: Callable[[], None] | None = None
        self.has_slaves: Callable[[], bool] = lambda: False
        self.copies = 1
        self.confirmed_position: Callable[[int], int] | None = None

    def wait_for_copies(self, rule: CopyRule) -> None:
        """Answer puts of clients only when slaves have their records; call it before any put."""
        self._copies = CopyWaits(
            rule, self._pending, self._loop, self._config.sync_flush_timeout_ms
        )

    def on_copied(self) -> None:
        """Answer the puts that wait for copies and have them now."""
        if self.confirmed_position is not None:
            self._schedule()  # what is confirmed now becomes visible before its puts are answered
        elif self._copies is not None:
            self._copies.advance(self.stored_position)

    def refuse_puts(self, refusal: PutResult | None) -> None:
        """Answer all new puts with `refusal` from now on; None accepts them again."""
        if not self._is_closed:
            self._refusal = refusal

    @property
    def stored_position(self) -> int:
        """End of the records that are as durable as the flush mode promises."""
        reader = self._reader
        return reader.synced_position if self.is_sync_mode else reader.written_position

    @property
    def is_read_only(self) -> bool:
        """Whether a write or sync has failed since the store was opened."""
        return self._writer.read_only_reason is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet synced (with ASYNC_FLUSH: not yet written)."""
        return self._pending.size

    @property
    def pending_puts(self) -> tuple[int, int]:
        """Number of puts that are not answered yet, and its limit."""
        return len(self._pending), self._config.pending_requests_max

    def put(
        self,
        drafts: Sequence[RecordDraft],
        now_ms: int,
        done: Done,
        *,
        owner: Hashable | None = None,
        wait_for_sync: bool = True,
        wait_for_copies: bool = False,
        answers_late: bool = True,
    ) -> None:
        """Append `drafts`, all or none of them, and call `done` exactly once.

        If the put is refused, `done` is called before `put` returns. Otherwise it is called in a
        later turn of the loop, in the order of the log. With ASYNC_FLUSH it is called once the
        records are written.

        Args:
            drafts: one message, or the messages of a batch, which get consecutive positions.
            now_ms: the store time of all of them.
            done: called with the result.
            owner: the producer's connection, which has a limit of its own besides the common one;
                None for records that the broker itself stores.
            wait_for_sync: False calls `done` once the records are written, even in sync mode;
                consumers still see them only when they are synced.
            wait_for_copies: whether `done` is called only when slaves have the records too, or with
                FLUSH_SLAVE_TIMEOUT, if the broker is configured so.
            answers_late: False never calls `done` with FLUSH_DISK_TIMEOUT: if the sync takes too
                long, it is called when that ends. For records whose outcome must be known.
        """
        waiter = PutWaiter(
            done=done,
            owner=owner,
            waits_for_sync=wait_for_sync and self.is_sync_mode,
            deadline_s=self.deadline_s(),
            answers_late=answers_late,
            waits_for_copies=wait_for_copies,
        )
        refusal = self._append(waiter, drafts, now_ms)
        if refusal is not None:
            waiter.answer(refusal)
            return
        self.commit_appended(waiter)

    def commit_appended(self, waiter: Waiter) -> None:
        """Write the records that were just appended, and report their result to `waiter`.

        The result is reported in a later turn of the loop, in the order of the log.
        """
        self._pending.add(waiter)
        self._unwritten.append(waiter)
        self._schedule()

    def call_before_write(self, append: Callable[[], None]) -> None:
        """Call `append` once, at the end of this turn of the loop, just before the write.

        It is not called if the broker is killed before that.
        """
        self._before_write.append(append)
        self._schedule()

    def has_room(self, owner: Hashable, size: int, puts: int) -> bool:
        """Return whether `puts` more puts of the owner, of `size` bytes in total, are accepted."""
        return self._refusal is None and self._pending.has_room(owner, size, puts)

    def has_room_for_any(self, size: int, puts: int) -> bool:
        """Return whether these puts are accepted whatever their owners.

        False near a limit, where the result depends on the owners: then use `has_room`.
        """
        return self._refusal is None and self._pending.has_room_for_any(size, puts)

    def deadline_s(self) -> float:
        """Return the time, on the loop's clock, at which a put that starts now times out."""
        return self._loop.time() + self._config.sync_flush_timeout_ms / 1000

    def late_result(self) -> PutResult | None:
        """Return the current result of a put that was answered late; None if it is stored by now.

        FLUSH_DISK_TIMEOUT while the sync of any late put has not ended, SERVICE_NOT_AVAILABLE in
        sync mode if the store is read-only.
        """
        if self._late:
            return PutResult(PutStatus.FLUSH_DISK_TIMEOUT, reason=self._late_reason)
        if self.is_sync_mode and self._writer.read_only_reason is not None:
            reason = self._writer.read_only_reason
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
        return None

    async def put_and_wait(
        self,
        drafts: Sequence[RecordDraft],
        now_ms: int,
        *,
        answers_late: bool = True,
        wait_for_copies: bool = False,
    ) -> PutResult:
        """Append `drafts`, and return the result once they are stored or refused, as `put`.

        Cancelling has no effect on the records, which are stored nevertheless.
        """
        future: asyncio.Future[PutResult] = self._loop.create_future()

        def done(result: PutResult) -> None:
            if not future.done():
                future.set_result(result)

        self.put(drafts, now_ms, done, answers_late=answers_late, wait_for_copies=wait_for_copies)
        return await future

    def dispatch_rest(self) -> None:
        """Dispatch what is not confirmed, after `close`, so that the store can be closed cleanly.

        Nothing may be read any more: the next start decides what is visible.
        """
        if self.confirmed_position is not None:
            self._writer.dispatch(self._reader.written_position)

    def flush(self, now_ms: int) -> bool:
        """Write consume queues and the checkpoint, and start due syncs; called every second.

        Returns:
            False if many queues were new, and another call should follow in some milliseconds.
        """
        is_all = self._writer.flush(now_ms)
        self._start_sync()
        self._queue_syncs.start()
        return is_all

    def begin_deletion(self, topic: str) -> TopicDeletion | None:
        """Refuse messages of the topic from now on, and return the steps of its deletion.

        None if the topic has no queues. Pending appends are written first, so that their puts learn
        of a failed write.

        Raises:
            StoreError: the store is read-only or refuses writes; nothing was changed.
        """
        self._write()
        if self._writer.read_only_reason is not None:
            self._writer.check_writable()
        return self._writer.begin_deletion(topic)

    def followed_deletion(self, topic: str, below: int) -> FollowedDeletion | None:
        """Return the steps of a deletion that the log orders; None if it was followed before.

        Raises:
            StoreError: the store is read-only; nothing was changed.
        """
        if self._writer.read_only_reason is not None:
            self._writer.check_writable()
        return self._writer.followed_deletion(topic, below)

    def drain(self) -> None:
        """See `CopyWaits.drain`."""
        if self._copies is not None:
            self._copies.drain()

    async def close(self) -> None:
        """Refuse further messages, and return when all accepted ones are synced and answered.

        The store can be closed then. While the disk does not respond, this does not return.
        """
        self._run_before_write()
        self._refuse_for_ever("the broker is stopping")
        self._end_turn()
        while (
            self._plan is not None or self._reader.synced_position < self._reader.written_position
        ):
            self._start_sync()
            if self._plan is None:
                break  # the store is read-only
            await self._idle.wait()
        self._cancel_timer()
        if self._copies is not None:
            await self._copies.close()
        await self._queue_syncs.close()

    def abandon(self) -> None:
        """Stop like a killed process: write nothing more, and answer no put."""
        self._refuse_for_ever("the broker was killed")
        self._before_write.clear()
        self._unwritten.clear()
        self._unsynced.clear()
        self._late.clear()
        self._plan = None
        self._cancel_timer()
        if self._copies is not None:
            self._copies.abandon()
        self._queue_syncs.abandon()

    def _refuse_for_ever(self, reason: str) -> None:
        self._refusal = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
        self._is_closed = True

    def _end_turn(self) -> None:
        """Advance, at the end of a turn of the loop or of a sync."""
        try:
            if self._before_write:
                self._run_before_write()
            self._is_scheduled = False
            self._advance()
        except Exception as error:  # of any kind: all pending puts must be refused
            log.exception("group_commit.failed")
            self._is_scheduled = False
            self._fail(f"the group commit failed: {error}")

    def _run_before_write(self) -> None:
        """Call the functions that were passed to `call_before_write`."""
        self._is_scheduled = True  # the caller writes after this
        while self._before_write:  # one of them may add another one
            before_write, self._before_write = self._before_write, []
            for append in before_write:
                append()

    def _schedule(self) -> None:
        """Advance at the end of this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end_turn)

    # The guarantees depend on the order in this function: no step may move before the one above it.
    def _advance(self) -> None:
        """Take every accepted message through the steps that the disk allows."""
        has_written = self._write()
        if self.is_sync_mode or self.has_slaves():
            self._start_sync()
        else:
            self._schedule_sync()
        if has_written and self.on_written is not None:
            self.on_written()
        stored = self.stored_position
        visible = stored if self.confirmed_position is None else self.confirmed_position(stored)
        arrivals = self._writer.dispatch(visible)
        if arrivals:
            self._wake(arrivals)
        self._acknowledge(stored, visible)
        if arrivals and self.on_dispatched is not None:
            self.on_dispatched()
        if self._writer.read_only_reason is not None:
            self._refuse_all(self._writer.read_only_reason)

    def _append(
        self, waiter: PutWaiter, drafts: Sequence[RecordDraft], now_ms: int
    ) -> PutResult | None:
        """Append the records, and return None, or the result if they are refused."""
        if self._refusal is not None:
            return self._refusal
        try:
            waiter.size = sum(map(record_size, drafts))
            reason = self._pending.limit_reached(waiter.size, waiter.owner)
            if reason:
                return PutResult(PutStatus.BUSY, reason=reason)
            if len(drafts) == 1:
                waiter.appended = (self._writer.append(drafts[0], now_ms),)
            else:
                waiter.appended = self._writer.append_batch(drafts, now_ms)
        except InvalidMessageError as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        except TopicRefusedError as error:
            return PutResult(PutStatus.TOPIC_REFUSED, reason=str(error))
        except StoreError as error:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(error))
        return None

    def _write(self) -> bool:
        """Write all records appended since the last write, in one call; return whether it did."""
        waiters = self._unwritten
        if not waiters:
            return False
        try:
            self._writer.write()
        except StoreError as error:  # the store has undone these appends
            self._unwritten = []
            for waiter in waiters:
                self._refuse(waiter, str(error))
            return False
        self._unwritten = []  # not earlier: after other errors `_end_turn` must find the puts here
        self._unsynced.extend(waiters)
        self._schedule_expiry()
        if self.on_write is not None:
            self.on_write()
        for waiter in waiters:
            if self.is_sync_mode and not waiter.waits_for_sync:
                waiter.stored()
        return True

    def _start_sync(self) -> None:
        """Sync all written records, unless a sync runs: its end starts the next one."""
        if self._plan is not None or self._writer.read_only_reason is not None:
            return
        self._plan = self._writer.sync_plan()
        if self._plan is None:
            return
        self._idle.clear()
        self._flusher.sync(self._writer, self._plan, self._sync_ended)

    def _sync_ended(self, error: Exception | None) -> None:
        """Advance the synced records, or make the store read-only if the sync failed."""
        plan, self._plan = self._plan, None
        self._idle.set()
        if plan is None:
            return  # abandoned in the meantime
        if error is not None:
            self._fail(f"a sync failed: {error}")
            return
        self._writer.synced(plan)
        if self.on_synced is not None:
            self.on_synced()
        self._end_turn()

    def _wake(self, arrivals: list[Arrival]) -> None:
        """Report new messages to `on_arrivals`, oldest first."""
        try:
            self._on_arrivals(arrivals)
        except Exception:  # a failure on the consumers' side must not affect producers
            log.exception("arrivals.wake_failed count=%d", len(arrivals))

    def _acknowledge(self, stored: int, visible: int) -> None:
        """Answer the puts whose records lie below `stored`, in the order of the log.

        Those that wait for copies are answered later; see `CopyWaits.advance` for `visible`.
        """
        copies = self._copies
        for waiters in (self._late, self._unsynced):
            while waiters and waiters[0].end <= stored:
                waiter = waiters.popleft()
                if copies is not None and (waiter.waits_for_copies or self.confirmed_position):
                    copies.add(waiter)
                else:
                    self._pending.remove(waiter)
                    waiter.stored()
        if copies is not None:
            copies.advance(visible)

    def _fail(self, reason: str) -> None:
        """Make the store read-only until it is reopened, and refuse all pending puts."""
        self._writer.set_read_only(reason)
        self._refuse_all(reason)

    def _refuse_all(self, reason: str) -> None:
        waiters = [*self._late, *self._unsynced, *self._unwritten]
        self._late.clear()
        self._unsynced.clear()
        self._unwritten = []
        self._cancel_timer()
        for waiter in waiters:
            self._refuse(waiter, reason)

    def _refuse(self, waiter: Waiter, reason: str) -> None:
        self._pending.remove(waiter)
        waiter.answer(PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason))

    def _schedule_sync(self) -> None:
        """With ASYNC_FLUSH, schedule the sync of written records within `flush_interval_ms`."""
        if self._timer is None and self._reader.synced_position < self._reader.written_position:
            pause_s = self._config.flush_interval_ms / 1000
            self._timer = self._loop.call_later(pause_s, self._background_sync)

    def _background_sync(self) -> None:
        self._timer = None
        self._start_sync()

    def _schedule_expiry(self) -> None:
        """In sync mode, schedule `_expire` for the deadline of the oldest waiting put."""
        if self._timer is None and self.is_sync_mode and self._unsynced:
            self._timer = self._loop.call_at(self._unsynced[0].deadline_s, self._expire)

    def _expire(self) -> None:
        """Call `late` of the puts that are past their deadline; they still count as pending."""
        self._timer = None
        now_s = self._loop.time()
        while self._unsynced and self._unsynced[0].deadline_s <= now_s:
            waiter = self._unsynced.popleft()
            self._late.append(waiter)
            copies = self._copies
            if copies is not None and waiter.waits_for_copies and copies.is_late(waiter):
                copies.late(waiter)  # as in Java, this hides the late sync
            else:
                waiter.late(PutStatus.FLUSH_DISK_TIMEOUT, self._late_reason)
        self._schedule_expiry()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
