"""Measures scheduled messages: rate, memory, and the accuracy of their delivery.

    python -m bench.timers [--pending N] [--due N] [--over SECONDS] [--dir DIR]

Runs the components of a broker in this process, on a real disk with synchronous flush. First stores
messages for tomorrow, then messages for the next seconds, and prints the delays of their delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Final

from rich.console import Console

from bench.many_queues import resident_bytes
from kourou.broker.components import Components
from kourou.broker.config import BrokerConfig
from kourou.broker.writing.kernel_flusher import KernelFlusher
from kourou.disk import OsDisk
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.model.topic import TopicConfig
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.read import read_checked
from kourou.remoting.runtime import Runtime
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore

_BATCH: Final = 200
_BODY: Final = b"x" * 128
_DAY_MS: Final = 86_400_000
_SPREAD_MS: Final = 3_600_000
_HOST: Final = ("127.0.0.1", 10911)
_CONSOLE: Final = Console()


class Bench:
    """The measurements on the components of one broker."""

    def __init__(self, components: Components) -> None:
        self.components = components
        self._sends = components.timers.placement(Random(1))
        self._count = 0

    def _draft(self, due_at_ms: int, now_ms: int) -> RecordDraft:
        self._count += 1
        properties = {names.UNIQ_KEY: f"{self._count:032X}", names.TIMER_DELIVER_MS: str(due_at_ms)}
        placed = self._sends.place("T", 0, properties, now_ms)
        return RecordDraft(
            topic=placed.topic.encode(),
            queue_id=placed.queue_id,
            flag=0,
            sys_flag=0,
            born_at_ms=now_ms,
            born_host=_HOST,
            store_host=_HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=_BODY,
            properties=encode_properties(properties),
        )

    async def put(self, dues: list[int]) -> None:
        """Store a message for each time, and wait until all are stored."""
        now_ms = self.components.runtime.clock.now_ms()
        drafts = [self._draft(due_at_ms, now_ms) for due_at_ms in dues]
        await self.components.context.commit.put_and_wait(drafts, now_ms)

    async def wait(self, pending: int) -> None:
        """Schedule messages for tomorrow; print the rate and the memory that they take."""
        dice, clock = Random(2), self.components.runtime.clock
        before, began, cpu = resident_bytes(), time.perf_counter(), time.process_time()
        for _ in range(0, pending, _BATCH):
            tomorrow_ms = clock.now_ms() + _DAY_MS
            await self.put([tomorrow_ms + dice.randrange(_SPREAD_MS) for _ in range(_BATCH)])
        while self.components.timers.intake_lag:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        grown = (resident_bytes() - before) / 1e6
        _CONSOLE.print(
            f"{self.components.timers.waiting} scheduled: {pending / took:,.0f}/s, "
            f"{cpu / pending * 1e6:.1f} us CPU each, memory grew by {grown:.0f} MB"
        )

    async def deliver(self, due: int, over_s: float) -> None:
        """Schedule messages over the next `over_s` seconds; print the delays of their delivery."""
        if not due:
            return
        dice, clock, store = Random(3), self.components.runtime.clock, self.components.context.store
        start_ms = clock.now_ms() + 5_000
        dues = [start_ms + dice.randrange(round(over_s * 1000)) for _ in range(due)]
        for at in range(0, due, _BATCH):
            await self.put(dues[at : at + _BATCH])
        while store.reader.max_offset("T", 0) < due:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
        late = sorted(self._lateness(offset) for offset in range(due))
        _CONSOLE.print(
            f"{due} delivered over {over_s:g} s, delay in ms: min {late[0]}, median "
            f"{late[due // 2]}, p99 {late[due * 99 // 100]}, max {late[-1]}"
        )

    def _lateness(self, offset: int) -> int:
        store = self.components.context.store
        entry = store.reader.entry("T", 0, offset)
        assert entry is not None
        record = store.reader.read_record(entry.physical_offset)
        assert record is not None
        text = record[read_checked(record, 0).properties_start :]
        due_at_ms = int(text.split(b"TIMER_DELIVER_MS\x01")[1].split(b"\x02")[0])
        return read_checked(record, 0).store_at_ms - due_at_ms


async def run(directory: Path, pending: int, due: int, over_s: float) -> None:
    """Run both measurements."""
    config = BrokerConfig(store=StoreConfig(free_bytes_min=1))
    disk, runtime = OsDisk(directory), Runtime.system()
    store = MessageStore.open(disk, config.store_config, runtime.clock.now_ms(), pid=1)
    flusher = KernelFlusher(asyncio.get_running_loop())
    components = Components(config, disk=disk, runtime=runtime, flusher=flusher, store=store)
    # Deliveries to missing topics are skipped.
    components.context.topics.put(TopicConfig("T", 1, 1))
    await components.timers.start()

    async def flush() -> None:
        while True:
            await asyncio.sleep(1)
            components.context.commit.flush(runtime.clock.now_ms())
            await components.timers.storage.flush()

    flushing = asyncio.create_task(flush())
    bench = Bench(components)
    await bench.deliver(min(due, 200), 2.0)
    await bench.wait(pending)
    await bench.deliver(due, over_s)
    flushing.cancel()
    await components.timers.stop()
    await components.context.commit.close()
    await components.timers.storage.close()
    store.close(runtime.clock.now_ms())
    flusher.close()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--due", type=int, default=50_000)
    parser.add_argument("--over", type=float, default=10.0)
    parser.add_argument("--dir", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        asyncio.run(run(Path(directory), arguments.pending, arguments.due, arguments.over))


if __name__ == "__main__":
    main()
