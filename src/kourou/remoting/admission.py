"""A port that accepts plain and TLS connections, directly or through a load balancer.

The first bytes of a connection say what it is, and an event loop that has read them cannot return
them to the socket. So the port accepts connections itself, peeks at the first bytes without reading
them, and then passes the socket to the loop:

    first bytes                 meaning         then
    `PROXY `, or the signature  preamble        read, from trusted addresses only; then as below
    0x16                        TLS hello       the handshake, then the protocol
    any other                   plain frame     the protocol; closed where TLS is enforced

A connection that sends nothing or does not finish its handshake is closed after a timeout, and the
number of such connections is bounded. A handshake costs a hundred times as much as a frame: only a
few are started in one loop iteration, so that open connections are served in between. If the
protocol has an attribute `forwarded_for`, it is set to the address from the preamble.

Source: NettyRemotingServer.HandshakeHandler, TlsModeHandler, HAProxyMessageHandler.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, runtime_checkable

from kourou.errors import MalformedFrameError
from kourou.remoting.log_rate import LogRate
from kourou.remoting.networks import Networks
from kourou.remoting.proxy_protocol import FIRST_BYTES, claimed_source, preamble_bytes
from kourou.remoting.tls import TlsContext

log = logging.getLogger(__name__)

ACCEPTED_MAX: Final = 256
"""Connections accepted in one loop iteration, so that open connections are served in between."""

HANDSHAKES_BEGUN_MAX: Final = 4
"""Handshakes started in one loop iteration; each occupies the loop for about a millisecond."""

PAUSE_S: Final = 1.0
"""Seconds without accepting after the process or the machine ran out of descriptors or memory."""

NO_CERTIFICATE: Final = "this server has no certificate (tls.server.certPath)"

_TLS_HANDSHAKE: Final = 0x16
_PEEKED_BYTES: Final = 128
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@runtime_checkable
class Forwarded(Protocol):
    """A protocol that receives the client address behind a proxy."""

    forwarded_for: tuple[str, int] | None


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Settings for the stage between accepting a socket and the start of its protocol."""

    tls: TlsContext | None
    """The TLS context; None: a connection that starts with a TLS hello is closed."""
    no_tls_reason: str = NO_CERTIFICATE
    """Logged for a TLS hello if `tls` is None."""
    accepts_plain: bool
    """Whether connections without TLS are served."""
    proxies: Networks | None
    """The proxies whose PROXY preambles are read; None: no preambles."""
    first_bytes_timeout_s: float
    """Time in seconds within which the first bytes must arrive."""
    handshake_timeout_s: float
    """Timeout of a TLS handshake in seconds."""
    handshakes_max: int
    """TLS handshakes that may be queued or in progress; one more is closed immediately."""
    connecting_max: int
    """Connections that may be in this stage; one more is closed immediately."""


class AdmissionListener:
    """The listening sockets of one address, and its connections whose protocol has not started.

    Args:
        sockets: bound and listening; closed by `close`.
        factory: creates the protocol of each connection.
        admission: settings of the port.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.BufferedProtocol],
        admission: Admission,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = sockets
        self._factory = factory
        self._admission = admission
        self._pending: set[_PendingConnection] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._waiting: deque[_Admitted] = deque()  # queued for their handshake
        self._warnings = LogRate()
        name = sockets[0].getsockname()
        self._address: tuple[str, int] = (name[0], name[1])
        for listening in sockets:
            listening.setblocking(False)
            self._resume(listening)

    @property
    def address(self) -> tuple[str, int]:
        """The address listened on; see `Listener`."""
        return self._address

    def close(self) -> None:
        """Stop accepting, and close connections that have not started. May be called twice."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets = []
        for pending in list(self._pending):
            pending.end(None)
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
                # The socket stays readable: without a pause the loop would only retry.
                log.error("connection.not_accepted reason=%r", error.strerror)  # noqa: TRY400
                self._loop.remove_reader(listening)
                self._loop.call_later(PAUSE_S, self._resume, listening)
                return
            accepted.setblocking(False)
            pending = _PendingConnection(self, accepted, (name[0], name[1]), self._admission)
            if self._connecting() >= self._admission.connecting_max:
                pending.end(
                    f"{self._admission.connecting_max} connections are being set up already"
                )
            else:
                self._pending.add(pending)
                pending.inspect()

    def _connecting(self) -> int:
        return len(self._pending) + len(self._waiting) + len(self._handshakes)

    # Called by pending connections

    def refuse(self, peer: tuple[str, int], reason: str) -> None:
        """Log why a connection was closed, at a limited rate."""
        suppressed = self._warnings.take(self._loop.time())
        if suppressed is not None:
            text = "connection.refused host=%s port=%d reason=%r suppressed=%d"
            log.warning(text, *peer, reason, suppressed)

    def remove(self, pending: _PendingConnection) -> None:
        """Remove a pending connection that was admitted or closed."""
        self._pending.discard(pending)

    def admit(
        self, accepted: socket.socket, peer: tuple[str, int], source: tuple[str, int] | None,
        tls: TlsContext | None,
    ) -> None:  # fmt: skip
        """Start the connection, or queue its handshake if it uses TLS."""
        admitted = _Admitted(accepted, peer, source, tls)
        if tls is None:
            self._start(admitted)
        elif len(self._waiting) + len(self._handshakes) >= self._admission.handshakes_max:
            accepted.close()
            self.refuse(peer, f"{self._admission.handshakes_max} TLS handshakes are in progress")
        else:
            self._waiting.append(admitted)
            if len(self._waiting) == 1:
                self._loop.call_soon(self._begin_handshakes)

    def _begin_handshakes(self) -> None:
        """Start a few of the queued handshakes; the next loop iteration starts more."""
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
            admitted.socket.close()  # the loop may not own it yet

    async def _begin(self, admitted: _Admitted) -> None:
        def make() -> asyncio.BufferedProtocol:
            protocol = self._factory()
            if admitted.source is not None and isinstance(protocol, Forwarded):
                protocol.forwarded_for = admitted.source
            return protocol

        try:
            with ends_if_cancelled(make) as create:
                if admitted.tls is None:
                    await self._loop.connect_accepted_socket(create, admitted.socket)
                else:
                    await self._loop.connect_accepted_socket(
                        create,
                        admitted.socket,
                        ssl=admitted.tls.current(),
                        ssl_handshake_timeout=self._admission.handshake_timeout_s,
                    )
        except OSError as error:
            # The loop has closed the socket. The peer is no TLS client, presented no certificate,
            # or rejected ours.
            self.refuse(admitted.peer, f"TLS: {getattr(error, 'reason', None) or error}")


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A socket whose kind of connection has been determined."""

    socket: socket.socket
    peer: tuple[str, int]
    source: tuple[str, int] | None
    """The client address from the proxy's preamble."""
    tls: TlsContext | None


class _PendingConnection:
    """An accepted socket until its first bytes show what kind of connection it is."""

    def __init__(
        self,
        listener: AdmissionListener,
        accepted: socket.socket,
        peer: tuple[str, int],
        admission: Admission,
    ) -> None:
        self._listener = listener
        self._socket = accepted
        self._peer = peer
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._preamble = b""  # the bytes of it read so far
        self._source: tuple[str, int] | None = None
        self._may_be_proxied = admission.proxies is not None and admission.proxies.contain(peer[0])

    def inspect(self) -> None:
        """Decide by the bytes received; wait for more if they are too few."""
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
            self._loop.add_reader(self._socket, self.inspect)
            self._timer = self._loop.call_later(self._admission.first_bytes_timeout_s, self._expire)

    def end(self, reason: str | None) -> None:
        """Close the socket; log `reason` unless it is None."""
        self._detach()
        self._socket.close()
        if reason is not None:
            self._listener.refuse(self._peer, reason)

    def _decide(self) -> bool:
        """Admit or close the socket and return True, or return False if more bytes are needed."""
        head = self._peek()
        while head and self._may_be_proxied:
            if not self._preamble and head[0] not in FIRST_BYTES:
                break
            if not self._take_preamble(head):
                return False
            head = self._peek()
        if not head:
            self.end(None)  # closed by the peer
        elif head[0] == _TLS_HANDSHAKE and self._admission.tls is not None:
            self._admit(self._admission.tls)
        elif head[0] != _TLS_HANDSHAKE and self._admission.accepts_plain:
            self._admit(None)
        elif self._admission.accepts_plain:
            self.end(f"a TLS hello, but {self._admission.no_tls_reason}")
        else:
            self.end("not TLS, which this port enforces (tls.server.mode)")
        return True

    def _peek(self) -> bytes:
        return self._socket.recv(_PEEKED_BYTES, socket.MSG_PEEK)

    def _take_preamble(self, head: bytes) -> bool:
        """Read the preamble's bytes that `head` shows; return whether it is complete."""
        seen = self._preamble + head
        size = preamble_bytes(seen)
        # Bytes that certainly belong to it are read immediately: if they were only peeked at, the
        # socket would stay readable and wake the loop again and again.
        taken = len(head) if size is None else min(len(head), size - len(self._preamble))
        self._preamble += self._socket.recv(taken)
        if size is None or len(self._preamble) < size:
            return False
        self._source = claimed_source(self._preamble)
        self._may_be_proxied = False
        return True

    def _admit(self, tls: TlsContext | None) -> None:
        self._detach()
        self._listener.admit(self._socket, self._peer, self._source, tls)

    def _detach(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._loop.remove_reader(self._socket)
        self._listener.remove(self)

    def _expire(self) -> None:
        self.end(f"no complete first bytes within {self._admission.first_bytes_timeout_s:g} s")


@contextmanager
def ends_if_cancelled(
    factory: Callable[[], asyncio.BufferedProtocol],
) -> Iterator[Callable[[], asyncio.BufferedProtocol]]:
    """Yield a factory whose protocols get `connection_lost` if the block is cancelled.

    A start of a transport can be cancelled between the protocol's `connection_made` and the return
    of the coroutine. uvloop then closes the transport without a call of `connection_lost`, so that
    the protocol would seem connected forever. asyncio calls it later: protocols must ignore a
    second call.
    """
    created: list[asyncio.BufferedProtocol] = []

    def create() -> asyncio.BufferedProtocol:
        protocol = factory()
        created.append(protocol)
        return protocol

    try:
        yield create
    except asyncio.CancelledError:
        for protocol in created:
            protocol.connection_lost(None)
        raise
