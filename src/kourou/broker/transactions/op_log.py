"""Writing op entries: the ends of half messages, gathered for a while and stored together.

An end is gathered once what it says is in the log: the message of a commit is written before the
entry that closes its transaction. Until the entry is written a crash leaves a transaction that
looks open; `catching_up.py` finds its message then. A rollback leaves nothing else in the log than
its entry, which is therefore written at the end of the turn.

Source: TransactionalMessageServiceImpl.deletePrepareMessage and TransactionalOpBatchService.java,
apache/rocketmq 5.5.0, whose service never sleeps again after the first transaction; here a timer
is set while something waits, and only then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from kourou.broker.live_config import LiveConfig
from kourou.broker.transactions.half_messages import HALF_QUEUE
from kourou.broker.transactions.op_entries import encode_op, op_draft, op_size, split_op
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult
from kourou.clock import Clock
from kourou.model.host import Host

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
"""When to try again after the store refused an entry."""


class OpLog:
    """Gathers ends and stores them."""

    def __init__(
        self,
        config: LiveConfig,
        commit: GroupCommit,
        clock: Clock,
        host: Host,
        on_stored: Callable[[int, Sequence[int]], None],
    ) -> None:
        """Store entries by way of `commit`.

        Args:
            config: how large an entry may be, and how long it is gathered.
            commit: stores them.
            clock: their time.
            host: the broker's address, from where they come.
            on_stored: told the op queue's offset of each entry, and what it names.
        """
        self._config = config
        self._commit = commit
        self._clock = clock
        self._host = host
        self._on_stored = on_stored
        self._waiting: list[int] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False  # at the end of this turn of the loop
        self._urgent: list[tuple[Sequence[int], Callable[[PutResult], None]]] = []
        self._is_closed = False

    def add(self, offsets: Sequence[int]) -> None:
        """Gather the ends of these half records."""
        self._waiting += offsets
        self._size += op_size(offsets)
        if self._size >= self._config.now.transactions.op_bytes_max and not self._is_due:
            self._is_due = True
            self._commit.before_write(self.flush)
        if self._timer is None and not self._is_closed:
            delay_s = self._config.now.transactions.op_interval_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.flush)

    def add_now(self, offsets: Sequence[int], done: Callable[[PutResult], None]) -> None:
        """Store the ends of these half records with this turn's writes, and say how that went."""
        if not self._urgent:
            self._commit.before_write(self._flush_urgent)
        self._urgent.append((offsets, done))

    def flush(self) -> None:
        """Store all that was gathered."""
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_closed:
            return
        waiting, self._waiting, self._size = self._waiting, [], 0
        for entry in split_op(waiting, self._config.now.transactions.op_bytes_max):
            self._put(entry)

    def close(self) -> None:
        """Store all that was gathered; from now on nothing more is."""
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Stop as a killed process stops."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush_urgent(self) -> None:
        """Store what came by `add_now` in this turn of the loop."""
        urgent, self._urgent = self._urgent, []
        limit = self._config.now.transactions.op_bytes_max
        entry: list[int] = []
        told: list[Callable[[PutResult], None]] = []
        size = 0
        for offsets, done in urgent:
            entry += offsets
            told.append(done)
            size += op_size(offsets)
            if size >= limit:
                self._put_urgent(entry, told)
                entry, told, size = [], [], 0
        if entry:
            self._put_urgent(entry, told)

    def _put_urgent(self, entry: list[int], told: Sequence[Callable[[PutResult], None]]) -> None:
        def done(result: PutResult) -> None:
            if result.appended:
                self._on_stored(result.appended[0].queue_offset, entry)
            for tell in told:
                tell(result)

        self._store(entry, done)

    def _put(self, offsets: list[int]) -> None:
        """Store an entry of what was gathered."""

        def done(result: PutResult) -> None:
            if result.appended:
                self._on_stored(result.appended[0].queue_offset, offsets)
            else:
                self._again(offsets, result.reason)

        self._store(offsets, done)

    def _store(self, offsets: list[int], done: Callable[[PutResult], None]) -> None:
        now_ms = self._clock.now_ms()
        self._commit.put(
            [op_draft(encode_op(offsets), HALF_QUEUE, self._host, now_ms)], now_ms, done
        )

    def _again(self, offsets: list[int], reason: str) -> None:
        """Try again later: what no entry names is looked for at the next start."""
        log.warning("op_entry.refused count=%d reason=%s", len(offsets), reason)
        self._waiting = offsets + self._waiting
        self._size += op_size(offsets)
        if not self._is_closed and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(RETRY_MS / 1000, self.flush)
