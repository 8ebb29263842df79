"""The slave's side of a connection to its master: appends what is received, reports what is stored.

Bytes are appended when they complete records. A report follows when these are as durable as the
slave's own flush mode promises. While many bytes wait for the disk, nothing more is read, nor while
a new epoch is noted, which must be durable before the first byte of it is appended.

Source: DefaultHAClient.java, AutoSwitchHAClient.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, cast

from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.replication.slave_dialects import Frame, SlaveDialect
from kourou.broker.replication.slave_progress import UNKNOWN
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import EpochError, ProtocolError, ReplicationRefusedError, StoreError
from kourou.model.epochs import EpochEntry
from kourou.store.replica_writer import ReplicaWriter

_READ_BYTES: Final = 256 * 1024
"""Receive buffer. Larger reads take longer: their copies leave the processor's caches, and the
allocator returns blocks of that size to the system each time."""
PENDING_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes that wait for the disk above which the slave stops reading."""

NoteEpoch = Callable[[EpochEntry], Awaitable[None]]
"""Makes a new epoch of the log durable; raises OSError or EpochError."""
_REFUSALS: Final = (ProtocolError, ReplicationRefusedError, StoreError, EpochError)


class SlaveConnection(asyncio.BufferedProtocol):
    """One connection to a master.

    Attributes:
        dialect: the protocol, with what was verified.
        ended: done when the connection is closed, and no received record or epoch waits for the
            disk; its result is the reason.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        writer: ReplicaWriter,
        commit: GroupCommit,
        dialect: SlaveDialect,
        note_epoch: NoteEpoch,
        on_confirmed: Callable[[int], None],
    ) -> None:
        """Create the protocol of a connection that is being opened.

        Args:
            config: the options.
            writer: appends to the slave's log.
            commit: writes and syncs what was appended.
            dialect: the protocol.
            note_epoch: called with each new epoch of the log.
            on_confirmed: called with the position up to which the master says that its in-sync set
                has the log.
        """
        self._config = config
        self._writer = writer
        self._commit = commit
        self._loop = asyncio.get_running_loop()
        self.dialect = dialect
        self._note_epoch = note_epoch
        self._on_confirmed = on_confirmed
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._frames: deque[Frame] = deque()  # received and not processed
        self._note: asyncio.Task[None] | None = None  # an epoch that is being noted
        self._received = bytearray(_READ_BYTES)
        _keep_freed_memory()
        self._transport: asyncio.Transport | None = None
        self._reported = self._stored = dialect.reported  # stored: durable and verified
        self._is_report_due = False
        self._unstored = 0  # `_Received` in the group commit
        self._is_lost = False
        self._is_paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at_s = self._received_at_s = self._loop.time()
        self._reason = ""

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is no subclass
        self._received_at_s = self._loop.time()
        self._transport.write(self.dialect.greeting())
        self._sent_at_s = self._loop.time()
        self._schedule_check()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - one size suffices
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        self._received_at_s = self._loop.time()
        try:
            self._frames.extend(self.dialect.feed(memoryview(self._received)[:nbytes]))
            self._process()
        except _REFUSALS as error:
            self.close(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self.close(str(exc or "the master closed the connection"))
        self._is_lost = True
        self._check_ended()

    @property
    def silences_s(self) -> tuple[float, float]:
        """Seconds since the last received and the last sent byte."""
        now_s = self._loop.time()
        return now_s - self._received_at_s, now_s - self._sent_at_s

    def close(self, reason: str) -> None:
        """Close the connection at once; only the first reason counts."""
        transport, self._transport = self._transport, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if transport is not None:
            self._reason = reason
            transport.abort()

    def on_stored(self, end: int) -> None:
        """Report that the log is stored up to `end`."""
        self._stored = max(self._stored, end)
        if self._transport is None:
            return
        if self._stored > self._reported and not self._is_report_due:
            self._is_report_due = True  # at the end of this turn: one for all that was stored
            self._loop.call_soon(self._report_stored)
        if self._is_paused and self._commit.pending_bytes <= PENDING_BYTES_MAX // 2:
            self._is_paused = False
            self._resume_reading()

    def on_settled(self, reason: str) -> None:
        """Note that some received records are stored, or refused for `reason`."""
        self._unstored -= 1
        if reason:
            self.close(reason)
        self._check_ended()

    def _check_ended(self) -> None:
        is_idle = not self._unstored and self._note is None
        if self._is_lost and is_idle and not self.ended.done():
            self.ended.set_result(self._reason)

    def _process(self) -> None:
        """Take the received frames, up to one that begins an epoch."""
        position, pieces = 0, list[bytes | memoryview]()
        entry = None
        while self._frames and self._note is None:
            entry = self.dialect.new_epoch(self._frames[0])
            if entry is not None:
                break
            at, rest = self.dialect.on_frame(self._frames.popleft())
            if rest:
                position = position if pieces else at
                pieces.append(rest)
        self.on_stored(self.dialect.verified)  # the own log is stored
        if pieces:
            self._append(position, pieces)
        self._on_confirmed(self.dialect.confirmed)
        if entry is not None:
            self._begin_note(entry)

    def _append(self, position: int, pieces: Sequence[bytes | memoryview]) -> None:
        appended = self._writer.append_received(position, pieces)
        if appended:
            received = _Received(self, self._writer.appended_position, appended)
            received.deadline_s = self._commit.deadline_s()
            self._unstored += 1
            self._commit.commit_appended(received)
        if self._commit.pending_bytes > PENDING_BYTES_MAX and not self._is_paused:
            assert self._transport is not None, "nothing is received without it"
            self._is_paused = True
            self._transport.pause_reading()

    def _begin_note(self, entry: EpochEntry) -> None:
        assert self._transport is not None, "nothing is received without it"
        self._transport.pause_reading()
        self._note = self._loop.create_task(self._note_and_continue(entry), name="note epoch")

    async def _note_and_continue(self, entry: EpochEntry) -> None:
        try:
            await self._note_epoch(entry)
        except (OSError, EpochError) as error:
            self.close(f"{entry} cannot be noted: {error}")
        self._note = None
        self._check_ended()
        if self._transport is None:
            return
        try:
            self._process()
        except _REFUSALS as error:
            self.close(str(error))
        # Not earlier: the next read replaces the bytes that the frames are views of.
        self._resume_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and self._note is None and not self._is_paused:
            self._transport.resume_reading()

    def _report_stored(self) -> None:
        self._is_report_due = False
        if self._transport is not None and self._stored > self._reported:
            self._report()

    def _report(self) -> None:
        assert self._transport is not None, "the caller checks it"
        self._transport.write(self.dialect.report(self._stored))
        self._reported = self._stored
        self._sent_at_s = self._loop.time()

    def _schedule_check(self) -> None:
        pause_s = self._config.ha_send_heartbeat_interval_ms / 5_000
        self._timer = self._loop.call_later(pause_s, self._check_times)

    def _check_times(self) -> None:
        now_s = self._loop.time()
        silent_s = now_s - self._received_at_s
        if not self._is_paused and silent_s * 1000 >= self._config.ha_housekeeping_interval_ms:
            self.close(f"it has sent nothing for {silent_s:.0f} s (haHousekeepingInterval)")
            return
        is_idle = (now_s - self._sent_at_s) * 1000 >= self._config.ha_send_heartbeat_interval_ms
        if is_idle and self._reported != UNKNOWN:
            self._report()
        self._schedule_check()


def _keep_freed_memory() -> None:
    """Let the C library keep as much freed memory as waits for the disk at most.

    glibc returns freed memory to the system if there is more of it than twice the largest block
    that was ever allocated by a mapping of its own. Each page that it takes back then costs a page
    fault, which takes longer than to copy the bytes.
    """
    bytearray(2 * PENDING_BYTES_MAX)  # freed at once, and never touched


class _Received:
    """Received records in the group commit; a `Waiter`."""

    owner_sizes: Sequence[tuple[Hashable, int]] = ()
    waits_for_sync = True
    waits_for_copies = False
    puts = 1
    deadline_s = 0.0

    def __init__(self, connection: SlaveConnection, end: int, size: int) -> None:
        self._connection = connection
        self.end = end
        self.size = size

    def stored(self) -> None:
        """Report the records to the master."""
        self._connection.on_stored(self.end)
        self._connection.on_settled("")

    def late(self, status: PutStatus, reason: str) -> None:
        """Do nothing: a late sync is reported when it ends."""

    def answer(self, result: PutResult) -> None:
        """Close the connection: the records are not stored."""
        assert result.status is not PutStatus.OK, "then `stored` is called"
        self._connection.on_settled(result.reason)
