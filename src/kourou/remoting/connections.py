"""The open connections of one server or pool, and the sweep that closes stalled ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final

from kourou.remoting.connection import Connection, FastPath, Request
from kourou.remoting.frame_buffer import PartialFrames
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.log_rate import LogRate
from kourou.remoting.output import UnreadOutput
from kourou.remoting.unanswered import UnansweredBytes

log = logging.getLogger(__name__)

_GRACE_S: Final = 2.0
"""Wait of `close` beyond `drain_timeout_ms`, in seconds: aborted transports end at once."""


class Connections:
    """Creates connections, tracks the open ones, and bounds their total memory.

    One timer checks the ages of all connections. It runs only while there are any.
    """

    def __init__(
        self,
        dispatch: Callable[[Request], None],
        limits: ConnectionLimits,
        *,
        is_accepting: bool,
        on_closed: Callable[[Connection], None] | None = None,
        fast_path: FastPath | None = None,
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start without connections.

        Args:
            dispatch: serves requests.
            limits: limits of each connection and of all together.
            is_accepting: the connections are those of a server.
            on_closed: called with each connection that has closed.
            fast_path: tried before `dispatch`.
            timer: returns elapsed seconds within a callback, to bound a pass; the default never
                advances, so that a pass is unbounded.
        """
        self._dispatch = dispatch
        self._elapsed_s = timer
        self._fast_path = fast_path
        self._limits = limits
        self._is_accepting = is_accepting
        self._on_closed = on_closed
        self._partials = PartialFrames(limits.partial_bytes_total_max)
        self._unanswered = UnansweredBytes()
        # A dict because it is ordered: a simulation repeats exactly for a given seed.
        opened = self._open = dict[Connection, None]()
        self._unread = UnreadOutput(limits.output_bytes_total_max, lambda: opened)
        self._warnings = LogRate()
        self._closing: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None  # while `close` waits

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    @property
    def unanswered_bytes(self) -> int:
        """Frame bytes of unanswered requests."""
        return self._unanswered.total

    @property
    def partial_bytes(self) -> int:
        """Bytes held of incomplete frames."""
        return self._partials.total_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes of output that peers have not read, at the last count."""
        return self._unread.total

    def create(self) -> Connection:
        """Return a new connection; it is tracked once it is connected."""
        return Connection(
            self._dispatch,
            self._limits,
            self._partials,
            self._unanswered,
            self._unread,
            self._warnings,
            self._add,
            is_accepted=self._is_accepting,
            timer=self._elapsed_s,
            fast_path=self._fast_path,
        )

    def disable_fast_path(self) -> None:
        """Send all requests through the general path from now on."""
        self._fast_path = None
        for connection in self:
            connection.fast_path = None

    async def close(self, reason: str) -> None:
        """Close all connections and wait until they are closed, about `drain_timeout_ms` at most.

        Connections that are still being set up are aborted when they connect.
        """
        self._closing = reason
        for connection in self:
            connection.close(reason)
        if not self._open:
            return
        if self._emptied is None:
            self._emptied = asyncio.Event()
        try:
            async with asyncio.timeout(self._limits.drain_timeout_ms / 1000 + _GRACE_S):
                await self._emptied.wait()
        except TimeoutError:  # a transport that never reports its end must not hold up the stop
            log.error("connections.not_closed count=%d", len(self._open))  # noqa: TRY400

    def abort(self, reason: str) -> None:
        """Abort all connections, and those still being set up when they connect."""
        self._closing = reason
        for connection in self:
            connection.abort(reason)

    def _add(self, connection: Connection) -> None:
        # `disable_fast_path` may have been called during the handshake.
        connection.fast_path = self._fast_path
        connection.on_closed.append(self._remove)
        self._open[connection] = None
        if self._closing is not None:
            connection.abort(self._closing)
        elif self._is_accepting and len(self._open) > self._limits.connections_max:
            connection.drop(f"{self._limits.connections_max} connections are open already")
        elif self._timer is None:
            self._schedule_sweep()

    def _remove(self, connection: Connection) -> None:
        del self._open[connection]
        if not self._open:
            if self._emptied is not None:
                self._emptied.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        if self._on_closed is not None:
            self._on_closed(connection)

    def _schedule_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.sweep_interval_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        self._schedule_sweep()  # first, so that an error below does not end the sweeps
        now_s = asyncio.get_running_loop().time()
        for connection in self:
            connection.check_ages(now_s)
        self._unread.recount()
