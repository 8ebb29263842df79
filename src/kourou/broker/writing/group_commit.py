"""Group commit: the order in which a message is written, synced, shown and acknowledged.

`put` appends to the commit log in memory and returns. What follows happens in `_advance`, once a
turn of the event loop and again when a sync ends, for all messages that are ready for it:

    step      what happens                                a crash after it
    append    a place in the log and in the queue         nothing remains of the message
    write     one pwritev for all appends of the turn     kill -9: stays; power cut: may go
    sync      one fdatasync for all written meanwhile     stays
    dispatch  the consume queue entry: consumers see it   stays, recovery makes the entry again
    wake      pulls held for the queue are answered       stays
    reply     the producer learns SEND_OK                 stays

With ASYNC_FLUSH the sync is left out of the chain and follows within `flush_interval_ms`.

A sync that fails is never tried again into success, because the kernel may have dropped the pages
that it could not write: the store goes read-only, and everybody who waits is refused.

Source: CommitLog.handleDiskFlush and its GroupCommitService, apache/rocketmq 5.5.0, for what
producers observe; unlike there, in sync mode no consumer sees what a power cut could still take.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.writing.flusher import Flusher
from kourou.broker.writing.put import Done, PendingPuts, PutResult, PutStatus, Waiting, WaitingPut
from kourou.broker.writing.queue_syncs import QueueSyncs
from kourou.errors import InvalidMessageError, StoreError, TopicRefusedError
from kourou.protocol.message_layout import RecordDraft, record_size
from kourou.store.message_store import Arrival, MessageStore, SyncPlan, TopicDeletion

__all__ = ["Done", "GroupCommit", "PutResult", "PutStatus"]

log = logging.getLogger(__name__)


class GroupCommit:
    """Takes messages into the store and says when they are safe.

    Attributes:
        on_write: called after each write to the log.
        is_sync_mode: what waits for a sync is stored only when it is synced.

    Everything runs on the event loop, but for the syncs, which are the flusher's.
    """

    def __init__(
        self,
        store: MessageStore,
        flusher: Flusher,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        on_arrivals: Callable[[list[Arrival]], None],
    ) -> None:
        """Serve `store`.

        Args:
            store: nobody else may append to it, write, sync or dispatch.
            flusher: runs the syncs, one at a time.
            loop: the loop that everything runs on.
            config: the flush mode, its times, and the limits.
            on_arrivals: told of the messages that consumers can see from now on, oldest first.
        """
        self._store = store
        self._flusher = flusher
        self._loop = loop
        self._config = config
        self._on_arrivals = on_arrivals
        self.is_sync_mode = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._pending = PendingPuts(config)
        # A put moves from the first of these to the second, and through the third if it is late.
        self._unwritten: list[Waiting] = []
        self._unsynced: deque[Waiting] = deque()
        self._late: deque[Waiting] = deque()
        self._plan: SyncPlan | None = None  # of the sync that runs
        self._idle = asyncio.Event()  # set when no sync runs
        self._idle.set()
        self._queue_syncs = QueueSyncs(store, flusher, loop, self._fail)
        self._timer: asyncio.TimerHandle | None = None  # next time-out, or next sync if async
        self._is_scheduled = False
        self._appending: list[Callable[[], None]] = []
        self._closed_because = ""
        self._late_reason = f"the sync did not end within {config.sync_flush_timeout_ms} ms"
        self.on_write: Callable[[], None] | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not yet synced (with ASYNC_FLUSH: not yet written)."""
        return self._pending.size

    @property
    def pending_puts(self) -> tuple[int, int]:
        """How many puts are not answered yet, and how many may be."""
        return len(self._pending), self._config.pending_requests_max

    def put(
        self,
        drafts: Sequence[RecordDraft],
        now_ms: int,
        done: Done,
        *,
        owner: Hashable | None = None,
        wait_for_sync: bool = True,
    ) -> None:
        """Append `drafts`, all or none of them, and call `done` exactly once.

        A refusal calls it before `put` returns; else it is called in a later turn of the loop, in
        the order of the log. With ASYNC_FLUSH it is called once the records are written.

        Args:
            drafts: one message, or the messages of a batch: they get neighbouring places.
            now_ms: the store time of all of them.
            done: told what became of them.
            owner: whose limit counts, beside the common one: the producer's connection. None for
                what the broker itself stores.
            wait_for_sync: False calls `done` once the records are written, even in sync mode;
                consumers still see them only when they are synced.
        """
        waiter = WaitingPut(
            done=done,
            owner=owner,
            waits_for_sync=wait_for_sync and self.is_sync_mode,
            deadline_s=self.deadline_s(),
        )
        refusal = self._append(waiter, drafts, now_ms)
        if refusal is not None:
            waiter.answer(refusal)
            return
        self.follow(waiter)

    def follow(self, waiting: Waiting) -> None:
        """Write what was appended just now, and tell `waiting` what becomes of it.

        In the order of the log, and in a later turn of the loop.
        """
        self._pending.add(waiting)
        self._unwritten.append(waiting)
        self._schedule()

    def before_write(self, append: Callable[[], None]) -> None:
        """Call `append` at the end of this turn of the loop; what it appends is written then.

        Once; never, if the broker is killed before.
        """
        self._appending.append(append)
        self._schedule()

    def has_room(self, owner: Hashable, size: int, puts: int) -> bool:
        """Tell whether so many more puts of the owner are taken now, of `size` bytes together."""
        return not self._closed_because and self._pending.has_room(owner, size, puts)

    def has_room_for_any(self, size: int, puts: int) -> bool:
        """As `has_room`, whoever owns them; False near a limit, where that has to be known."""
        return not self._closed_because and self._pending.has_room_for_any(size, puts)

    def deadline_s(self) -> float:
        """Return when who begins to wait now has waited long enough, on the loop's clock."""
        return self._loop.time() + self._config.sync_flush_timeout_ms / 1000

    def doubt(self) -> PutResult | None:
        """Return what a put that was answered late would be answered now; None if it is synced."""
        if self._late:
            return PutResult(PutStatus.FLUSH_DISK_TIMEOUT, reason=self._late_reason)
        if self.is_sync_mode and self._store.read_only_reason is not None:
            reason = self._store.read_only_reason
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason)
        return None

    async def put_and_wait(self, drafts: Sequence[RecordDraft], now_ms: int) -> PutResult:
        """Append `drafts` and return what became of them.

        Cancelling takes nothing back: the records are on their way.
        """
        future: asyncio.Future[PutResult] = self._loop.create_future()

        def done(result: PutResult) -> None:
            if not future.done():
                future.set_result(result)

        self.put(drafts, now_ms, done)
        return await future

    def flush(self, now_ms: int) -> bool:
        """Write consume queues and the checkpoint, and sync what is due; about every second.

        Returns:
            False if there were many new queues, and the rest should follow in some milliseconds.
        """
        is_all = self._store.flush(now_ms)
        self._start_sync()
        self._queue_syncs.start()
        return is_all

    def begin_deletion(self, topic: str) -> TopicDeletion | None:
        """Refuse messages of the topic from now on; return what deletes it, None if it has none.

        What was appended before is written first, so that a disk that refuses it is noticed by
        those who wait.

        Raises:
            StoreError: the store takes no writes; nothing was changed.
        """
        self._write()
        if self._store.read_only_reason is not None:
            self._store.check_writable()
        return self._store.begin_deletion(topic)

    async def close(self) -> None:
        """Refuse further messages, and return when all accepted are synced and answered.

        The store can be closed then. As long as a disk does not answer, this does not return.
        """
        self._append_kept()
        self._closed_because = "the broker is stopping"
        self._turn()
        while self._plan is not None or self._store.synced_position < self._store.written_position:
            self._start_sync()
            if self._plan is None:
                break  # the store is read-only
            await self._idle.wait()
        self._cancel_timer()
        await self._queue_syncs.close()

    def abandon(self) -> None:
        """Stop as a killed process stops: nothing more is written, and nobody is answered."""
        self._closed_because = "the broker was killed"
        self._appending.clear()
        self._unwritten.clear()
        self._unsynced.clear()
        self._late.clear()
        self._plan = None
        self._cancel_timer()
        self._queue_syncs.abandon()

    def _turn(self) -> None:
        """Advance, at the end of a turn of the loop or of a sync."""
        try:
            if self._appending:
                self._append_kept()
            self._is_scheduled = False
            self._advance()
        except Exception as error:  # whoever waits must learn of it, whatever it was
            log.exception("group_commit.failed")
            self._is_scheduled = False
            self._fail(f"the group commit failed: {error}")

    def _append_kept(self) -> None:
        """Let those append who waited for the end of the turn."""
        self._is_scheduled = True  # who calls this goes on to write
        appending, self._appending = self._appending, []
        for append in appending:
            append()

    def _schedule(self) -> None:
        """Advance at the end of this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    # The order of this function is the promise: no step may move before the one above it.
    def _advance(self) -> None:
        """Take every accepted message as far as the disk allows."""
        self._write()
        if self.is_sync_mode:
            self._start_sync()
            visible = self._store.synced_position
        else:
            self._schedule_sync()
            visible = self._store.written_position
        arrivals = self._store.dispatch(visible)
        if arrivals:
            self._wake(arrivals)
        self._acknowledge(visible)
        if self._store.read_only_reason is not None:
            self._refuse_all(self._store.read_only_reason)

    def _append(
        self, waiter: WaitingPut, drafts: Sequence[RecordDraft], now_ms: int
    ) -> PutResult | None:
        """Give the records their places in the log and in their queue; return why not, if not."""
        if self._closed_because:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self._closed_because)
        try:
            waiter.size = sum(map(record_size, drafts))
            reason = self._pending.limit_reached(waiter.size, waiter.owner)
            if reason:
                return PutResult(PutStatus.BUSY, reason=reason)
            if len(drafts) == 1:
                waiter.appended = (self._store.append(drafts[0], now_ms),)
            else:
                waiter.appended = self._store.append_batch(drafts, now_ms)
        except InvalidMessageError as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        except TopicRefusedError as error:
            return PutResult(PutStatus.TOPIC_REFUSED, reason=str(error))
        except StoreError as error:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=str(error))
        return None

    def _write(self) -> None:
        """Write all that was appended since the last write, in one call."""
        waiters = self._unwritten
        if not waiters:
            return
        try:
            self._store.write()
        except StoreError as error:  # the store has taken these appends back
            self._unwritten = []
            for waiter in waiters:
                self._refuse(waiter, str(error))
            return
        self._unwritten = []  # not before: whatever else is raised, `_turn` must find them here
        self._unsynced.extend(waiters)
        self._schedule_expiry()
        if self.on_write is not None:
            self.on_write()
        for waiter in waiters:
            if self.is_sync_mode and not waiter.waits_for_sync:
                waiter.stored()

    def _start_sync(self) -> None:
        """Sync all that is written, unless a sync runs: its end starts the next one."""
        if self._plan is not None or self._store.read_only_reason is not None:
            return
        self._plan = self._store.sync_plan()
        if self._plan is None:
            return
        self._idle.clear()
        self._flusher.sync(self._store, self._plan, self._sync_ended)

    def _sync_ended(self, error: Exception | None) -> None:
        """Go on with what the sync has made safe, or give up for good."""
        plan, self._plan = self._plan, None
        self._idle.set()
        if plan is None:
            return  # abandoned meanwhile
        if error is not None:
            self._fail(f"a sync failed: {error}")
            return
        self._store.synced(plan)
        self._turn()

    def _wake(self, arrivals: list[Arrival]) -> None:
        """Tell of new messages, oldest first."""
        try:
            self._on_arrivals(arrivals)
        except Exception:  # a consumer's trouble is not the producers'
            log.exception("arrivals.wake_failed count=%d", len(arrivals))

    def _acknowledge(self, visible: int) -> None:
        """Answer what lies below `visible`, in the order of the log."""
        for waiters in (self._late, self._unsynced):
            while waiters and waiters[0].end <= visible:
                waiter = waiters.popleft()
                self._pending.remove(waiter)
                waiter.stored()

    def _fail(self, reason: str) -> None:
        """Make the store read-only, which cannot be undone, and refuse everybody who waits."""
        self._store.set_read_only(reason)
        self._refuse_all(reason)

    def _refuse_all(self, reason: str) -> None:
        waiters = [*self._late, *self._unsynced, *self._unwritten]
        self._late.clear()
        self._unsynced.clear()
        self._unwritten = []
        self._cancel_timer()
        for waiter in waiters:
            self._refuse(waiter, reason)

    def _refuse(self, waiter: Waiting, reason: str) -> None:
        self._pending.remove(waiter)
        waiter.answer(PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=reason))

    def _schedule_sync(self) -> None:
        """With ASYNC_FLUSH, sync what is written within `flush_interval_ms`."""
        if self._timer is None and self._store.synced_position < self._store.written_position:
            pause_s = self._config.flush_interval_ms / 1000
            self._timer = self._loop.call_later(pause_s, self._background_sync)

    def _background_sync(self) -> None:
        self._timer = None
        self._start_sync()

    def _schedule_expiry(self) -> None:
        """In sync mode, look again when the oldest waiter has waited long enough."""
        if self._timer is None and self.is_sync_mode and self._unsynced:
            self._timer = self._loop.call_at(self._unsynced[0].deadline_s, self._expire)

    def _expire(self) -> None:
        """Tell those who waited too long that the sync is late; their bytes still count."""
        self._timer = None
        now_s = self._loop.time()
        while self._unsynced and self._unsynced[0].deadline_s <= now_s:
            waiter = self._unsynced.popleft()
            self._late.append(waiter)
            waiter.late(self._late_reason)
        self._schedule_expiry()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
