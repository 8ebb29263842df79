"""Measures the start after kill -9 with a large store, and with a store of many queues.

    python -m bench.recovery [--gb 5] [--rate 17000] [--small-gb 1] [--queues 8] [--many 40000]
                             [--dir DIRECTORY]

Builds stores in the state that a killed broker leaves. The broker received messages of 1 KB at the
given rate, or messages of 100 bytes at a rate above any real one, with a simulated clock, and was
killed just before the next checkpoint. Then starts `kourou serve` on each store, and also opens it
in this process, to separate the time of the store. The cache is warm.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from kourou.disk import OsDisk
from kourou.model.properties import encode_properties
from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.store.state.checkpoint import read_checkpoint
from kourou.testing.process import Serving

_GIB: Final = 1024**3
_MIB: Final = 1024**2
_BODY_BYTES: Final = 1024
_SMALL_BYTES: Final = 100
_SMALL_RATE: Final = 100_000
_WRITE_MESSAGES: Final = 200
_SERVES_WITHIN_S: Final = 3.0
_MOVES_WITHIN_S: Final = 600
"""Maximum simulated time without a new checkpoint; rounds of 40,000 queue files take long."""
_MANY_BYTES: Final = 30 * 1200
"""Bytes of the log per message per second: the log of half a minute."""


@dataclass(frozen=True)
class StoreToBuild:
    """A store to build: its name in the table, its config and its content."""

    name: str
    config: StoreConfig
    size_bytes: int
    queues: int
    rate: int
    body_bytes: int = _BODY_BYTES


def _draft(queue: int, queues: int, body_bytes: int) -> RecordDraft:
    """Return a typical message, with a unique id, a tag and a key."""
    properties = {"UNIQ_KEY": "7F0000010E2A18B4AAC2000000000000", "TAGS": "a", "KEYS": f"k{queue}"}
    return RecordDraft(
        topic=b"bench%d" % (queue // 8) if queues > 8 else b"bench",
        queue_id=queue % 8 if queues > 8 else queue,
        flag=0,
        sys_flag=0,
        born_at_ms=1,
        born_host=("127.0.0.1", 40_000),
        store_host=("127.0.0.1", 10_911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=bytes(body_bytes),
        properties=encode_properties(properties),
    )


def _commit(store: MessageStore) -> None:
    store.writer.write()
    for plan in (store.writer.sync_plan(), store.writer.queue_sync_plan()):
        if plan is not None:
            store.writer.run_sync(plan)
            store.writer.synced(plan)
    store.writer.dispatch(store.reader.synced_position)


def build(root: Path, spec: StoreToBuild) -> None:
    """Fill a store, and abandon it just before the next checkpoint, like a kill."""
    disk = OsDisk(root)
    now_ms = int(time.time() * 1000)
    store = MessageStore.open(disk, spec.config, now_ms, pid=os.getpid())
    drafts = [_draft(queue, spec.queues, spec.body_bytes) for queue in range(spec.queues)]
    at = before_s = period_s = moved_s = 0
    for second, at_ms in enumerate(count(now_ms, 1000)):
        for number in range(0, spec.rate, _WRITE_MESSAGES):
            for index in range(number, min(number + _WRITE_MESSAGES, spec.rate)):
                store.writer.append(drafts[index % spec.queues], at_ms)
            store.writer.write()
            store.writer.dispatch(store.reader.written_position)
        _commit(store)
        is_enough = store.reader.written_position >= spec.size_bytes and period_s
        if is_enough and second - moved_s >= period_s - 1:
            break
        while not store.writer.flush(at_ms):
            _commit(store)
        offset = read_checkpoint(disk).java_values.queues_offset
        if offset != at:
            at, before_s, moved_s = offset, moved_s, second
            period_s = moved_s - before_s
        elif second - moved_s > _MOVES_WITHIN_S:
            raise RuntimeError(f"no new checkpoint within {_MOVES_WITHIN_S} s")
    store.abandon()
    disk.close()


def _measure(root: Path, config: StoreConfig) -> list[str]:
    """Return the cells of one row: records scanned, time of the store, time of the server."""
    disk = OsDisk(root)
    began, cpu_before = time.perf_counter(), time.process_time()
    store = MessageStore.open(disk, config, int(time.time() * 1000), pid=os.getpid())
    opened_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_before
    report = store.recovery
    store.abandon()
    disk.close()
    began = time.perf_counter()
    with Serving.start(root, "--profile", "dev") as serving:
        served_s = time.perf_counter() - began
        serving.process.kill()
        serving.process.wait()
    each_us = cpu_s * 1e6 / max(1, report.records_scanned)
    return [
        f"{report.records_scanned:,}",
        f"{opened_s:.2f}",
        f"{each_us:.1f}",
        f"{served_s:.2f}",
        "yes" if served_s <= _SERVES_WITHIN_S else "NO",
    ]


def _rows(arguments: argparse.Namespace) -> Iterator[StoreToBuild]:
    """Yield the stores to measure."""
    size, queues = int(arguments.gb * _GIB), arguments.queues
    config = StoreConfig(message_index_enable=False)
    for segment in (64 * _MIB, _GIB):
        config = StoreConfig(commitlog_segment_bytes=segment, message_index_enable=False)
        name = f"{arguments.gb:g} GiB in files of {segment // _MIB} MiB, {queues} queues"
        yield StoreToBuild(name, config, size, queues, arguments.rate)
    if arguments.small_gb:
        name = f"{arguments.small_gb:g} GiB of {_SMALL_BYTES} bytes each, {queues} queues"
        small = int(arguments.small_gb * _GIB)
        yield StoreToBuild(name, config, small, queues, _SMALL_RATE, _SMALL_BYTES)
    if arguments.many:
        # This benchmark syncs once per second, not with each iteration of the loop.
        config = StoreConfig(message_index_enable=False, queue_files_per_sync=arguments.many)
        size, rate = arguments.rate * _MANY_BYTES, arguments.rate
        yield StoreToBuild(f"{arguments.many:,} queues", config, size, arguments.many, rate)


def main() -> None:
    """Measure all stores, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=5)
    parser.add_argument(
        "--rate", type=int, default=17_000, help="messages per second before the kill"
    )
    parser.add_argument("--small-gb", type=float, default=1, help="of 100-byte messages; 0: none")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--many", type=int, default=40_000, help="queues of the last row; 0: none")
    parser.add_argument("--dir", type=Path, default=None)
    arguments = parser.parse_args()
    table = Table(title=f"after kill -9; goal: at most {_SERVES_WITHIN_S:g} s")
    for column in ("store", "records scanned", "open s", "CPU us/record", "serves s", "held"):
        table.add_column(column, justify="left" if column == "store" else "right")
    for spec in _rows(arguments):
        root = Path(tempfile.mkdtemp(dir=arguments.dir))
        try:
            build(root, spec)
            table.add_row(spec.name, *_measure(root, spec.config))
        finally:
            shutil.rmtree(root)
    Console().print(table)


if __name__ == "__main__":
    main()
