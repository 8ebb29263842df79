"""Measures the cost of 5,000 topics with 8 queues: memory, open files, flush, retention, restart.

    python -m bench.many_queues [--topics N] [--queues N] [--messages N] [--dir DIR]

Runs the store and its loops in this process, as the broker does, and prints for each step its time
and the longest delay of the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from kourou.broker.components import Components
from kourou.broker.config import BrokerConfig
from kourou.broker.server import FLUSH_PAUSE_MS
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.disk import OsDisk
from kourou.protocol.record.encode import RecordDraft
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.store.paths import COMMITLOG
from kourou.store.retention import RetentionConfig
from kourou.store.state.checkpoint import read_checkpoint

_TICK_S: Final = 0.001
_BATCH: Final = 500
_EXPIRED_S: Final = 4 * 3600


class Lag:
    """Measures the delay of the event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        """Record the longest delay, until cancelled."""
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - before_s - _TICK_S)


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths


class Bench:
    """The steps of the measurement, on one store."""

    def __init__(self, directory: Path, topics: int, queues: int) -> None:
        self.keys = [(f"topic-{t:05d}".encode(), q) for t in range(topics) for q in range(queues)]
        self.directory = directory
        self.disk = OsDisk(directory)
        self.config = BrokerConfig(
            store=StoreConfig(
                commitlog_segment_bytes=8 << 20,
                free_bytes_min=1,
                retention=RetentionConfig(file_reserved_hours=3, delete_files_max=1000),
            )
        )
        self.table = Table("step", "took", "longest stall", "memory", "open files")

    def open(self) -> MessageStore:
        """Open the store, as the broker does."""
        now_ms = time.time_ns() // 1_000_000
        return MessageStore.open(self.disk, self.config.store_config, now_ms, pid=os.getpid())

    async def step(self, name: str, action: Callable[[], Awaitable[object]]) -> None:
        """Run one step, and add a row."""
        lag = Lag()
        watch = asyncio.create_task(lag.watch())
        await asyncio.sleep(0.02)
        lag.longest_s = 0.0
        began_s = time.perf_counter()
        await action()
        took_s = time.perf_counter() - began_s
        await asyncio.sleep(0.02)
        watch.cancel()
        self.table.add_row(
            name,
            f"{took_s * 1000:,.0f} ms",
            f"{lag.longest_s * 1000:,.0f} ms",
            f"{resident_bytes() / 2**20:,.0f} MiB",
            str(open_files()),
        )

    async def run(self, messages: int) -> None:
        """Run all steps."""
        runtime = Runtime.system()
        await self.step("open a new store", lambda: self._start(runtime))
        await self.step("one message per queue", lambda: self._send(1))
        await self.step("flush: all files are new", self._flush)
        await self.step("sync of all queues", self._sync_queues)
        for number in range(messages - 1):
            await self.step(f"message {number + 2} of each queue", lambda: self._send(1))
            await self.step("flush: no file is new", self._flush)
        await self.step("an idle second", self._flush)
        for segment in (self.directory / COMMITLOG).iterdir():
            os.utime(segment, (time.time() - _EXPIRED_S,) * 2)
        self.components.retention.request()
        await self.step("retention of all but 8 MiB", self.components.retention.run)
        await self.step("306: examine all queues", self.components.retention.clean_queues)
        await self.step("stop", self._stop)
        await self.step("start", lambda: self._start(runtime))
        await self.step("kill, and start", self._kill)
        await self._stop()

    async def _start(self, runtime: Runtime) -> None:
        store = await runtime.offload(self.open)
        gc.collect()
        flusher = KernelFlusher(asyncio.get_running_loop())
        self.components = Components(
            self.config, disk=self.disk, runtime=runtime, flusher=flusher, store=store
        )
        self.runtime = runtime

    async def _send(self, rounds: int) -> None:
        commit, now_ms = self.components.context.commit, self.runtime.clock.now_ms
        for _ in range(rounds):
            for at in range(0, len(self.keys), _BATCH):
                drafts = [_draft(*key) for key in self.keys[at : at + _BATCH]]
                await commit.put_and_wait(drafts, now_ms())

    async def _flush(self) -> None:
        while not self.components.context.commit.flush(self.runtime.clock.now_ms()):  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_PAUSE_MS / 1000)

    async def _sync_queues(self) -> None:
        """Run a checkpoint round, as the loop does every minute."""
        later_ms = self.runtime.clock.now_ms() + 10 * self.config.store.queue_sync_interval_ms
        began_at = read_checkpoint(self.disk).java_values.queues_offset
        while read_checkpoint(self.disk).java_values.queues_offset == began_at:
            self.components.context.commit.flush(later_ms)
            await asyncio.sleep(0)

    async def _stop(self) -> None:
        await self.components.context.commit.close()
        await self.runtime.offload(self.components.context.store.close, self.runtime.clock.now_ms())
        self.components.flusher.close()

    async def _kill(self) -> None:
        self.components.context.commit.abandon()
        self.components.flusher.close()
        self.components.context.store.abandon()
        await self._start(self.runtime)


def _draft(topic: bytes, queue_id: int) -> RecordDraft:
    return RecordDraft(
        topic=topic, queue_id=queue_id, flag=0, sys_flag=0, born_at_ms=0,
        born_host=("127.0.0.1", 1), store_host=("127.0.0.1", 10911), reconsume_times=0,
        prepared_transaction_offset=0, body=bytes(200), properties=b"TAGS\x01a\x02",
    )  # fmt: skip


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="The cost of many queues.")
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--messages", type=int, default=2, help="per queue")
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        bench = Bench(Path(directory), args.topics, args.queues)
        try:
            asyncio.run(bench.run(args.messages))
        finally:
            Console().print(bench.table)


if __name__ == "__main__":
    main()
