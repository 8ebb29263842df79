"""Drives the merge buffer: stores checkpoints that are due, and commits the offsets after them.

A scan stores at most `STORE_MAX` checkpoints in one put; the next one follows when that is stored.
Due checkpoints that wait too long for it end the service of the buffer: see `MergeBuffer.note_lag`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.buffer import Commit, MergeBuffer, PoppedQueue
from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.pop_counts import CHECKPOINT, PopCounts
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import RemoteError
from kourou.protocol.record.encode import RecordDraft
from kourou.remoting.log_rate import LogRate
from kourou.remoting.steady_time import steady_ms

log = logging.getLogger(__name__)

STORE_MAX: Final = 128
"""Limit on the records of one put, which must fit into one segment of the log."""
_SCAN_MS_MIN: Final = 5
_SCAN_MS_MAX: Final = 30_000
"""Longest interval between two scans while checkpoints wait, in case the clock is set."""

DraftCheckpoint = Callable[[PopCheckpoint, int, int], RecordDraft]
"""Returns the record of a checkpoint for a revive queue at a time; raises a RemoteError."""


class BufferScans:
    """The merge buffer of one broker.

    Attributes:
        buffer: the checkpoints; changed by the methods of this class only.
    """

    def __init__(
        self,
        context: BrokerContext,
        offsets: ConsumerOffsets,
        draft: DraftCheckpoint,
        counts: PopCounts,
    ) -> None:
        """Create an empty buffer, and commit to `offsets`; puts and scans are counted."""
        live_config = context.live_config
        self.buffer: Final = MergeBuffer(lambda: live_config.current.pop)
        self._clock = context.clock
        self._commit = context.commit
        self._offsets = offsets
        self._topics = context.topics
        self._draft = draft
        self._counts = counts
        self._timer: asyncio.TimerHandle | None = None
        self._stored_all = asyncio.Event()  # set while nothing is being stored
        self._stored_all.set()
        self._has_failed = False
        self._failure_rate = LogRate()

    def add(self, checkpoint: PopCheckpoint, next_offset: int, revive_queue_id: int) -> bool:
        """Buffer a checkpoint; see `MergeBuffer.add`."""
        now_ms = self._clock.now_ms()
        if not self.buffer.add(checkpoint, next_offset, revive_queue_id, now_ms):
            return False
        self._set_timer()
        return True

    def ack(self, key: CheckpointKey, offsets: Iterable[int]) -> bool:
        """Acknowledge messages of a buffered checkpoint; see `MergeBuffer.ack`."""
        if not self.buffer.ack(key, offsets, self._clock.now_ms()):
            return False
        self._apply(self.buffer.take_commits())
        return True

    def add_skipped(self, queue: PoppedQueue, next_offset: int) -> None:
        """Let the group's offset follow a read that found nothing for it."""
        self.buffer.add_skipped(queue, next_offset)
        self._apply(self.buffer.take_commits())

    def stored(self, key: CheckpointKey) -> None:
        """Note that a checkpoint is stored that was added by `MergeBuffer.add_storing`."""
        self.buffer.stored(key)
        self._apply(self.buffer.take_commits())

    async def stop(self) -> None:
        """Store all checkpoints. Those that cannot be stored are popped again after a restart."""
        self.buffer.stop()
        await self._stored_all.wait()
        self._has_failed = False
        while self.buffer.next_due_ms is not None and not self._has_failed:
            self._scan()
            await self._stored_all.wait()
        self.close()

    def close(self) -> None:
        """Scan no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        """Scan when the next checkpoint is due."""
        due_ms = self.buffer.next_due_ms
        if due_ms is None or self._timer is not None or not self._stored_all.is_set():
            return
        wait_ms = min(max(due_ms - self._clock.now_ms(), _SCAN_MS_MIN), _SCAN_MS_MAX)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait_ms / 1000, self._scan)

    def _scan(self) -> None:
        """Store what is due, and commit what may be committed."""
        self.close()
        began_ms = steady_ms()
        now_ms, due_ms = self._clock.now_ms(), self.buffer.next_due_ms
        if due_ms is not None and due_ms >= 0:
            self.buffer.note_lag(now_ms - due_ms)
        store, commits = self.buffer.scan(now_ms, STORE_MAX)
        self._apply(commits)
        drafts, keys = [], []
        for one in store:
            try:
                drafts.append(self._draft(one.checkpoint, one.revive_queue_id, now_ms))
                keys.append(one.checkpoint.key)
            except RemoteError as error:
                self._fail([one.checkpoint.key], str(error))
        self._counts.on_scan(steady_ms() - began_ms)
        if not drafts:
            self._set_timer()
            return
        self._stored_all.clear()
        self._commit.put(drafts, now_ms, partial(self._on_stored, keys), answers_late=False)

    def _on_stored(self, keys: Sequence[CheckpointKey], result: PutResult) -> None:
        for key in keys:
            self._counts.on_put(CHECKPOINT, key, result.status)
        if result.status is PutStatus.OK:
            for key in keys:
                self.buffer.stored(key)
            self._apply(self.buffer.take_commits())
        else:
            self._fail(keys, f"{result.status.name}: {result.reason}")
        self._stored_all.set()
        self._set_timer()

    def _fail(self, keys: Sequence[CheckpointKey], reason: str) -> None:
        now_ms = self._clock.now_ms()
        self._has_failed = True
        for key in keys:
            self.buffer.store_failed(key, now_ms)
        suppressed = self._failure_rate.take(now_ms / 1000)
        if suppressed is not None:
            log.warning(
                "pop_buffer.not_stored checkpoints=%d reason=%s suppressed=%d",
                len(keys), reason, suppressed,
            )  # fmt: skip

    def _apply(self, commits: Iterable[Commit]) -> None:
        """Commit offsets; none goes back, and none overrides a reset."""
        offsets = self._offsets
        for queue, offset in commits:
            topic, group, queue_id = queue
            committed = offsets.query(group, topic, queue_id)
            if (
                (committed is None or committed < offset)
                and not offsets.is_reset(group, topic, queue_id)
                and self._topics.get(topic) is not None
            ):
                offsets.commit_popped(group, topic, queue_id, offset)
