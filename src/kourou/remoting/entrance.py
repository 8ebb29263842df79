"""A port that takes plain connections, TLS, and both behind a load balancer.

What a connection is stands in its first bytes, and an event loop that has read them cannot give
them back. So the port accepts by itself, looks at them without taking them, and only then hands
the socket to the loop:

    first bytes                 is              what follows
    `PROXY `, or the signature  a preamble      taken, from those who are trusted; then as below
    0x16                        a TLS hello     the handshake, then the protocol
    any other                   a plain frame   the protocol; closed where TLS is enforced

Who sends nothing, or does not finish a handshake, is closed after a time, and there may be only so
many of them. A handshake costs a hundred times what a frame does: only few are begun in one turn of
the loop, so that those who are connected are served in between. A protocol with an attribute
`forwarded_for` is told the address from the preamble.

Source: NettyRemotingServer.HandshakeHandler, TlsModeHandler, HAProxyMessageHandler.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, runtime_checkable

from kourou.errors import MalformedFrameError
from kourou.remoting.log_rate import LogRate
from kourou.remoting.proxy_protocol import (
    FIRST_BYTES,
    TrustedProxies,
    claimed_source,
    preamble_bytes,
)
from kourou.remoting.tls import TlsContext

log = logging.getLogger(__name__)

ACCEPTED_MAX: Final = 256
"""Connections accepted in one turn of the loop, so that those open are served meanwhile."""

HANDSHAKES_BEGUN_MAX: Final = 4
"""Handshakes begun in one turn of the loop; each keeps it for about a millisecond."""

PAUSE_S: Final = 1.0
"""How long to accept nothing when the process or the machine has no room for one more."""

NO_CERTIFICATE: Final = "this server has no certificate (tls.server.certPath)"

_TLS_HANDSHAKE: Final = 0x16
_PEEKED_BYTES: Final = 128
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@runtime_checkable
class Forwarded(Protocol):
    """A protocol that wants to know for whom a proxy connected."""

    forwarded_for: tuple[str, int] | None


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """What a port looks at before a connection begins."""

    tls: TlsContext | None
    """How to speak TLS; None: a hello of TLS is closed."""
    no_tls_reason: str = NO_CERTIFICATE
    """What the log says of a TLS hello where `tls` is None."""
    takes_plain: bool
    """Whether connections without TLS are served."""
    proxies: TrustedProxies | None
    """Whose PROXY preambles are believed; None: nobody's."""
    silence_max_s: float
    """How long the first bytes may take, in seconds."""
    handshake_max_s: float
    """How long a TLS handshake may take, in seconds."""
    handshakes_max: int
    """How many may wait for their TLS handshake or be in it; one more is closed at once."""
    arriving_max: int
    """How many may be on their way through it; one more is closed at once."""


class EntranceListener:
    """The listening sockets of one address, and those who are on their way in.

    Args:
        sockets: bound and listening; closed with this.
        factory: makes the protocol of each connection.
        entrance: what to look at.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.BufferedProtocol],
        entrance: Entrance,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._factory = factory
        self._entrance = entrance
        self._arrivals: set[_Arrival] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._waiting: deque[_Admitted] = deque()  # for their handshake to begin
        self._warnings = LogRate()
        name = sockets[0].getsockname()
        self._address: tuple[str, int] = (name[0], name[1])
        for listening in sockets:
            listening.setblocking(False)
            self._resume(listening)

    @property
    def address(self) -> tuple[str, int]:
        """What is listened on; see `Listener`."""
        return self._address

    def close(self) -> None:
        """Accept no more; those on their way in are closed. Closing twice is harmless."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets = []
        for arrival in list(self._arrivals):
            arrival.end(None)
        for admitted in self._waiting:
            admitted.socket.close()
        self._waiting.clear()
        for task in self._handshakes:
            task.cancel()

    # Accepting

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:  # else closed meanwhile
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, name = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                # The socket stays readable: without a pause the loop would do nothing else.
                log.error("connection.not_accepted reason=%r", error.strerror)  # noqa: TRY400
                self._loop.remove_reader(listening)
                self._loop.call_later(PAUSE_S, self._resume, listening)
                return
            accepted.setblocking(False)
            arrival = _Arrival(self, accepted, (name[0], name[1]), self._entrance)
            if self._arriving() >= self._entrance.arriving_max:
                arrival.end(f"{self._entrance.arriving_max} connections are arriving already")
            else:
                self._arrivals.add(arrival)
                arrival.look()

    def _arriving(self) -> int:
        return len(self._arrivals) + len(self._waiting) + len(self._handshakes)

    # What an arrival reports

    def refuse(self, peer: tuple[str, int], reason: str) -> None:
        """Say in the log why somebody was closed, but not too often."""
        suppressed = self._warnings.take(self._loop.time())
        if suppressed is not None:
            text = "connection.refused host=%s port=%d reason=%r suppressed=%d"
            log.warning(text, *peer, reason, suppressed)

    def leave(self, arrival: _Arrival) -> None:
        """Forget one that is decided."""
        self._arrivals.discard(arrival)

    def admit(
        self, accepted: socket.socket, peer: tuple[str, int], source: tuple[str, int] | None,
        tls: TlsContext | None,
    ) -> None:  # fmt: skip
        """Begin the connection, after its handshake if it has one."""
        admitted = _Admitted(accepted, peer, source, tls)
        if tls is None:
            self._start(admitted)
        elif len(self._waiting) + len(self._handshakes) >= self._entrance.handshakes_max:
            accepted.close()
            self.refuse(peer, f"{self._entrance.handshakes_max} TLS handshakes are under way")
        else:
            self._waiting.append(admitted)
            if len(self._waiting) == 1:
                self._loop.call_soon(self._begin_handshakes)

    def _begin_handshakes(self) -> None:
        """Begin a few of those that wait, and more in the next turn of the loop."""
        for _ in range(min(HANDSHAKES_BEGUN_MAX, len(self._waiting))):
            self._start(self._waiting.popleft())
        if self._waiting:
            self._loop.call_soon(self._begin_handshakes)

    def _start(self, admitted: _Admitted) -> None:
        task = self._loop.create_task(self._begin(admitted))
        self._handshakes.add(task)
        task.add_done_callback(partial(self._ended, admitted))

    def _ended(self, admitted: _Admitted, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        if task.cancelled():
            admitted.socket.close()  # the loop may not have taken it yet

    async def _begin(self, admitted: _Admitted) -> None:
        def make() -> asyncio.BufferedProtocol:
            protocol = self._factory()
            if admitted.source is not None and isinstance(protocol, Forwarded):
                protocol.forwarded_for = admitted.source
            return protocol

        try:
            if admitted.tls is None:
                await self._loop.connect_accepted_socket(make, admitted.socket)
            else:
                await self._loop.connect_accepted_socket(
                    make,
                    admitted.socket,
                    ssl=admitted.tls.current(),
                    ssl_handshake_timeout=self._entrance.handshake_max_s,
                )
        except OSError as error:
            # The loop has closed the socket. A peer that is no TLS client, shows no certificate, or
            # does not believe ours.
            self.refuse(admitted.peer, f"TLS: {getattr(error, 'reason', None) or error}")


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A socket whose first bytes say what it is."""

    socket: socket.socket
    peer: tuple[str, int]
    source: tuple[str, int] | None
    """For whom a proxy connected."""
    tls: TlsContext | None


class _Arrival:
    """One accepted socket, until its first bytes say what it is."""

    def __init__(
        self,
        listener: EntranceListener,
        accepted: socket.socket,
        peer: tuple[str, int],
        entrance: Entrance,
    ) -> None:
        self._listener = listener
        self._socket = accepted
        self._peer = peer
        self._entrance = entrance
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._preamble = b""  # as far as it was taken
        self._source: tuple[str, int] | None = None
        self._may_be_proxied = entrance.proxies is not None and entrance.proxies.trusts(peer[0])

    def look(self) -> None:
        """Decide by what has come; if that is too little, wait for more."""
        try:
            is_decided = self._decide()
        except (BlockingIOError, InterruptedError):
            is_decided = False
        except MalformedFrameError as error:
            self.end(str(error))
            return
        except OSError:
            self.end(None)
            return
        if not is_decided and self._timer is None:
            self._loop.add_reader(self._socket, self.look)
            self._timer = self._loop.call_later(self._entrance.silence_max_s, self._expire)

    def end(self, reason: str | None) -> None:
        """Close it; `reason`: what the log shall say, None for what is nobody's fault."""
        self._forget()
        self._socket.close()
        if reason is not None:
            self._listener.refuse(self._peer, reason)

    def _decide(self) -> bool:
        """Return whether it is known by now what this connection is, and it went on its way."""
        head = self._peek()
        while head and self._may_be_proxied:
            if not self._preamble and head[0] not in FIRST_BYTES:
                break
            if not self._take_preamble(head):
                return False
            head = self._peek()
        if not head:
            self.end(None)  # the peer has left
        elif head[0] == _TLS_HANDSHAKE and self._entrance.tls is not None:
            self._go_on(self._entrance.tls)
        elif head[0] != _TLS_HANDSHAKE and self._entrance.takes_plain:
            self._go_on(None)
        elif self._entrance.takes_plain:
            self.end(f"a TLS hello, and {self._entrance.no_tls_reason}")
        else:
            self.end("not TLS, which is enforced here")
        return True

    def _peek(self) -> bytes:
        return self._socket.recv(_PEEKED_BYTES, socket.MSG_PEEK)

    def _take_preamble(self, head: bytes) -> bool:
        """Take what `head` has of the preamble; return whether that was its end."""
        seen = self._preamble + head
        size = preamble_bytes(seen)
        # What is certainly of it is taken at once: peeked at only, it would keep waking us.
        taken = len(head) if size is None else min(len(head), size - len(self._preamble))
        self._preamble += self._socket.recv(taken)
        if size is None or len(self._preamble) < size:
            return False
        self._source = claimed_source(self._preamble)
        self._may_be_proxied = False
        return True

    def _go_on(self, tls: TlsContext | None) -> None:
        self._forget()
        self._listener.admit(self._socket, self._peer, self._source, tls)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._loop.remove_reader(self._socket)
        self._listener.leave(self)

    def _expire(self) -> None:
        self.end(f"nothing to go by within {self._entrance.silence_max_s:g} s")
