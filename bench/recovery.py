"""How long until a large store serves again after kill -9, and one of very many queues?

    python -m bench.recovery [--gb 5] [--rate 17000] [--queues 8] [--many 40000] [--dir DIRECTORY]

Builds stores as a broker would have left them that took messages of 1 KB at the rate, its clock
told and not waited for, and "kills" it just before the next checkpoint. Then starts `kourou serve`
on each, and, for the share of the store in that, opens it in this process. The cache is warm.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from kourou.disk import OsDisk
from kourou.model.properties import encode_properties
from kourou.protocol.message_layout import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.testing.process import Serving

_GIB: Final = 1024**3
_MIB: Final = 1024**2
_BODY: Final = b"x" * 1024
_WRITE_MESSAGES: Final = 200
_SERVES_WITHIN_S: Final = 3.0
_MANY_BYTES: Final = 30 * 1200
"""Of the log for each message a second: it grows for half a minute."""


def _draft(queue: int, queues: int) -> RecordDraft:
    """Return a message as producers send it: a unique id, a tag, a key."""
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
        body=_BODY,
        properties=encode_properties(properties),
    )


def _commit(store: MessageStore) -> None:
    store.write()
    plan = store.sync_plan()
    if plan is not None:
        store.run_sync(plan)
        store.synced(plan)
    store.dispatch(store.synced_position)


def build(root: Path, config: StoreConfig, size_bytes: int, rate: int, queues: int) -> None:
    """Fill a store and leave it as a kill just before a checkpoint would."""
    disk = OsDisk(root)
    now_ms = int(time.time() * 1000)
    store = MessageStore.open(disk, config, now_ms, pid=os.getpid())
    drafts = [_draft(queue, queues) for queue in range(queues)]
    since_round_ms = 0
    for at_ms, count in _seconds(now_ms, rate):
        for number in range(0, count, _WRITE_MESSAGES):
            for index in range(number, min(number + _WRITE_MESSAGES, count)):
                store.append(drafts[index % queues], at_ms)
            store.write()
            store.dispatch(store.written_position)
        _commit(store)
        since_round_ms += 1000
        is_enough = store.written_position >= size_bytes
        if is_enough and since_round_ms >= config.queue_sync_interval_ms - 1000:
            break
        if since_round_ms >= config.queue_sync_interval_ms:
            since_round_ms = 0
        while not store.flush(at_ms):
            _commit(store)
    store.abandon()
    disk.close()


def _seconds(now_ms: int, rate: int) -> Iterator[tuple[int, int]]:
    while True:
        now_ms += 1000
        yield now_ms, rate


def _measure(root: Path, config: StoreConfig) -> list[str]:
    """Return the cells of one row: records scanned, the store's time, the server's."""
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


def _rows(arguments: argparse.Namespace) -> Iterator[tuple[str, StoreConfig, int, int]]:
    """Yield what is measured: its name, the store's config, bytes and queues."""
    size = int(arguments.gb * _GIB)
    for segment in (64 * _MIB, _GIB):
        config = StoreConfig(commitlog_segment_bytes=segment, message_index_enable=False)
        name = f"{arguments.gb:g} GiB in files of {segment // _MIB} MiB, {arguments.queues} queues"
        yield name, config, size, arguments.queues
    if arguments.many:
        # Here a sync comes once a second, and not with each turn of the loop.
        config = StoreConfig(message_index_enable=False, queue_files_per_sync=arguments.many)
        yield f"{arguments.many:,} queues", config, arguments.rate * _MANY_BYTES, arguments.many


def main() -> None:
    """Print a table of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=5)
    parser.add_argument("--rate", type=int, default=17_000, help="messages a second before")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--many", type=int, default=40_000, help="queues of the last row; 0: none")
    parser.add_argument("--dir", type=Path, default=None)
    arguments = parser.parse_args()
    table = Table(title=f"after kill -9; at most {_SERVES_WITHIN_S:g} s")
    for column in ("store", "records scanned", "open s", "CPU us/record", "serves s", "held"):
        table.add_column(column, justify="left" if column == "store" else "right")
    for name, config, size, queues in _rows(arguments):
        root = Path(tempfile.mkdtemp(dir=arguments.dir))
        try:
            build(root, config, size, arguments.rate, queues)
            table.add_row(name, *_measure(root, config))
        finally:
            shutil.rmtree(root)
    Console().print(table)


if __name__ == "__main__":
    main()
