"""Batched writing of op messages.

The end of a half message is buffered after it is in the log: the message of a commit is written
before the op message that closes its transaction. A crash in between leaves a transaction that
looks open; `recovery.py` then finds its message. The op message of a rollback is its only
record, and is therefore written at the end of the loop iteration.

Source: TransactionalMessageServiceImpl.deletePrepareMessage and TransactionalOpBatchService.java,
apache/rocketmq 5.5.0. The Java service never sleeps again after the first transaction; here a timer
runs only while ends are buffered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from kourou.broker.live_config import LiveConfig
from kourou.broker.transactions.half_messages import HALF_QUEUE
from kourou.broker.transactions.op_messages import encode_op, op_draft, op_size, split_op
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult
from kourou.clock import Clock
from kourou.model.host import Host

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""Delay before another attempt after the store refused an op message."""


class OpWriter:
    """Buffers ends of half messages and stores them as op messages."""

    def __init__(
        self,
        config: LiveConfig,
        commit: GroupCommit,
        clock: Clock,
        host: Host,
        on_stored: Callable[[int, Sequence[int]], None],
    ) -> None:
        """Store op messages by `commit`.

        Args:
            config: size and buffering time of an op message.
            commit: stores the op messages.
            clock: gives the store time.
            host: the broker's address, their born host.
            on_stored: called with the queue offset of each op message, and the records it names.
        """
        self._config = config
        self._commit = commit
        self._clock = clock
        self._host = host
        self._on_stored = on_stored
        self._buffered: list[int] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False  # a flush is scheduled for the end of this loop iteration
        self._urgent: list[tuple[Sequence[int], Callable[[PutResult], None]]] = []
        self._is_closed = False

    def add(self, offsets: Sequence[int]) -> None:
        """Buffer the ends of these half records."""
        self._buffered += offsets
        self._size += op_size(offsets)
        if self._size >= self._config.current.transactions.op_bytes_max and not self._is_due:
            self._is_due = True
            self._commit.call_before_write(self.flush)
        if self._timer is None and not self._is_closed:
            delay_s = self._config.current.transactions.op_interval_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.flush)

    def add_now(self, offsets: Sequence[int], done: Callable[[PutResult], None]) -> None:
        """Store the ends of these half records in this loop iteration; `done` gets the result."""
        if not self._urgent:
            self._commit.call_before_write(self._flush_urgent)
        self._urgent.append((offsets, done))

    def flush(self) -> None:
        """Store all buffered ends."""
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        buffered, self._buffered, self._size = self._buffered, [], 0
        for entry in split_op(buffered, self._config.current.transactions.op_bytes_max):
            self._put(entry)

    @property
    def is_scheduled(self) -> bool:
        """Whether a timer is set for the next write."""
        return self._timer is not None

    def close(self) -> None:
        """Store all buffered ends; later ones are not stored."""
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Stop without storing anything, like a killed process."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_urgent(self) -> None:
        """Store the ends passed to `add_now` in this loop iteration."""
        urgent, self._urgent = self._urgent, []
        limit = self._config.current.transactions.op_bytes_max
        entry: list[int] = []
        callbacks: list[Callable[[PutResult], None]] = []
        size = 0
        for offsets, done in urgent:
            entry += offsets
            callbacks.append(done)
            size += op_size(offsets)
            if size >= limit:
                self._put_urgent(entry, callbacks)
                entry, callbacks, size = [], [], 0
        if entry:
            self._put_urgent(entry, callbacks)

    def _put_urgent(
        self, entry: list[int], callbacks: Sequence[Callable[[PutResult], None]]
    ) -> None:
        def done(result: PutResult) -> None:
            if result.appended:
                self._on_stored(result.appended[0].queue_offset, entry)
            for callback in callbacks:
                callback(result)

        self._store(entry, done)

    def _put(self, offsets: list[int]) -> None:
        """Store one op message of buffered ends."""

        def done(result: PutResult) -> None:
            if result.appended:
                self._on_stored(result.appended[0].queue_offset, offsets)
            else:
                self._buffer_again(offsets, result.reason)

        self._store(offsets, done)

    def _store(self, offsets: list[int], done: Callable[[PutResult], None]) -> None:
        now_ms = self._clock.now_ms()
        self._commit.put(
            [op_draft(encode_op(offsets), HALF_QUEUE, self._host, now_ms)], now_ms, done
        )

    def _buffer_again(self, offsets: list[int], reason: str) -> None:
        """Buffer the ends again and retry later; ends never written are recovered at a start."""
        log.warning("op_entry.refused count=%d reason=%s", len(offsets), reason)
        self._buffered = offsets + self._buffered
        self._size += op_size(offsets)
        if not self._is_closed and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(RETRY_MS / 1000, self.flush)
