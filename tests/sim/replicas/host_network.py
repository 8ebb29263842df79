"""The network of a simulation of processes: single directions between them can be cut or slow.

A cut direction loses nothing for good: TCP sends again what is not acknowledged. So bytes wait
until `heal`, or until their connection is reset. The system of a stopped process still accepts
connections and bytes, which wait likewise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final

from kourou.errors import AddressInUseError, ConnectFailedError
from kourou.remoting.admission import Admission
from kourou.remoting.network import Address, Listener, ProtocolFactory, format_address
from kourou.remoting.tls import TlsContext
from kourou.testing.memory_transport import MemoryTransport, Pipe
from tests.sim.replicas.process_loop import SimProcess, current_process, outside

CLIENT: Final = "client"
"""Name of the simulation itself, which runs the clients."""
LATENCY_S: Final = (0.0001, 0.001)
_HOST: Final = "127.0.0.1"
_RETRY_S: Final = 0.02
_LARGE_BYTES: Final = 300
"""Size from which the middle of a piece lies in the body of a record, if it carries records."""

Direction = tuple[str, str]
"""Names of the sending and of the receiving process."""


class HostNetwork:
    """Connects all processes."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._listeners: dict[int, _HostListener] = {}
        self._pairs: list[_Pair] = []
        self._cut: set[Direction] = set()
        self._slow: dict[Direction, tuple[float, float]] = {}
        self._damaged: dict[Direction, tuple[int, int]] = {}  # port, pieces left
        self._next_port = 50_000

    # kourou.remoting.network.Network

    async def listen(
        self,
        address: Address,
        factory: ProtocolFactory,
        *,
        admission: Admission | None = None,
    ) -> Listener:
        _, port = address
        if not port:
            port = self._next_port = self._next_port + 1
        if port in self._listeners:
            raise AddressInUseError(format_address(address))
        listener = _HostListener(self._listeners, port, factory, current_process())
        self._listeners[port] = listener
        return listener

    async def connect(
        self,
        address: Address,
        factory: ProtocolFactory,
        timeout_s: float,
        *,
        tls: TlsContext | None = None,
    ) -> asyncio.BufferedProtocol:
        source = current_process()
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + timeout_s
        while True:
            await asyncio.sleep(self._rng.uniform(*LATENCY_S))
            listener = self._listeners.get(address[1])
            target = None if listener is None else listener.process
            if self.is_open(source, target) and self.is_open(target, source):
                break
            if loop.time() >= ends_at_s:
                text = f"no connection to {format_address(address)} within {timeout_s:g} s"
                raise ConnectFailedError(text)
            await asyncio.sleep(_RETRY_S)
        if listener is None:
            raise ConnectFailedError(f"no connection to {format_address(address)}: refused")
        self._next_port += 1
        pair = _Pair(self, source, target, address, (_HOST, self._next_port))
        self._pairs = [one for one in self._pairs if not one.is_over]
        self._pairs.append(pair)
        inner = factory()
        accepted = listener.factory if target is None else _calling(target, listener.factory)
        pair.open(_of(target, accepted()), _of(source, inner))
        return inner

    # Faults

    def is_open(self, source: SimProcess | None, target: SimProcess | None) -> bool:
        """Return whether bytes are delivered."""
        if target is not None and target.is_stopped:
            return False
        return (name_of(source), name_of(target)) not in self._cut

    def cut(self, directions: Iterable[Direction]) -> None:
        """Hold all bytes in these directions until `heal`."""
        self._cut.update(directions)

    def restore(self, directions: Iterable[Direction]) -> None:
        """Deliver in these directions again."""
        self._cut.difference_update(directions)
        self.deliver()

    def damage(self, direction: Direction, port: int, count: int) -> None:
        """Flip one bit in each of the next large pieces in this direction from a port."""
        self._damaged[direction] = port, count

    def damaged(self, direction: Direction, port: int, data: bytes) -> bytes:
        """Return what arrives of a piece; see `damage`."""
        of_port, left = self._damaged.get(direction, (0, 0))
        if port != of_port or not left or len(data) < _LARGE_BYTES:
            return data
        self._damaged[direction] = port, left - 1
        changed = bytearray(data)
        changed[len(data) // 2] ^= 1 << self._rng.randrange(8)
        return bytes(changed)

    def slow(self, directions: Iterable[Direction], latency_s: tuple[float, float]) -> None:
        """Let bytes travel for so long in these directions until `heal`."""
        self._slow.update(dict.fromkeys(directions, latency_s))

    def heal(self, *, resets: bool = False) -> None:
        """Deliver everything again; with `resets`, end the connections that were cut."""
        cut = set(self._cut)
        self._cut.clear()
        self._slow.clear()
        self._damaged.clear()
        for pair in self._pairs:
            if resets and (pair.direction in cut or pair.direction[::-1] in cut):
                pair.reset()
        self.deliver()

    def deliver(self) -> None:
        """Deliver what waits, as far as the faults allow."""
        for pair in list(self._pairs):
            pair.deliver()

    def end(self, process: SimProcess) -> None:
        """End the ports and connections of a killed process, as its system does."""
        for port, listener in list(self._listeners.items()):
            if listener.process is process:
                del self._listeners[port]
        for pair in self._pairs:
            pair.end(process, is_reset=self._rng.random() < 0.5)

    def pipe(self, source: SimProcess | None, target: SimProcess | None, port: int = 0) -> Pipe:
        """Return one direction of a new connection; `port`: of the sending server."""
        direction = name_of(source), name_of(target)
        latency_s = self._slow.get(direction, LATENCY_S)
        return _OutsidePipe(
            self._rng,
            latency_s,
            lambda: not self.is_open(source, target),
            lambda data: self.damaged(direction, port, data),
        )


def name_of(process: SimProcess | None) -> str:
    """Return the name of a process."""
    return CLIENT if process is None else process.name


def _calling(process: SimProcess, factory: ProtocolFactory) -> ProtocolFactory:
    return lambda: process.call(factory)


class _HostListener:
    """A listener on a port."""

    def __init__(
        self,
        listeners: dict[int, _HostListener],
        port: int,
        factory: ProtocolFactory,
        process: SimProcess | None,
    ) -> None:
        self._listeners = listeners
        self._port = port
        self.factory = factory
        self.process = process

    @property
    def address(self) -> Address:
        return _HOST, self._port

    def close(self) -> None:
        if self._listeners.get(self._port) is self:
            del self._listeners[self._port]


class _OutsidePipe(Pipe):
    """A pipe whose timers belong to no process: bytes arrive also when their sender is dead."""

    def __init__(
        self,
        rng: random.Random,
        latency_s: tuple[float, float],
        is_stalled: Callable[[], bool],
        damaged: Callable[[bytes], bytes],
    ) -> None:
        super().__init__(rng, latency_s, is_stalled)
        self._damaged = damaged

    def put(self, data: bytes) -> None:
        super().put(self._damaged(data))

    def _put_item(self, item: object) -> None:
        outside(super()._put_item, item)  # type: ignore[arg-type]


class _Pair:
    """Both ends of one connection."""

    def __init__(
        self,
        network: HostNetwork,
        source: SimProcess | None,
        target: SimProcess | None,
        server: Address,
        client: Address,
    ) -> None:
        self.direction = name_of(source), name_of(target)
        self._source = source
        self._target = target
        self._addresses = server, client
        self._there = network.pipe(source, target)
        self._back = network.pipe(target, source, server[1])

    def open(
        self, accepted: asyncio.BufferedProtocol, connecting: asyncio.BufferedProtocol
    ) -> None:
        server, client = self._addresses
        self._server_end = MemoryTransport(accepted, self._back, self._there, server, client)
        self._client_end = MemoryTransport(connecting, self._there, self._back, client, server)
        accepted.connection_made(self._server_end)
        connecting.connection_made(self._client_end)

    @property
    def is_over(self) -> bool:
        return self._server_end.is_lost and self._client_end.is_lost

    def reset(self) -> None:
        """End the connection with an error at both ends."""
        for end in (self._server_end, self._client_end):
            outside(end.force_close, ConnectionResetError("the network was cut"))

    def end(self, process: SimProcess, *, is_reset: bool) -> None:
        """End the side of a killed process."""
        for owner, end in ((self._target, self._server_end), (self._source, self._client_end)):
            if owner is process and not end.is_lost:
                outside(end.abort if is_reset else end.close)

    def deliver(self) -> None:
        outside(self._there.deliver)
        outside(self._back.deliver)


def _of(process: SimProcess | None, inner: asyncio.BufferedProtocol) -> asyncio.BufferedProtocol:
    return inner if process is None else _ProcessProtocol(process, inner)


class _ProcessProtocol(asyncio.BufferedProtocol):
    """Calls a protocol as its process."""

    def __init__(self, process: SimProcess, inner: asyncio.BufferedProtocol) -> None:
        self._process = process
        self._inner = inner

    def _call(self, function: Callable[..., object], *args: object) -> None:
        if not self._process.is_dead:
            self._process.call(function, *args)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._call(self._inner.connection_made, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        if self._process.is_dead:
            return bytearray(65_536)
        buffer: bytearray = self._process.call(self._inner.get_buffer, sizehint)  # type: ignore[assignment]
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._call(self._inner.buffer_updated, nbytes)

    def eof_received(self) -> bool | None:
        if self._process.is_dead:
            return None
        return self._process.call(self._inner.eof_received)

    def pause_writing(self) -> None:
        self._call(self._inner.pause_writing)

    def resume_writing(self) -> None:
        self._call(self._inner.resume_writing)

    def connection_lost(self, exc: Exception | None) -> None:
        self._call(self._inner.connection_lost, exc)
