"""Finds the causes of tail latency (one message in a thousand).

    python -m bench.latency_tail [--rate 1000] [--seconds 60] [--limit-ms 2] [--flush sync]
                                 [--set name=value ...] [--dir DIR]

Runs a name server and a broker on one asyncio loop in this process, whose callbacks can be timed
(uvloop's cannot), and `mqload e2e` as a child process: a producer at a constant rate and a consumer
with held pulls. Prints the latencies, and all events that took longer than the limit, by kind: a
callback of the loop, a sync, a garbage collection. "CPU" is the CPU time of the thread in the
longest of them; if it is much less than the elapsed time, other programs used the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import os
import tempfile
import time
from asyncio import events
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import load_generator
from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.server import Broker
from kourou.broker.writing.flusher import SyncEnded
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.cli.process import limit_gc_pauses
from kourou.disk import OsDisk
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.remoting.network import format_address
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig
from kourou.store.sync_plan import SyncPlan
from kourou.store.writer import StoreWriter

_PERCENTILES: Final = ("p50", "p90", "p99", "p999", "max")


class Slow:
    """Events that took longer than the limit, by name."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began_s = time.perf_counter()
        self._found: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
        self.total = 0

    def note(self, name: str, began_s: float, cpu_s: float) -> None:
        """Record an event that began at `began_s` if it took longer than the limit."""
        took_s = time.perf_counter() - began_s
        self.total += 1
        if took_s > self._limit_s:
            self._found[name].append((took_s, cpu_s, began_s - self._began_s))

    def table(self) -> Table:
        """Return a table of the events, those with the longest total time first."""
        table = Table("times", "ms in all", "longest", "its CPU", "at, s", "what")
        order = sorted(self._found.items(), key=lambda item: -sum(took for took, *_ in item[1]))
        for name, found in order:
            longest, cpu_s, at_s = max(found)
            total_ms = sum(took for took, *_ in found) * 1000
            cells = f"{len(found)}", f"{total_ms:.1f}", f"{longest * 1000:.1f}"
            table.add_row(*cells, f"{cpu_s * 1000:.1f}", f"{at_s:.1f}", name)
        return table


def watch_loop(slow: Slow) -> None:
    """Measure each callback of every asyncio loop in this process from now on."""
    run = events.Handle._run  # noqa: SLF001  # the loop calls it for each callback

    def timed(handle: events.Handle) -> None:
        name = _callback_name(handle)
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        run(handle)
        slow.note(name, began_s, time.thread_time() - cpu_s)

    setattr(events.Handle, "_run", timed)  # noqa: B010  # mypy rejects the assignment of a method


def _callback_name(handle: events.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', owner)}"
    return str(getattr(callback, "__qualname__", callback))


def watch_collector(slow: Slow) -> None:
    """Measure each garbage collection from now on."""
    began: list[tuple[float, float]] = []

    def on_phase(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            began.append((time.perf_counter(), time.thread_time()))
        elif began:
            began_s, cpu_s = began.pop()
            slow.note(f"gc {info['generation']}", began_s, time.thread_time() - cpu_s)

    gc.callbacks.append(on_phase)


class WatchedFlusher(KernelFlusher):
    """Flusher that measures each sync, from its start to its callback on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slow: Slow) -> None:
        super().__init__(loop)
        self._slow = slow

    def sync(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        super().sync(writer, plan, self._watched("sync", done))

    def sync_queues(self, writer: StoreWriter, plan: SyncPlan, done: SyncEnded) -> None:
        name = f"sync of {len(plan.queue_files)} queue files"
        super().sync_queues(writer, plan, self._watched(name, done))

    def _watched(self, name: str, done: SyncEnded) -> SyncEnded:
        began_s = time.perf_counter()

        def ended(error: Exception | None) -> None:
            self._slow.note(name, began_s, 0)
            done(error)

        return ended


async def _measure(arguments: argparse.Namespace, root: Path) -> tuple[dict[str, Any], Slow]:
    runtime, disk = Runtime.system(), OsDisk(root)
    namesrv = NameServer(NamesrvConfig(port=0), runtime, disk)
    address = format_address(await namesrv.start())
    settings = {name: value == "true" for name, value in arguments.set}
    config = BrokerConfig(
        port=0,
        namesrv_addr=(address,),
        flush_disk_type=FlushDiskType[f"{arguments.flush.upper()}_FLUSH"],
        store=replace(StoreConfig(), **settings),
    )
    slow = Slow(arguments.limit_ms / 1000)
    broker = Broker(config, disk, runtime, lambda loop: WatchedFlusher(loop, slow))
    await broker.start()
    limit_gc_pauses()
    watch_loop(slow)
    watch_collector(slow)
    try:
        run = functools.partial(
            load_generator.run,
            "e2e",
            addr=format_address(broker.address),
            topic="Tail",
            rate=arguments.rate,
            dur=f"{arguments.seconds}s",
            warm="2s",
            pids=os.getpid(),
        )
        return await asyncio.to_thread(run), slow
    finally:
        await broker.stop()
        await namesrv.stop()
        disk.close()


def _switch(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description="Causes of tail latency.")
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--limit-ms", type=float, default=2)
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument(
        "--set", type=_switch, action="append", default=[], help="a setting of the store"
    )
    arguments = parser.parse_args()
    load_generator.build()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        report, slow = asyncio.run(_measure(arguments, Path(directory)))
    console = Console()
    latencies = Table("latency, ms", *_PERCENTILES)
    for name, key in (("end to end", "lat_us"), ("send acknowledged", "send_ack_us")):
        found = (f"{report[key][at] / 1000:.2f}" for at in _PERCENTILES)
        latencies.add_row(name, *found)
    console.print(latencies)
    console.print(f"{slow.total:,} timed; longer than {arguments.limit_ms:g} ms:")
    console.print(slow.table())
    console.print(
        f"CPU of other programs {report['other_cpu_s']:.2f} s, stolen by the hypervisor"
        f" {report['steal_s']:.2f} s"
    )


if __name__ == "__main__":
    main()
