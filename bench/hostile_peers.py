"""Peers that send mutated requests of Java's, each from its own connection, at a given pace.

What they send is made of the recorded requests; most frames get the size that fits them, so that
they come further than the first check. A connection that the server closes is made anew. They run
in a process of their own: what they cost is not to delay the client that is measured.
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
"""After so many it hangs up by itself, as a client that crashes does."""

_EXCLUDED: Final = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG}
"""These may rightly switch off what the healthy client does."""

_SOURCES: Final = tuple(f"127.0.0.{last}" for last in range(2, 102))
"""Addresses to connect from: one has too few ports, each of which rests a minute."""

_SIZED: Final = 0.9
"""Share of frames whose size is set right."""

FRAMES, CONNECTIONS, ALLOWED = range(3)
"""Frames sent; connections made; frames that may be sent by now, which the other process sets."""

_PAUSE_S: Final = 0.05
"""Between two looks whether more may be sent."""

_CATCH_UP_S: Final = 0.1
"""Who is late by more sends on from now at its pace; the rest of its delay is forgotten."""

SPAWNED: Final = multiprocessing.get_context("spawn")
"""How the peers' process is made: a forked one would share the event loop of its parent."""

Counts = Array[c_longlong]


def counters() -> Counts:
    """Return what `run` counts in, to be read by another process; one process counts."""
    return SPAWNED.RawArray(c_longlong, 3)


def run(
    addresses: list[tuple[str, int]],
    peers: int,
    frames: int,
    rate: int,
    seed: int,
    counts: Counts,
) -> None:
    """Send the frames and return.

    Args:
        addresses: of the servers, taken in turn.
        peers: connections at once.
        frames: how many all of them send.
        rate: how many a second, at most.
        seed: decides what is sent.
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
    """One connection; whatever comes is ignored."""

    def __init__(self) -> None:
        self.is_closed = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whatever it is
        self.is_closed = True


async def _connect(address: tuple[str, int], source: str, counts: Counts) -> _Peer:
    host, port = address
    made: tuple[Any, _Peer] = await asyncio.get_running_loop().create_connection(
        _Peer, host, port, local_addr=(source, 0)
    )
    counts[CONNECTIONS] += 1
    return made[1]


def _frame(dice: random.Random, seeds: list[bytes]) -> bytes:
    """Return one frame, or what may pass for one."""
    data = mutate(dice, seeds)
    if len(data) > 4 and dice.random() < _SIZED:
        return (len(data) - 4).to_bytes(4, "big") + data[4:]
    return data
