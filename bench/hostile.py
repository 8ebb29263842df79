"""Measures the effect of peers that send garbage on a healthy client and on the server's memory.

    python -m bench.hostile [--frames N] [--rate N] [--peers N] [--rounds N] [--alone S] [--seed N]

Runs a real `kourou serve` with its default options. A healthy client sends and pulls at a constant
rate, in rounds: first alone for some seconds, then while peers send mutated requests to broker and
name server. Other load of the machine changes slowly, so the two halves of a round are comparable.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop
from rich.console import Console
from rich.table import Table

from bench import hostile_peers
from kourou.client.config import ProducerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.sending.producer import Producer
from kourou.disk import OsDisk
from kourou.model.message import Message
from kourou.remoting.network import parse_address
from kourou.store.tools.check import check_store
from kourou.testing.process import Serving

GROWTH_MAX_MIB: Final = 16.0
PAUSE_S: Final = 0.01
"""Pause between two exchanges of the healthy client."""

PATIENT: Final = ProducerConfig(send_timeout_ms=60_000)
"""Long timeout, so that slow requests count as latency and not as failures."""

TOPIC: Final = "healthy"
BODY: Final = bytes(1024)


@dataclass
class Period:
    """One period of a round: the latencies of the healthy client in ms.

    Attributes:
        frames: total number of frames that the peers have sent at its end.
        memory_mib: memory of the server at its end.
    """

    send_ms: list[float] = field(default_factory=list)
    pull_ms: list[float] = field(default_factory=list)
    frames: int = 0
    memory_mib: float = 0.0

    def p99(self) -> float:
        """Return the higher of the p99 latencies of sends and of pulls."""
        return max(_p99(self.send_ms), _p99(self.pull_ms))

    def cells(self) -> list[float]:
        """Return median and p99 of sends, and of pulls."""
        sends, pulls = self.send_ms, self.pull_ms
        return [statistics.median(sends), _p99(sends), statistics.median(pulls), _p99(pulls)]


class Healthy:
    """The client with valid requests."""

    def __init__(self, producer: Producer, consumer: PullConsumer) -> None:
        self._producer = producer
        self._consumer = consumer

    async def exchange(self, period: Period) -> None:
        """Send a message, pull it, and record both latencies."""
        began_s = time.perf_counter()  # the loop's clock has a resolution of milliseconds
        receipt = await self._producer.send(Message(TOPIC, BODY))
        sent_s = time.perf_counter()
        pulled = await self._consumer.pull(receipt.queue, receipt.queue_offset)
        period.send_ms.append((sent_s - began_s) * 1000)
        period.pull_ms.append((time.perf_counter() - sent_s) * 1000)
        assert pulled.messages[0].msg_id == receipt.msg_id, "another message is at the offset"

    async def during(self, period: Period, seconds: float) -> None:
        """Repeat exchanges for `seconds`."""
        ends_at_s = time.perf_counter() + seconds
        while time.perf_counter() < ends_at_s:
            await self.exchange(period)
            await asyncio.sleep(PAUSE_S)


@dataclass(frozen=True)
class Round:
    """The period of the client alone, and the period with garbage."""

    alone: Period
    with_garbage: Period


async def measure(serving: Serving, arguments: argparse.Namespace) -> list[Round]:
    """Return the rounds with the latencies of the client."""
    counts = hostile_peers.counters()
    addresses = [parse_address(serving.broker)] * 3 + [parse_address(serving.namesrv)]
    attack = hostile_peers.SPAWNED.Process(
        target=hostile_peers.run,
        args=(
            addresses,
            arguments.peers,
            arguments.frames,
            arguments.rate,
            arguments.seed,
            counts,
        ),
        daemon=True,
    )
    attack.start()
    rounds = []
    async with (
        Producer("healthy-producers", serving.namesrv, config=PATIENT) as producer,
        PullConsumer("healthy-readers", serving.namesrv) as consumer,
    ):
        healthy = Healthy(producer, consumer)
        while counts[hostile_peers.CONNECTIONS] < arguments.peers:
            await healthy.during(Period(), 0.5)  # the peers are starting
            assert attack.exitcode is None, "the peers could not start"
        for number in range(1, arguments.rounds + 1):
            alone, with_garbage = Period(), Period()
            await healthy.during(alone, arguments.alone)
            counts[hostile_peers.ALLOWED] = arguments.frames * number // arguments.rounds
            while counts[hostile_peers.FRAMES] < counts[hostile_peers.ALLOWED]:
                await healthy.during(with_garbage, 0.2)
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
    columns = ("send p50", "send p99", "pull p50", "pull p99", "with garbage", "", "", "ms")
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
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=2_000, help="frames per second")
    parser.add_argument("--peers", type=int, default=16, help="number of connections")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--alone", type=float, default=5.0, help="seconds without garbage per round"
    )
    parser.add_argument("--ratio", type=float, default=2.0, help="limit of the ratios of p99")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "store"
        config = Path(directory) / "broker.conf"
        # Other names than the recorded broker's: some requests unregister a broker by its name.
        config.write_text("brokerName=measured\nbrokerClusterName=measured\n")
        options = ("--config", str(config), "--log-level", "error")
        with Serving.start(store, *options) as serving:
            rounds = uvloop.run(measure(serving, arguments))
            _show(rounds)
            outcome = serving.stop()
        faults = judge(rounds, arguments.ratio)
        with contextlib.closing(OsDisk(store)) as disk:
            faults += map(str, check_store(disk).findings)
    faults += [json.loads(line)["event"] for line in outcome.err.splitlines()]
    if outcome.code:
        faults.append(f"the server exited with {outcome.code}")
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
