"""Peers that send garbage at a given rate, each on its own connection.

A connection that the server closes is opened again. The peers run in a separate process, so that
their cost does not delay the measured client.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
from collections import deque
from collections.abc import Callable, Iterator
from ctypes import Array, c_longlong
from dataclasses import dataclass
from typing import Any, Final, cast

import uvloop

_SOURCES: Final = tuple(f"127.0.0.{last}" for last in range(2, 102))
"""Source addresses. One has too few ports, as a closed port stays in TIME_WAIT for a minute."""

FRAMES, CONNECTIONS, ALLOWED = range(3)
"""Indexes into the counters: frames sent; connections opened; current limit of frames, which the
other process sets."""

_PAUSE_S: Final = 0.05
"""Interval between checks of the limit."""

_CATCH_UP_S: Final = 0.1
"""Maximum delay that a peer makes up for by sending faster."""

SPAWNED: Final = multiprocessing.get_context("spawn")
"""Start method of the peers' process; a forked one would share the event loop of its parent."""

Counts = Array[c_longlong]
Write = tuple[bytes, int]
"""Bytes of one write, and the number of frames that they count as."""


@dataclass(frozen=True)
class Attack:
    """Traffic of the peers, and its targets.

    Attributes:
        addresses: addresses of the servers, assigned to the peers in turn.
        conversation: returns what one connection sends; the connection ends afterwards.
        idle_max: connections that stay open at their end; for one more the oldest is aborted.
            Connections are aborted at once if it is 0, like those of a client that crashes.
        unread_share: share of connections whose peer reads nothing.
    """

    addresses: list[tuple[str, int]]
    conversation: Callable[[random.Random], Iterator[Write]]
    idle_max: int = 0
    unread_share: float = 0.0


def counters() -> Counts:
    """Return the shared counters of `run`; only one process increments each of them."""
    return SPAWNED.RawArray(c_longlong, 3)


def run(attack: Attack, peers: int, frames: int, rate: int, seed: int, counts: Counts) -> None:
    """Send the frames, and return.

    Args:
        attack: the traffic; it must be picklable.
        peers: number of connections that send at the same time.
        frames: total number of frames.
        rate: maximum number of frames per second.
        seed: seed of the random choices.
        counts: see `counters`.
    """
    uvloop.run(_run(attack, peers, frames, rate, seed, counts))


async def _run(
    attack: Attack, peers: int, frames: int, rate: int, seed: int, counts: Counts
) -> None:
    dice = random.Random(seed)
    sources = itertools.cycle(_SOURCES)
    loop = asyncio.get_running_loop()
    idle: deque[_Peer] = deque()

    async def peer(address: tuple[str, int]) -> None:
        due_s = loop.time()
        size = 0
        while counts[FRAMES] < frames:
            client = await _connect(address, next(sources), counts)
            if dice.random() < attack.unread_share:
                client.transport.pause_reading()
            for data, size_of_write in attack.conversation(dice):
                due_s = max(due_s + size * peers / rate, loop.time() - _CATCH_UP_S)
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                while counts[FRAMES] >= counts[ALLOWED]:
                    await asyncio.sleep(_PAUSE_S)
                    if counts[FRAMES] >= frames:
                        return
                if client.is_closed:
                    break
                size = size_of_write
                counts[FRAMES] += size
                client.transport.write(data)
            idle.append(client)
            while len(idle) > attack.idle_max:
                idle.popleft().transport.abort()

    async with asyncio.TaskGroup() as group:
        for number in range(peers):
            group.create_task(peer(attack.addresses[number % len(attack.addresses)]))


class _Peer(asyncio.Protocol):
    """One connection that ignores all answers."""

    def __init__(self) -> None:
        self.is_closed = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_closed = True


async def _connect(address: tuple[str, int], source: str, counts: Counts) -> _Peer:
    host, port = address
    made: tuple[Any, _Peer] = await asyncio.get_running_loop().create_connection(
        _Peer, host, port, local_addr=(source, 0)
    )
    counts[CONNECTIONS] += 1
    return made[1]
