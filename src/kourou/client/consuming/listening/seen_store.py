"""Seen-stores: record the messages that a program has handled, in memory or in its own database.

A store answers whether a message is seen for the first time, and records it only if the handler
ends without raising. `Idempotent` uses it around each call of a handler.
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
"""A wall-clock time is trusted once the clock has advanced this many ms beyond it: a clock that is
wrong for a shorter time deletes nothing."""
_DELETE_EVERY: Final = 1_000
"""Handled messages between two deletions of old entries: one delete in a thousand transactions."""

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
"""One row. `settled_ms` is the latest time beyond which the clock has advanced by
`SETTLED_AFTER_MS`; `candidate_ms` is the next time to become settled."""
_AGE_INDEX: Final = "CREATE INDEX IF NOT EXISTS kourou_seen_at_ms ON kourou_seen (at_ms)"


class SeenInMemory:
    """Records the last `entries_max` handled messages, until the process ends.

    Detects duplicates from producers' retries or rebalances within minutes. After a restart it is
    empty. Safe for threads and coroutines. An entry takes about 200 bytes.

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
        """Yield whether `identity` is new; an exception inside the context leaves it unseen.

        Raises:
            DuplicateInProgressError: the first delivery is still being handled.
        """
        with self._lock:
            if identity in self._in_progress:
                raise DuplicateInProgressError(
                    f"{identity} is being handled right now; this delivery will be repeated"
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
    """Records handled messages in a SQLite database, in one transaction with their effects.

    The handler is called with the message and the open connection, and writes its effects through
    it. When it returns, effects and record are committed together and are durable
    (synchronous=FULL). After an exception, a crash or a power failure before that, neither is, and
    the message is redelivered.

    The tables are `kourou_seen` and `kourou_seen_clock`. Handlers run one after the other, because
    SQLite has one writer; several processes may share the file.

    Args:
        path: the database; created if it is missing.
        keep_ms: minimum age in ms of an entry before it is deleted. A later duplicate counts as
            new: choose a longer time than producers, redeliveries or offset resets may reach back.
            Ages are wall-clock times, because entries outlive the process. A forward step of the
            clock is trusted once it has lasted for an hour. After a backward step, entries are kept
            longer, until the clock has caught up.
        busy_timeout_ms: how long to wait for another process's transaction.
        clock: the wall clock for entries' times.

    Raises:
        UsageError: a time is below 1 ms, or the file cannot be opened.
        sqlite3.Error: the file is not a database.
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
        self._until_delete = 0
        self._settled_ms = self._candidate_ms = 0
        # Threads of a consumer's pool share the connection; the lock admits one at a time.
        try:
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise UsageError(f"{path}: {error}: choose a file in a writable directory") from error
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
        """Yield a connection with an open transaction if `identity` is new, else None.

        Leaving the context commits; an exception inside it rolls back.

        Raises:
            UsageError: the handler ended the transaction, so effects and record are not atomic.
            ForkedError: this process was forked from the one that opened the database; using its
                connection could damage the file.
            sqlite3.Error: the database failed; nothing was committed.
        """
        self._guard.check("SeenInSqlite")
        with self._lock:
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                is_first = self._record(identity)
                yield connection if is_first else None
                _commit(connection)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the database after a running handler has ended; do nothing in a forked process."""
        if self._guard.is_forked:
            return
        with self._lock:
            self._connection.close()

    def _record(self, identity: str) -> bool:
        """Record `identity` in the open transaction; return whether it was new."""
        now_ms = self._clock.now_ms()
        if self._until_delete == 0 or now_ms < self._candidate_ms:
            self._delete_old(now_ms)
            self._until_delete = _DELETE_EVERY
        self._until_delete -= 1
        # If the clock was set far back, the entry would look old once the clock is right again.
        at_ms = max(now_ms, self._settled_ms)
        inserted = self._connection.execute(
            "INSERT OR IGNORE INTO kourou_seen (identity, at_ms) VALUES (?, ?)", (identity, at_ms)
        )
        return inserted.rowcount == 1

    def _delete_old(self, now_ms: int) -> None:
        """Delete entries that are old by the settled time, and update the settled time."""
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
            "the handler ended the transaction: leave commit and rollback to SeenInSqlite, so that "
            "effects and record stay atomic"
        )
    connection.execute("COMMIT")
