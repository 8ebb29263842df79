"""Measures the effect of peers that send garbage on a healthy client and on the server's memory.

    python -m bench.hostile [--port remoting|grpc] [--frames N] [--rate N] [--peers N] [--rounds N]
                            [--alone S] [--seed N]

Runs a real `kourou serve` with its default options. A healthy client sends and reads at a constant
rate, in rounds: first alone for some seconds, then while peers send garbage: mutated requests to
broker and name server (`bench.hostile_frames`), or all kinds of it to the port for gRPC clients
(`bench.hostile_calls`). Other load of the machine changes slowly, so the two halves of a round are
comparable.
Prints the client's latencies and the server's memory of each round. The exit code is 1 if

- the median p99 with garbage exceeds `--ratio` times the median p99 alone, or the median p99 alone
  in the later half of the rounds exceeds `--ratio` times that in the earlier half;
- memory grew by more than `GROWTH_MAX_MIB` in the later half of the rounds;
- the server logged an error, a request of the client failed, or the store is damaged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import uvloop
from rich.console import Console
from rich.table import Table

from bench import hostile_calls, hostile_frames, hostile_peers
from bench.hostile_healthy import Healthy, grpc_client, remoting_client
from bench.hostile_peers import Attack
from kourou.disk import OsDisk
from kourou.remoting.network import parse_address
from kourou.store.tools.check import check_store
from kourou.testing.process import Serving

GIVEN_UP: Final = "transaction.given_up"
"""The only error in the log that is none of the server's: the peers end no transaction."""
GROWTH_MAX_MIB: Final = 16.0
SETTLE_S: Final = 2.0
"""Time for the rest of the garbage, before the client runs alone."""
PAUSE_S: Final = 0.01
"""Pause between two exchanges of the healthy client."""


@dataclass
class Period:
    """One period of a round: the latencies of the healthy client in ms.

    Attributes:
        frames: total number of frames that the peers have sent at its end.
        memory_mib: memory of the server at its end.
    """

    send_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    frames: int = 0
    memory_mib: float = 0.0

    def p99(self) -> float:
        """Return the higher of the p99 latencies of sends and of reads."""
        return max(_p99(self.send_ms), _p99(self.read_ms))

    def cells(self) -> list[float]:
        """Return median and p99 of sends, and of reads."""
        sends, reads = self.send_ms, self.read_ms
        return [statistics.median(sends), _p99(sends), statistics.median(reads), _p99(reads)]


@dataclass(frozen=True)
class Round:
    """The period of the client alone, and the period with garbage."""

    alone: Period
    with_garbage: Period


@dataclass(frozen=True)
class Port:
    """A kind of ports, its healthy client and its hostile peers.

    Attributes:
        open_client: runs the client.
        attack: returns what the peers do.
        broker: name of the broker. Some recorded remoting requests unregister their broker.
        rate: frames per second. Many of those by gRPC cost several requests to the broker.
    """

    open_client: Callable[[Serving], AbstractAsyncContextManager[Healthy]]
    attack: Callable[[Serving], Attack]
    broker: str = "measured"
    rate: int = 2_000


def _remoting_attack(serving: Serving) -> Attack:
    addresses = [parse_address(serving.broker)] * 3 + [parse_address(serving.namesrv)]
    return Attack(addresses, hostile_frames.conversation)


def _grpc_attack(serving: Serving) -> Attack:
    address = parse_address(serving.grpc)
    return Attack([address], hostile_calls.conversation, idle_max=256, unread_share=0.1)


PORTS: Final = {
    "remoting": Port(remoting_client, _remoting_attack),
    "grpc": Port(
        partial(grpc_client, topics=hostile_calls.TOPICS),
        _grpc_attack,
        hostile_calls.BROKER,
        rate=1_000,
    ),
}


async def _during(healthy: Healthy, period: Period, seconds: float) -> None:
    """Repeat exchanges for `seconds`, and record their latencies."""
    ends_at_s = time.perf_counter() + seconds
    while time.perf_counter() < ends_at_s:
        send_s, read_s = await healthy.exchange()
        period.send_ms.append(send_s * 1000)
        period.read_ms.append(read_s * 1000)
        await asyncio.sleep(PAUSE_S)


async def measure(serving: Serving, port: Port, arguments: argparse.Namespace) -> list[Round]:
    """Return the rounds with the latencies of the client."""
    counts = hostile_peers.counters()
    terms = (
        arguments.peers,
        arguments.frames,
        arguments.rate or port.rate,
        arguments.seed,
        counts,
    )
    attack = hostile_peers.SPAWNED.Process(
        target=hostile_peers.run, args=(port.attack(serving), *terms), daemon=True
    )
    rounds = []
    async with port.open_client(serving) as healthy:
        attack.start()
        while counts[hostile_peers.CONNECTIONS] < arguments.peers:
            await _during(healthy, Period(), 0.5)  # the peers are starting
            assert attack.exitcode is None, "the peers could not start"
        for number in range(1, arguments.rounds + 1):
            alone, with_garbage = Period(), Period()
            await _during(healthy, Period(), SETTLE_S)
            await _during(healthy, alone, arguments.alone)
            counts[hostile_peers.ALLOWED] = arguments.frames * number // arguments.rounds
            while True:
                await _during(healthy, with_garbage, 0.2)
                if counts[hostile_peers.FRAMES] >= counts[hostile_peers.ALLOWED]:
                    break
                assert attack.exitcode in (None, 0), "the peers ended early"
            with_garbage.frames = counts[hostile_peers.FRAMES]
            with_garbage.memory_mib = _memory_mib(serving.process.pid)
            rounds.append(Round(alone, with_garbage))
            _print(
                f"{with_garbage.frames:,} frames: p99 {alone.p99():.2f} ms alone, "
                f"{with_garbage.p99():.2f} ms with garbage, {with_garbage.memory_mib:.1f} MiB"
            )
    attack.join()
    _print(
        f"{counts[hostile_peers.FRAMES]:,} frames on {counts[hostile_peers.CONNECTIONS]:,} "
        f"connections, seed {arguments.seed}"
    )
    return rounds


def judge(rounds: list[Round], ratio_max: float) -> list[str]:
    """Return the violated limits as texts."""
    middle = len(rounds) // 2
    alone = [each.alone.p99() for each in rounds]
    with_garbage = [each.with_garbage.p99() for each in rounds]
    faults = []
    for name, current, reference in (
        ("with garbage, relative to alone", with_garbage, alone),
        ("alone, later rounds relative to earlier", alone[middle:], alone[:middle]),
    ):
        ratio = statistics.median(current) / statistics.median(reference)
        _print(f"p99 {name}: {ratio:.2f}")
        if ratio > ratio_max:
            faults.append(f"p99 {name}: {ratio:.2f}, limit {ratio_max}")
    half_mib, end_mib = rounds[middle].with_garbage.memory_mib, rounds[-1].with_garbage.memory_mib
    _print(f"memory: {half_mib:.1f} MiB in the middle, {end_mib:.1f} MiB at the end")
    if end_mib - half_mib > GROWTH_MAX_MIB:
        faults.append(f"memory grew by {end_mib - half_mib:.1f} MiB")
    return faults


def _show(rounds: list[Round]) -> None:
    table = Table()
    columns = ("send p50", "send p99", "read p50", "read p99", "with garbage", "", "", "ms")
    for column in ("frames", *columns, "RssAnon, MiB"):
        table.add_column(column, justify="right")
    for each in rounds:
        cells = [*each.alone.cells(), *each.with_garbage.cells()]
        memory = f"{each.with_garbage.memory_mib:.1f}"
        table.add_row(f"{each.with_garbage.frames:,}", *(f"{cell:.2f}" for cell in cells), memory)
    Console(width=120).print(table)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else values[0]


def _memory_mib(pid: int) -> float:
    """Return the anonymous resident memory of a process, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel reports no RssAnon")


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--port", choices=tuple(PORTS), default="remoting")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument(
        "--rate", type=int, help="frames per second  [default: 2000; 1000 for gRPC]"
    )
    parser.add_argument("--peers", type=int, default=16, help="number of connections")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--alone", type=float, default=5.0, help="seconds without garbage per round"
    )
    parser.add_argument("--ratio", type=float, default=2.0, help="limit of the ratios of p99")
    arguments = parser.parse_args()
    port = PORTS[arguments.port]
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "store"
        config = Path(directory) / "broker.conf"
        config.write_text(f"brokerName={port.broker}\nbrokerClusterName=measured\n")
        options = ("--config", str(config), "--log-level", "error")
        with Serving.start(store, *options, grpc=arguments.port == "grpc") as serving:
            rounds = uvloop.run(measure(serving, port, arguments))
            _show(rounds)
            outcome = serving.stop()
        faults = judge(rounds, arguments.ratio)
        with contextlib.closing(OsDisk(store)) as disk:
            faults += map(str, check_store(disk).findings)
    events = [json.loads(line)["event"] for line in outcome.err.splitlines()]
    faults += [event for event in events if event != GIVEN_UP]
    if outcome.code:
        faults.append(f"the server exited with {outcome.code}")
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
