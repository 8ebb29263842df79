"""Which messages a program has handled: remembered in memory, or in the program's own database.

A store answers one question, "is this the first time?", and keeps the answer only if the handler
ends without raising. `Idempotent` asks it around each call of a handler.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kourou.client.process_identity import ProcessGuard
from kourou.clock import Clock, SystemClock
from kourou.errors import DuplicateInProgressError, UsageError

DAY_MS: Final = 24 * 60 * 60 * 1000
SETTLED_AFTER_MS: Final = 60 * 60 * 1000
"""A time is believed when the clock has gone on for so long since, in ms: a clock that is wrong for
less deletes nothing."""
_FORGET_EVERY: Final = 1_000
"""Handled messages between two looks for old entries: one delete in a thousand transactions."""

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS kourou_seen (
  identity TEXT PRIMARY KEY,
  at_ms INTEGER NOT NULL
) WITHOUT ROWID
"""
_CLOCK_TABLE: Final = """
CREATE TABLE IF NOT EXISTS kourou_seen_clock (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  settled_ms INTEGER NOT NULL,
  candidate_ms INTEGER NOT NULL
)
"""
"""One row. `settled_ms` is the latest time since which the clock has gone on for
`SETTLED_AFTER_MS`; `candidate_ms` is the time that is to follow it."""
_AGE_INDEX: Final = "CREATE INDEX IF NOT EXISTS kourou_seen_at_ms ON kourou_seen (at_ms)"


class SeenInMemory:
    """Remembers the last `entries_max` handled messages, until the process ends.

    Catches what a producer or a rebalance repeats within minutes; after a restart it knows nothing.
    Safe for threads and coroutines. An entry takes about 200 bytes.

    Raises:
        UsageError: `entries_max` is below 1.
    """

    def __init__(self, entries_max: int = 100_000) -> None:
        if entries_max < 1:
            raise UsageError(f"entries_max is {entries_max}: it must be at least 1")
        self._entries_max = entries_max
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._in_progress: set[str] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._seen)

    @contextmanager
    def once(self, identity: str) -> Iterator[bool]:
        """Give whether this is the first time; an exception inside leaves it unseen.

        Raises:
            DuplicateInProgressError: the first time has not ended yet.
        """
        with self._lock:
            if identity in self._in_progress:
                raise DuplicateInProgressError(
                    f"{identity} is being handled right now; this delivery will be made again"
                )
            if identity in self._seen:
                self._seen.move_to_end(identity)
                is_first = False
            else:
                self._in_progress.add(identity)
                is_first = True
        if not is_first:
            yield False
            return
        try:
            yield True
        except BaseException:
            with self._lock:
                self._in_progress.discard(identity)
            raise
        with self._lock:
            self._in_progress.discard(identity)
            self._seen[identity] = None
            while len(self._seen) > self._entries_max:
                self._seen.popitem(last=False)


class SeenInSqlite:
    """Remembers handled messages in a SQLite database, in one transaction with what they did.

    The handler gets the open connection beside the message and writes its effect with it. Both are
    committed together when it returns: then effect and record are on the disk (synchronous=FULL);
    after a raise, a crash or a power cut before that, neither is, and the message comes again.

    The tables are `kourou_seen` and `kourou_seen_clock`. Handlers run one after the other, because
    SQLite has one writer; several processes may share the file.

    Args:
        path: the database; made if it is missing.
        keep_ms: how long an entry is kept at least. A duplicate that comes later counts as new:
            keep it for longer than a producer, a retry or a reset of offsets may reach back. Ages
            are of the wall clock, as they must outlive the process. A step forward of that is
            believed once it has lasted for an hour, a step back never: entries are then kept for
            longer, until the clock has caught up.
        busy_timeout_ms: how long to wait for another process's transaction.
        clock: tells the time of an entry.

    Raises:
        UsageError: a time is below 1 ms, or the file cannot be opened.
        sqlite3.Error: the file is no database.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        keep_ms: int = 7 * DAY_MS,
        busy_timeout_ms: int = 30_000,
        clock: Clock | None = None,
    ) -> None:
        for name, value in (("keep_ms", keep_ms), ("busy_timeout_ms", busy_timeout_ms)):
            if value < 1:
                raise UsageError(f"{name} is {value}: it must be at least 1")
        self._guard = ProcessGuard()
        self._keep_ms = keep_ms
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._until_forget = 0
        self._settled_ms = self._candidate_ms = 0
        # Any thread of a consumer's pool may come; the lock lets them in one at a time.
        try:
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise UsageError(
                f"{path}: {error}: name a file in a directory that can be written"
            ) from error
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(_TABLE)
            self._connection.execute(_CLOCK_TABLE)
            self._connection.execute(_AGE_INDEX)
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def once(self, identity: str) -> Iterator[sqlite3.Connection | None]:
        """Give a connection within a transaction if this is the first time, else None.

        Leaving commits; an exception inside takes everything back.

        Raises:
            UsageError: the transaction was ended inside, so that effect and record are apart.
            ForkedError: the database was opened by the process from which this one was forked:
                going on with its connection could damage the file.
            sqlite3.Error: the database failed; nothing was kept.
        """
        self._guard.check("SeenInSqlite")
        with self._lock:
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                is_first = self._note(identity)
                yield connection if is_first else None
                _commit(connection)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the database; waits for a handler that is running. Does nothing in a fork."""
        if self._guard.is_forked:
            return
        with self._lock:
            self._connection.close()

    def _note(self, identity: str) -> bool:
        """Record `identity` in the open transaction; return whether it was new."""
        now_ms = self._clock.now_ms()
        if self._until_forget == 0 or now_ms < self._candidate_ms:
            self._forget_old(now_ms)
            self._until_forget = _FORGET_EVERY
        self._until_forget -= 1
        # Of a clock that was set far back, an entry would look old once the clock is right again.
        at_ms = max(now_ms, self._settled_ms)
        noted = self._connection.execute(
            "INSERT OR IGNORE INTO kourou_seen (identity, at_ms) VALUES (?, ?)", (identity, at_ms)
        )
        return noted.rowcount == 1

    def _forget_old(self, now_ms: int) -> None:
        """Delete old entries by the time before, if the clock has gone on for long since."""
        execute = self._connection.execute
        query = "SELECT settled_ms, candidate_ms FROM kourou_seen_clock"
        settled_ms, candidate_ms = execute(query).fetchone() or (now_ms, now_ms)
        if now_ms - candidate_ms >= SETTLED_AFTER_MS:
            settled_ms, candidate_ms = max(settled_ms, candidate_ms), now_ms
            execute("DELETE FROM kourou_seen WHERE at_ms < ?", (settled_ms - self._keep_ms,))
        candidate_ms = min(candidate_ms, now_ms)
        execute(
            "INSERT OR REPLACE INTO kourou_seen_clock VALUES (1, ?, ?)", (settled_ms, candidate_ms)
        )
        self._settled_ms, self._candidate_ms = settled_ms, candidate_ms


def _commit(connection: sqlite3.Connection) -> None:
    if not connection.in_transaction:
        raise UsageError(
            "the handler ended the transaction: leave commit and rollback to SeenInSqlite, or "
            "effect and record are not kept together"
        )
    connection.execute("COMMIT")
