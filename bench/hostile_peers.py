"""Peers that send mutated Java requests at a given rate, each on its own connection.

The frames are mutations of recorded requests. Most of them get a correct size field, so that they
pass the first check. A connection that the server closes is opened again. The peers run in a
separate process, so that their cost does not delay the measured client.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
from ctypes import Array, c_longlong
from typing import Any, Final, cast

import uvloop

from kourou.protocol.codes import RequestCode
from tests.fuzz.mutate import mutate
from tests.golden_exchanges import exchanges

FRAMES_A_CONNECTION: Final = 50
"""Number of frames after which a peer aborts its connection, like a client that crashes."""

_EXCLUDED: Final = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG}
"""Requests whose valid mutations may disable features that the healthy client uses."""

_SOURCES: Final = tuple(f"127.0.0.{last}" for last in range(2, 102))
"""Source addresses. One has too few ports, as a closed port stays in TIME_WAIT for a minute."""

_SIZED: Final = 0.9
"""Share of frames with a corrected size field."""

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


def counters() -> Counts:
    """Return the shared counters of `run`; only one process increments each of them."""
    return SPAWNED.RawArray(c_longlong, 3)


def run(
    addresses: list[tuple[str, int]],
    peers: int,
    frames: int,
    rate: int,
    seed: int,
    counts: Counts,
) -> None:
    """Send the frames, and return.

    Args:
        addresses: addresses of the servers, assigned to the peers in turn.
        peers: number of connections.
        frames: total number of frames.
        rate: maximum number of frames per second.
        seed: seed of the mutations.
        counts: see `counters`.
    """
    uvloop.run(_run(addresses, peers, frames, rate, seed, counts))


async def _run(
    addresses: list[tuple[str, int]],
    peers: int,
    frames: int,
    rate: int,
    seed: int,
    counts: Counts,
) -> None:
    dice = random.Random(seed)
    seeds = [
        exchange.request.frame
        for exchange in exchanges().values()
        if exchange.code not in _EXCLUDED
    ]
    sources = itertools.cycle(_SOURCES)
    loop = asyncio.get_running_loop()

    async def peer(address: tuple[str, int]) -> None:
        due_s = loop.time()
        while counts[FRAMES] < frames:
            client = await _connect(address, next(sources), counts)
            for _ in range(FRAMES_A_CONNECTION):
                due_s = max(due_s + peers / rate, loop.time() - _CATCH_UP_S)
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                while counts[FRAMES] >= counts[ALLOWED]:
                    await asyncio.sleep(_PAUSE_S)
                    if counts[FRAMES] >= frames:
                        return
                if client.is_closed:
                    break
                counts[FRAMES] += 1
                client.transport.write(_frame(dice, seeds))
            client.transport.abort()

    async with asyncio.TaskGroup() as group:
        for number in range(peers):
            group.create_task(peer(addresses[number % len(addresses)]))


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


def _frame(dice: random.Random, seeds: list[bytes]) -> bytes:
    """Return one mutated frame."""
    data = mutate(dice, seeds)
    if len(data) > 4 and dice.random() < _SIZED:
        return (len(data) - 4).to_bytes(4, "big") + data[4:]
    return data
