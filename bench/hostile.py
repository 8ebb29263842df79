"""Does a client notice that others send garbage, and does the server remember it?

    python -m bench.hostile [--frames N] [--rate N] [--peers N] [--rounds N] [--alone S] [--seed N]

A real `kourou serve` with its default options. A healthy client sends and pulls at a steady pace,
in rounds: alone for some seconds, then while peers send mutated requests to broker and name server.
What else the machine does changes slowly, so that the two halves of a round can be compared. Prints
the client's latencies and the server's memory in each; the exit code is 1 if

- its p99, by the median round, is beside the garbage over `--ratio` times that alone, or in the
  later half of the rounds, alone, over `--ratio` times that of the earlier;
- memory grew by more than `GROWTH_MAX_MIB` over the later half of the rounds;
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
"""Between two exchanges of the healthy client."""

PATIENT: Final = ProducerConfig(send_timeout_ms=60_000)
"""What takes long is judged as that, not as a failed request."""

TOPIC: Final = "healthy"
BODY: Final = bytes(1024)


@dataclass
class Period:
    """A stretch of time: what the healthy client waited in ms.

    Attributes:
        frames: of the peers, sent by its end.
        memory_mib: of the server, at its end.
    """

    send_ms: list[float] = field(default_factory=list)
    pull_ms: list[float] = field(default_factory=list)
    frames: int = 0
    memory_mib: float = 0.0

    def p99(self) -> float:
        """Return the latency that one exchange in a hundred exceeds, a send or a pull."""
        return max(_p99(self.send_ms), _p99(self.pull_ms))

    def cells(self) -> list[float]:
        """Return median and p99 of sends, and of pulls."""
        sends, pulls = self.send_ms, self.pull_ms
        return [statistics.median(sends), _p99(sends), statistics.median(pulls), _p99(pulls)]


class Healthy:
    """The client that does nothing wrong."""

    def __init__(self, producer: Producer, consumer: PullConsumer) -> None:
        self._producer = producer
        self._consumer = consumer

    async def exchange(self, period: Period) -> None:
        """Send a message, pull it, and note how long each took."""
        began_s = time.perf_counter()  # the loop's clock counts milliseconds
        receipt = await self._producer.send(Message(TOPIC, BODY))
        sent_s = time.perf_counter()
        pulled = await self._consumer.pull(receipt.queue, receipt.queue_offset)
        period.send_ms.append((sent_s - began_s) * 1000)
        period.pull_ms.append((time.perf_counter() - sent_s) * 1000)
        assert pulled.messages[0].msg_id == receipt.msg_id, "the message is not where it was put"

    async def during(self, period: Period, seconds: float) -> None:
        """Go on for so long."""
        ends_at_s = time.perf_counter() + seconds
        while time.perf_counter() < ends_at_s:
            await self.exchange(period)
            await asyncio.sleep(PAUSE_S)


@dataclass(frozen=True)
class Round:
    """The client alone, and then beside the garbage."""

    alone: Period
    beside: Period


async def measure(serving: Serving, arguments: argparse.Namespace) -> list[Round]:
    """Return what the client saw in each round."""
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
            alone, beside = Period(), Period()
            await healthy.during(alone, arguments.alone)
            counts[hostile_peers.ALLOWED] = arguments.frames * number // arguments.rounds
            while counts[hostile_peers.FRAMES] < counts[hostile_peers.ALLOWED]:
                await healthy.during(beside, 0.2)
                assert attack.exitcode in (None, 0), "the peers ended early"
            beside.frames = counts[hostile_peers.FRAMES]
            beside.memory_mib = _memory_mib(serving.process.pid)
            rounds.append(Round(alone, beside))
            _say(
                f"{beside.frames:,} frames: p99 {alone.p99():.2f} ms alone, "
                f"{beside.p99():.2f} ms beside them, {beside.memory_mib:.1f} MiB"
            )
    attack.join()
    _say(
        f"{counts[hostile_peers.FRAMES]:,} frames on {counts[hostile_peers.CONNECTIONS]:,} "
        f"connections, seed {arguments.seed}"
    )
    return rounds


def judge(rounds: list[Round], ratio_max: float) -> list[str]:
    """Return what is not as it should be."""
    middle = len(rounds) // 2
    alone = [each.alone.p99() for each in rounds]
    beside = [each.beside.p99() for each in rounds]
    faults = []
    for name, these, those in (
        ("beside the garbage, to alone", beside, alone),
        ("alone, the later rounds to the earlier", alone[middle:], alone[:middle]),
    ):
        ratio = statistics.median(these) / statistics.median(those)
        _say(f"p99 {name}: {ratio:.2f}")
        if ratio > ratio_max:
            faults.append(f"p99 {name}: {ratio:.2f}, at most {ratio_max}")
    half_mib, end_mib = rounds[middle].beside.memory_mib, rounds[-1].beside.memory_mib
    _say(f"memory: {half_mib:.1f} MiB half way, {end_mib:.1f} MiB at the end")
    if end_mib - half_mib > GROWTH_MAX_MIB:
        faults.append(f"memory grew by {end_mib - half_mib:.1f} MiB")
    return faults


def _show(rounds: list[Round]) -> None:
    table = Table()
    columns = ("send p50", "send p99", "pull p50", "pull p99", "beside", "", "", "ms")
    for column in ("frames", *columns, "RssAnon, MiB"):
        table.add_column(column, justify="right")
    for each in rounds:
        cells = [*each.alone.cells(), *each.beside.cells()]
        memory = f"{each.beside.memory_mib:.1f}"
        table.add_row(f"{each.beside.frames:,}", *(f"{cell:.2f}" for cell in cells), memory)
    Console(width=120).print(table)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else values[0]


def _memory_mib(pid: int) -> float:
    """Return the anonymous resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel tells no RssAnon")


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=2_000, help="frames a second")
    parser.add_argument("--peers", type=int, default=16, help="connections at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--alone", type=float, default=5.0, help="seconds, in each round")
    parser.add_argument("--ratio", type=float, default=2.0, help="of the p99, at most")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory) / "store"
        config = Path(directory) / "broker.conf"
        # Not those of the recorded broker: some requests rightly take it out of the routes.
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
        faults.append(f"the server ended with {outcome.code}")
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
