"""Measures the delays of a broker's event loop while consumers read data that is not in memory.

    python -m bench.cold_reads [--messages N] [--seconds S] [--directory PATH]

Fills a broker with 1 KB messages, stops it, drops its files from the page cache, and starts it
again in this process. Then one client sends to another topic, first alone, then while eight others
pull the cold messages. A timer of one millisecond on the loop measures the delays.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bench import load_generator
from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.server import Broker
from kourou.disk import OsDisk
from kourou.remoting.network import format_address
from kourou.remoting.runtime import Runtime

COLD_TOPIC = "bench-cold"
HOT_TOPIC = "bench-hot"
TICK_S = 0.001


class Ticker:
    """Measures the delay of a timer of one millisecond on the event loop.

    A delay is caused by work of the loop, by a wait for a processor, or by a blocking call, which
    on an event loop can only be the disk. The time blocked by the disk is the delay without the run
    time and the processor waits that the kernel reports for the thread.
    """

    def __init__(self) -> None:
        self._late_ms: list[float] = []
        self._blocked_ms: list[float] = []
        self._at_ns = self._busy_ns = 0
        self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def begin(self) -> None:
        """Start to measure, until the loop ends."""
        self._late_ms, self._blocked_ms = [], []
        self._at_ns, self._busy_ns = time.monotonic_ns(), self._read_busy_ns()
        asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _read_busy_ns(self) -> int:
        """Return the time for which this thread ran or waited for a processor."""
        ran, waited, _ = os.pread(self._schedstat, 100, 0).split()
        return int(ran) + int(waited)

    def _tick(self) -> None:
        at_ns, busy_ns = time.monotonic_ns(), self._read_busy_ns()
        late_ns = at_ns - self._at_ns - TICK_S * 1e9
        self._late_ms.append(late_ns / 1e6)
        self._blocked_ms.append((late_ns - (busy_ns - self._busy_ns)) / 1e6)
        self._at_ns, self._busy_ns = at_ns, busy_ns
        asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def summary(self) -> str:
        """Return median, p99.9 and maximum as text, and reset them."""
        late_ms, blocked_ms = sorted(self._late_ms), sorted(self._blocked_ms)
        self._late_ms, self._blocked_ms = [], []
        rare = len(late_ms) * 999 // 1000
        return (
            f"{late_ms[len(late_ms) // 2]:8.2f} {late_ms[rare]:8.2f} {late_ms[-1]:8.2f}"
            f"{blocked_ms[rare]:12.2f} {blocked_ms[-1]:8.2f}"
        )


@asynccontextmanager
async def broker_on(directory: Path) -> AsyncIterator[str]:
    """Run a broker on this event loop; yield its address."""
    config = BrokerConfig(port=0, vip_port_enable=False, flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    disk = OsDisk(directory)
    broker = Broker(config, disk, Runtime.system())
    address = await broker.start()
    try:
        yield format_address(address)
    finally:
        await broker.stop()
        disk.close()


async def generate(mode: str, address: str, topic: str, **flags: object) -> dict[str, float]:
    """Run the load generator as a child process; return its report."""
    words = [
        f"-{name}={value}" for name, value in {"addr": address, "topic": topic, **flags}.items()
    ]
    process = await asyncio.create_subprocess_exec(
        str(load_generator.BINARY), mode, *words, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    report: dict[str, float] = json.loads(output.splitlines()[-1])
    return report


def forget(directory: Path) -> int:
    """Drop all files of the store from the page cache; return their size in bytes."""
    size = 0
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(fd).st_blocks * 512
            os.close(fd)
    return size


async def measure(directory: Path, messages: int, seconds: int) -> None:
    """Fill a store, drop it from the page cache, read it, and print the delays of the loop."""
    async with broker_on(directory) as address:
        await generate("send", address, COLD_TOPIC, conns=32, window=4, size=1024, count=messages)
    print(f"{forget(directory) / 2**20:.0f} MiB dropped from the page cache")
    ticker = Ticker()
    print(f"{'':36}{'late, ms':^26}{'blocked by the disk, ms':>24}")
    print(f"{'':36}{'median':>8} {'p99.9':>8} {'longest':>8}{'p99.9':>12} {'longest':>8}")
    async with broker_on(directory) as address:
        ticker.begin()
        send = {"conns": 8, "window": 1, "size": 1024, "dur": f"{seconds}s"}
        await generate("send", address, HOT_TOPIC, **send)
        print(f"{'sends alone':36}{ticker.summary()}")
        _, pulled = await asyncio.gather(
            generate("send", address, HOT_TOPIC, **send),
            generate("pull", address, COLD_TOPIC, conns=8, window=1, dur=f"{seconds}s"),
        )
        print(f"{'sends beside pulls of cold messages':36}{ticker.summary()}")
        print(f"{pulled['msgs_per_s']:,.0f} messages/s pulled")


def main() -> None:
    """Measure in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="parent directory of the store")
    arguments = parser.parse_args()
    load_generator.build()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        uvloop.run(measure(Path(directory), arguments.messages, arguments.seconds))


if __name__ == "__main__":
    main()
