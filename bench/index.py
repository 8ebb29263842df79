"""What does the key index cost, and how fast are keys found?

    python -m bench.index [--messages N] [--dir DIR]

Writes messages with a unique id, one key and a tag into a log, and lets the index follow it. All
times are CPU of this process, so that they hold beside other work: they still grow where cores
share their caches.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from kourou.disk import OsDisk
from kourou.model.msgid import UniqueIds
from kourou.model.properties import encode_properties
from kourou.protocol.message_layout import RecordDraft, encode_record
from kourou.store.index.index_file import IndexLayout
from kourou.store.index.index_keys import KeyKind, key_hash
from kourou.store.index.key_index import IndexStep, KeyIndex
from kourou.store.log.commitlog import CommitLog

SEGMENT_BYTES: Final = 1 << 30
LAYOUT: Final = IndexLayout(5_000_000, 20_000_000)
START_MS: Final = 1_700_000_000_000
QUERIES: Final = 2_000
_WRITE_EACH: Final = 1_000


def write_log(log: CommitLog, messages: int, body: bytes) -> None:
    """Write the messages, 20 a millisecond, as one producer would have sent them."""
    ids = UniqueIds("10.0.0.7", 4711, 99)
    for number in range(messages):
        now_ms = START_MS + number // 20
        properties = {"KEYS": f"order-{number}", "UNIQ_KEY": ids.next(now_ms), "TAGS": "TagA"}
        draft = RecordDraft(
            topic=b"Orders",
            queue_id=number % 8,
            flag=0,
            sys_flag=0,
            born_at_ms=now_ms,
            born_host=("10.0.0.7", 40_000),
            store_host=("10.0.0.1", 10_911),
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=body,
            properties=encode_properties(properties),
        )
        position = log.place(len(encode_record(draft, number, 0, now_ms)))
        log.add(position, encode_record(draft, number, position, now_ms))
        if number % _WRITE_EACH == 0:
            log.write()
    log.write()
    log.synced(log.written_position)


def follow(index: KeyIndex, end: int) -> tuple[float, float, float]:
    """Return seconds on the loop, off it, and of the longest step."""
    on_s = off_s = longest_s = 0.0
    while True:
        began_s = time.process_time()
        left = index.step(end)
        took_s = time.process_time() - began_s
        on_s, longest_s = on_s + took_s, max(longest_s, took_s)
        if left is IndexStep.IDLE:
            return on_s, off_s, longest_s
        if left is IndexStep.BLOCKED:
            began_s = time.process_time()
            index.upkeep(end, START_MS)
            off_s += time.process_time() - began_s


def measure(directory: Path, messages: int, body_bytes: int) -> dict[str, str]:
    """Return the figures, by what they say."""
    disk = OsDisk(directory)
    disk.make_directory("commitlog")
    log = CommitLog(disk, SEGMENT_BYTES)
    write_log(log, messages, bytes(body_bytes))
    index = KeyIndex(disk, log, LAYOUT)
    index.open(durable_to_ms=None, complete_to=None)
    on_s, off_s, longest_s = follow(index, log.synced_position)
    began_s = time.perf_counter()
    index.save()
    saved_s = time.perf_counter() - began_s
    dice = random.Random(1)
    began_s = time.perf_counter()
    for _ in range(QUERIES):
        hash_ = key_hash("Orders", f"order-{dice.randrange(messages)}", KeyKind.KEY)
        assert list(index.find(hash_, 0, 2 * START_MS)), "each key is there"
    found_s = time.perf_counter() - began_s
    disk.close()
    return {
        "on the loop, us a message": f"{on_s / messages * 1e6:.2f}",
        "off the loop, us a message": f"{off_s / messages * 1e6:.2f}",
        "longest slice, ms": f"{longest_s * 1e3:.2f}",
        "save, ms": f"{saved_s * 1e3:.0f}",
        "places of a key, us": f"{found_s / QUERIES * 1e6:.1f}",
    }


def main() -> None:
    """Measure with small and with 1 KB messages, and print a table."""
    parser = argparse.ArgumentParser(description="What the key index costs.")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    args = parser.parse_args()
    sizes = (100, 1024)
    figures = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=args.dir) as directory:
            figures.append(measure(Path(directory), args.messages, size))
    table = Table("figure", *(f"{size} B" for size in sizes))
    for name in figures[0]:
        table.add_row(name, *(of_size[name] for of_size in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
