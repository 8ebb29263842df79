"""TCP proxies between processes of one machine, which cut single directions between them.

Servers listen on 127.0.0.1 and name `PROXY_HOST` as their address. On the same port there a proxy
accepts the connections of all others. The process that connects is found by the system's table of
sockets, so that clients and servers need no changes.

A cut direction delivers nothing, as with lost packets: bytes and ends of connections wait. A
connection that is made meanwhile is accepted by the system and gets no answer. After `heal` the
waiting bytes are delivered, or the connections are reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

PROXY_HOST: Final = "127.0.0.2"
SERVER_HOST: Final = "127.0.0.1"
CLIENT: Final = "client"
"""Name of all processes that are not known."""
_CHUNK: Final = 256 * 1024

_Address = tuple[str, int]
Direction = tuple[str, str]
"""Names of the sending and of the receiving process."""


class Links:
    """All proxies; used in one event loop.

    Args:
        pids: returns the process id of each known process by its name.
    """

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids
        self._cut: set[Direction] = set()
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._passing: dict[asyncio.Task[None], Direction] = {}

    async def listen(self, name: str, port: int) -> None:
        """Accept connections to the process `name`, which listens on this port."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None, "the server runs it in a task"
            get = writer.get_extra_info
            source = self._owner(get("peername"), get("sockname"))
            self._passing[task] = source, name
            try:
                with suppress(asyncio.CancelledError):  # by `heal` or `close`
                    await self._pass(source, name, port, reader, writer)
            finally:
                del self._passing[task]
                writer.transport.abort()

        self._servers.append(await asyncio.start_server(accept, PROXY_HOST, port, limit=_CHUNK))

    def cut(self, directions: Iterable[Direction]) -> None:
        """Deliver nothing in these directions until `heal`."""
        self._cut.update(directions)

    def heal(self, *, reset: bool) -> None:
        """Deliver everything again; with `reset`, end the connections that were cut."""
        if reset:
            both = self._cut | {(there, here) for here, there in self._cut}
            for task, direction in list(self._passing.items()):
                if direction in both:
                    task.cancel()
        self._cut.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        """Close all ports and connections."""
        for server in self._servers:
            server.close()
        passing = list(self._passing)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    async def _pass(
        self,
        source: str,
        name: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        await self._until_open(source, name)
        await self._until_open(name, source)
        try:
            there, back = await asyncio.open_connection(SERVER_HOST, port, limit=_CHUNK)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(source, name, reader, back))
                group.create_task(self._pump(name, source, there, writer))
        except* _EndedError:
            pass
        finally:
            back.transport.abort()

    async def _pump(
        self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Deliver bytes until the connection ends; then end its other side too."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._until_open(source, target)
                writer.write(data)
                await writer.drain()
        await self._until_open(source, target)
        raise _EndedError

    async def _until_open(self, source: str, target: str) -> None:
        while (source, target) in self._cut:
            await self._changed.wait()

    def _owner(self, peer: _Address, own: _Address) -> str:
        """Return the name of the process that has connected from `peer` to `own`."""
        inode = _inode(peer, own)
        for name, pid in self._pids().items():
            if inode and _has_socket(pid, inode):
                return name
        return CLIENT


class _EndedError(Exception):
    """One side of a connection has ended."""


def _inode(local: _Address, remote: _Address) -> str:
    """Return the inode of the socket with these addresses; empty without one.

    Both are needed: sockets with different remote addresses may share a local one.
    """
    wanted = [_hex(local), _hex(remote)]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1:3] == wanted:
            return words[9]
    return ""


def _hex(address: _Address) -> str:
    host, port = address
    number = int.from_bytes(bytes(map(int, host.split("."))), "little")
    return f"{number:08X}:{port:04X}"


def _has_socket(pid: int, inode: str) -> bool:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if str(entry.readlink()) == f"socket:[{inode}]":
                    return True
    return False
