"""The master's side of a connection from one slave: reads its reports, and sends it the log.

Bytes are sent once they are synced, in controller mode once they are written. Those in the page
cache leave from there, others are read in a thread. A slave that does not read, or does not report,
stops the sending to itself only.

Source: DefaultHAConnection.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol, cast

from kourou.broker.replication.master_dialects import MasterDialect
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.replication.slave_progress import (
    UNKNOWN,
    LogRange,
    SlaveProgress,
    TransferRate,
)
from kourou.errors import ProtocolError, ReplicationRefusedError
from kourou.protocol.epoch_replication import SlaveHandshake
from kourou.protocol.record.layout import MAGIC_BLANK, RECORD_MAGICS, RECORD_START
from kourou.remoting.network import NO_ADDRESS, Address, address_of, format_address
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

_READ_BYTES: Final = 4096
"""Receive buffer: 512 reports."""
_PIECE_BYTES: Final = 1024 * 1024
"""Bytes of the log that are read and sent at once, in several frames. A slave that is far behind
gets them twice as fast as frame by frame."""
_OUTPUT_BYTES_MAX: Final = 1024 * 1024
"""Output that the transport buffers before sending pauses."""


class LogSource(Protocol):
    """The log of the master; see `kourou.store.reader.StoreReader`."""

    @property
    def min_position(self) -> int: ...

    @property
    def written_position(self) -> int: ...

    @property
    def synced_position(self) -> int: ...

    def segment_end(self, position: int) -> int: ...

    def written_bytes(self, physical_offset: int, size: int) -> bytes: ...

    def written_view(self, physical_offset: int, size: int) -> memoryview | None: ...


class Master(Protocol):
    """The service that owns the connections; see `kourou.broker.replication.master`."""

    @property
    def config(self) -> ReplicationConfig: ...

    @property
    def source(self) -> LogSource: ...

    @property
    def segment_bytes(self) -> int: ...

    @property
    def sendable_position(self) -> int: ...

    @property
    def offload(self) -> Offload: ...

    def on_connected(self, connection: MasterConnection) -> bool:
        """Accept the connection, or return False: it is then closed."""

    def create_dialect(self) -> MasterDialect:
        """Return the protocol of a new connection."""

    def on_handshake(self, connection: MasterConnection, handshake: SlaveHandshake) -> None:
        """Note which slave this is; its earlier connections are closed."""

    def on_sent(self, connection: MasterConnection) -> None:
        """Note that bytes of the log were sent."""

    def on_reported(self, connection: MasterConnection) -> None:
        """Note that a slave has reported a position."""

    def on_closed(self, connection: MasterConnection) -> None:
        """Forget the connection."""

    def warn_refused(self, connection: MasterConnection, reason: str) -> None:
        """Log why a slave was refused, at a limited rate."""


class MasterConnection(asyncio.BufferedProtocol):
    """One slave, or a program that claims to be one.

    Attributes:
        remote_address: the peer.
        broker_id: of the slave, in controller mode after its handshake; else `UNKNOWN`.
        progress: what was sent and acknowledged.
        bytes_per_s: rate at which the log was sent between the last two checks of times.
    """

    def __init__(self, master: Master) -> None:
        self._master = master
        config = master.config
        self._loop = asyncio.get_running_loop()
        self.remote_address: Address = NO_ADDRESS
        self._batch_bytes = piece_bytes = config.ha_transfer_batch_bytes
        self._rate: TransferRate | None = None
        if config.ha_flow_control_enable:
            self._rate = TransferRate(config.max_ha_transfer_byte_in_second, self._loop.time())
        else:
            piece_bytes *= max(1, _PIECE_BYTES // piece_bytes)
        self.progress = SlaveProgress(
            piece_bytes=piece_bytes,
            ahead_bytes=config.ha_ahead_bytes,
            from_last_file=config.sync_from_last_file,
        )
        self.broker_id = UNKNOWN
        self._dialect = master.create_dialect()
        self._received = bytearray(_READ_BYTES)
        self._transport: asyncio.Transport | None = None
        self._is_paused = False  # the peer reads slower than bytes are sent
        self._read: asyncio.Task[None] | None = None  # a read that waits for the device
        self._timer: asyncio.TimerHandle | None = None  # ends a pause of the rate limit
        self._sent_at_s = self._received_at_s = self._checked_at_s = self._loop.time()
        self._sent_bytes = 0  # of the log, since the last check
        self.bytes_per_s = 0

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connected = cast(asyncio.Transport, transport)  # that of uvloop is no subclass
        self.remote_address = address_of(connected.get_extra_info("peername"))
        if not self._master.on_connected(self):
            connected.abort()
            return
        connected.set_write_buffer_limits(high=_OUTPUT_BYTES_MAX)
        self._transport = connected

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - one size suffices
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is None:
            return
        self._received_at_s = self._loop.time()
        try:
            frames = self._dialect.feed(memoryview(self._received)[:nbytes])
            for frame in frames:
                if isinstance(frame, SlaveHandshake):
                    self._on_handshake(frame)
                else:
                    self._on_report(frame.position)
        except (ProtocolError, ReplicationRefusedError) as error:
            self.refuse(str(error))
            return
        if frames and self.progress.sent != UNKNOWN:
            self._master.on_reported(self)
            self.send()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - by its contract
        self._transport = None
        if self._read is not None:
            self._read.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._master.on_closed(self)

    # The service

    def refuse(self, reason: str) -> None:
        """Log the reason, and close the connection at once."""
        self._master.warn_refused(self, reason)
        self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    def check_times(self) -> None:
        """Send a heartbeat if nothing was sent for long; close if nothing was received."""
        now_s, config = self._loop.time(), self._master.config
        self.bytes_per_s = int(self._sent_bytes / max(now_s - self._checked_at_s, 1e-3))
        self._sent_bytes, self._checked_at_s = 0, now_s
        if self._transport is None:
            return
        silent_s = now_s - self._received_at_s
        if silent_s * 1000 >= config.ha_housekeeping_interval_ms:
            self.refuse(f"it has sent nothing for {silent_s:.0f} s (haHousekeepingInterval)")
            return
        is_idle = (now_s - self._sent_at_s) * 1000 >= config.ha_send_heartbeat_interval_ms
        is_due = is_idle or self._dialect.has_news
        if is_due and self.progress.sent != UNKNOWN and not self._is_paused:
            self._send_heartbeat()

    def tell_confirmed(self) -> None:
        """Send a heartbeat that tells what is confirmed, if the slave does not know it.

        While bytes are under way, their report is followed by another call.
        """
        is_ready = self._transport is not None and not self._is_paused
        if is_ready and self.progress.has_reported_all and self._dialect.has_news:
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        self._write([self._dialect.transfer_head(self.progress.sent, 0)])

    def send(self) -> None:
        """Send the bytes of the log that may leave, as far as the slave and the limits allow."""
        try:
            self._send()
        except ReplicationRefusedError as error:
            self.refuse(str(error))

    def _send(self) -> None:
        while self._transport is not None and not self._is_paused:
            if self._read is not None or self._timer is not None:
                return
            piece = self._next_piece()
            if piece is None or self._must_wait():
                return
            position, size = piece
            size = min(size, self._dialect.transfer_end(position) - position)
            try:
                data = self._master.source.written_view(position, size)
            except OSError as error:
                self._on_unreadable(position, error)
                return
            if data is None:
                self._read = self._loop.create_task(self._read_and_send(position, size))
                return
            self._transfer(position, data)

    def _on_handshake(self, handshake: SlaveHandshake) -> None:
        self.broker_id = handshake.broker_id
        if handshake.from_last_file:
            self.progress.begin_at_last_file()
        self._master.on_handshake(self, handshake)
        self._write([self._dialect.answer(self._range().end)])

    def _on_report(self, position: int) -> None:
        is_first = self.progress.sent == UNKNOWN
        self.progress.on_report(position, self._range())
        if is_first:
            log.info(
                "replication.slave_connected slave=%s position=%d end=%d",
                format_address(self.remote_address),
                self.progress.sent,
                self._master.sendable_position,
            )

    def _range(self) -> LogRange:
        master = self._master
        first = master.source.min_position
        return LogRange(first, master.sendable_position, master.segment_bytes)

    def _next_piece(self) -> tuple[int, int] | None:
        progress, bounds = self.progress, self._range()
        piece = progress.next_piece(bounds)
        if piece is None and progress.sent != UNKNOWN and progress.is_ahead:
            return progress.next_piece(bounds, self._unit_bytes(progress.ahead_from, bounds.end))
        return piece

    def _unit_bytes(self, position: int, end: int) -> int:
        """Return the size of the record or blank at the position; 0 if there is none."""
        source = self._master.source
        left = source.segment_end(position) - position
        if min(end - position, left) < RECORD_START.size:
            return 0
        try:
            size, magic = RECORD_START.unpack(source.written_bytes(position, RECORD_START.size))
        except OSError:
            return 0  # sending then reports the error
        is_unit = magic in RECORD_MAGICS or magic == MAGIC_BLANK
        return size if is_unit and 0 < size <= left else 0

    def _must_wait(self) -> bool:
        """Return whether the rate limit is reached; sending then continues by a timer."""
        wait_s = 0.0 if self._rate is None else self._rate.wait_s(self._loop.time())
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._resume)
        return wait_s > 0

    def _resume(self) -> None:
        self._timer = None
        self.send()

    async def _read_and_send(self, position: int, size: int) -> None:
        try:
            data = await self._master.offload(self._master.source.written_bytes, position, size)
        except OSError as error:
            self._read = None
            self._on_unreadable(position, error)
            return
        self._read = None
        self._transfer(position, memoryview(data))
        self.send()

    def _transfer(self, position: int, data: memoryview) -> None:
        if self._transport is None:
            return
        if not data:  # nothing would ever follow
            self.refuse(f"the log's file is cut short at position {position}")
            return
        self.progress.sent = position + len(data)
        self._sent_bytes += len(data)
        if self._rate is not None:
            self._rate.count(len(data))
        frames = list[bytes | memoryview]()
        for at in range(0, len(data), self._batch_bytes):
            batch = data[at : at + self._batch_bytes]
            frames += (self._dialect.transfer_head(position + at, len(batch)), batch)
        self._write(frames)
        self._master.on_sent(self)

    def _write(self, frames: Sequence[bytes | memoryview]) -> None:
        assert self._transport is not None, "the caller checks it"
        self._transport.writelines(frames)
        self._sent_at_s = self._loop.time()

    def _on_unreadable(self, position: int, error: OSError) -> None:
        first = self._master.source.min_position
        if position < first:
            self.refuse(
                f"it is at log position {position}, but the log begins at {first} now, because "
                "older messages have expired: start the slave with an empty store"
            )
        else:
            self.refuse(f"the log cannot be read at position {position}: {error}")
