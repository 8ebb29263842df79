"""The open connections of one server or one pool, and the sweep that ends those that hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from kourou.remoting.connection import Connection, FastPath, Request
from kourou.remoting.frame_buffer import PartialFrames
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.log_rate import LogRate
from kourou.remoting.output import UnreadOutput
from kourou.remoting.unanswered import UnansweredBytes


class Connections:
    """Makes connections, knows those that are open, and bounds what they take together.

    One timer looks at the ages of all of them. It runs only while there are any.
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
        """Make connections of `limits`, whose requests go to `dispatch`.

        Args:
            dispatch: serves requests.
            limits: bounds of all connections.
            is_accepting: they are those of a server.
            on_closed: called with each connection that has ended.
            fast_path: tried before `dispatch`.
            timer: seconds that pass while frames are handled; without it, a pass has no end.
        """
        self._dispatch = dispatch
        self._elapsed_s = timer
        self._fast_path = fast_path
        self._limits = limits
        self._is_accepting = is_accepting
        self._on_closed = on_closed
        self._partials = PartialFrames(limits.partial_bytes_total_max)
        self._unanswered = UnansweredBytes()
        self._unread = UnreadOutput(limits.output_bytes_total_max, lambda: self._open)
        self._warnings = LogRate()
        self._open: dict[Connection, None] = {}  # a dict for its order: a seed repeats a run
        self._closing: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._emptied.set()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of requests that are not answered yet."""
        return self._unanswered.total

    @property
    def partial_bytes(self) -> int:
        """Bytes held of frames that are not whole yet."""
        return self._partials.total_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes of output that peers have not read, as they were counted last."""
        return self._unread.total

    def make(self) -> Connection:
        """Return a new connection, which counts from when it is connected."""
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

    def without_fast_path(self) -> None:
        """Let every request take the ordinary way from now on."""
        self._fast_path = None
        for connection in self:
            connection.fast_path = None

    async def close(self, reason: str) -> None:
        """Close all and return when they have ended, within `drain_timeout_ms`.

        Those that are still on their way in are closed when they come.
        """
        self._closing = reason
        for connection in self:
            connection.close(reason)
        await self._emptied.wait()

    def abort(self, reason: str) -> None:
        """Close all at once, queued output lost; so are those that are still on their way in."""
        self._closing = reason
        for connection in self:
            connection.abort(reason)

    def _add(self, connection: Connection) -> None:
        connection.fast_path = self._fast_path  # as it is now: a handshake may have taken a while
        connection.on_closed.append(self._remove)
        self._open[connection] = None
        self._emptied.clear()
        if self._closing is not None:
            connection.abort(self._closing)
        elif self._is_accepting and len(self._open) > self._limits.connections_max:
            connection.drop(f"{self._limits.connections_max} connections are open already")
        elif self._timer is None:
            self._schedule_sweep()

    def _remove(self, connection: Connection) -> None:
        del self._open[connection]
        if not self._open:
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
        self._schedule_sweep()  # first: the sweep goes on whatever one connection does
        now_s = asyncio.get_running_loop().time()
        for connection in self:
            connection.check_ages(now_s)
        self._unread.recount()
