"""Measures the cost of the key index, and the time of key queries.

    python -m bench.index [--messages N] [--dir DIR]

Writes messages with a unique id, a tag and, in some runs, a key into a log, and indexes them: once
from the log, as after a start, and once from the feed of the append path, as for new messages. In
one run each message also has a property with a unique value, so that no record has the form of an
earlier one, and each is parsed property by property.

All times are CPU times of this process, comparable also on a busy machine, although they grow if
cores share their caches. To compare two versions, run both in turn on the same machine, several
times, and use the smallest figure of each: `PYTHONPATH=<the other's src> python -m bench.index`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from kourou.disk import OsDisk
from kourou.model.msgid import UniqueIdGenerator
from kourou.model.properties import encode_properties
from kourou.protocol.record.encode import RecordDraft, encode_record
from kourou.store.index.index_feed import IndexFeed
from kourou.store.index.index_file import IndexLayout
from kourou.store.index.index_keys import KeyKind, key_hash
from kourou.store.index.key_index import IndexStep, KeyIndex
from kourou.store.log.commitlog import CommitLog

SEGMENT_BYTES: Final = 1 << 30
LAYOUT: Final = IndexLayout(5_000_000, 20_000_000)
START_MS: Final = 1_700_000_000_000
QUERIES: Final = 2_000
_WRITE_EACH: Final = 1_000
_PRODUCERS: Final = 8


class Kind(NamedTuple):
    """The kind of messages of a run."""

    name: str
    body_bytes: int
    has_key: bool
    has_trace: bool


KINDS: Final = (
    Kind("100 B, key", 100, has_key=True, has_trace=False),
    Kind("1 KB, key", 1024, has_key=True, has_trace=False),
    Kind("1 KB", 1024, has_key=False, has_trace=False),
    Kind("1 KB, key, all different", 1024, has_key=True, has_trace=True),
)


def write_log(log: CommitLog, messages: int, kind: Kind) -> IndexFeed:
    """Write the messages, 60 per millisecond, as if sent by several producers in turn.

    Returns:
        The index feed of all messages.
    """
    feed = IndexFeed(1 << 40)
    ids = [UniqueIdGenerator("10.0.0.7", 4711 + number, lambda: 99) for number in range(_PRODUCERS)]
    dice, body = random.Random(1), bytes(kind.body_bytes)
    for number in range(messages):
        now_ms = START_MS + number // 60
        properties = {"UNIQ_KEY": ids[number % _PRODUCERS].next(now_ms), "WAIT": "true"}
        if kind.has_key:
            properties["KEYS"] = f"order-{number}"
        if kind.has_trace:
            properties["trace"] = f"{dice.getrandbits(128):032x}"
        properties |= {"TAGS": "TagA", "__CRC32#": f"{dice.getrandbits(31):010}"}
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
        position = log.position_for(len(encode_record(draft, number, 0, now_ms)))
        record = encode_record(draft, number, position, now_ms)
        log.add(position, record)
        unique_id, key = properties["UNIQ_KEY"], properties.get("KEYS", "")
        end = position + len(record)
        feed.begin_run().append((position, end, now_ms, "Orders", "TagA", unique_id, key))
        if number % _WRITE_EACH == 0:
            log.write()
    log.write()
    log.synced(log.written_position)
    return feed


def follow(index: KeyIndex, end: int) -> tuple[float, float, float]:
    """Return the seconds on the loop, off the loop, and of the longest step."""
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


def measure(directory: Path, messages: int, kind: Kind) -> dict[str, str]:
    """Return the figures by name."""
    disk = OsDisk(directory)
    disk.make_directory("commitlog")
    log = CommitLog(disk, SEGMENT_BYTES)
    feed = write_log(log, messages, kind)
    index = KeyIndex(disk, log, LAYOUT)
    index.feed = feed
    index.open(durable_to_ms=None, complete_to=None)
    fed_s, *_ = follow(index, log.synced_position)
    for name in disk.list("index"):
        disk.unlink(f"index/{name}")
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
        found = list(index.find(hash_, 0, 2 * START_MS))
        assert found or not kind.has_key, "a key is missing"
    found_s = time.perf_counter() - began_s
    disk.close()
    return {
        "on the loop, from the log, us/message": f"{on_s / messages * 1e6:.2f}",
        "on the loop, from the feed, us/message": f"{fed_s / messages * 1e6:.2f}",
        "off the loop, us/message": f"{off_s / messages * 1e6:.2f}",
        "longest slice, ms": f"{longest_s * 1e3:.2f}",
        "save, ms": f"{saved_s * 1e3:.0f}",
        "query of a key, us": f"{found_s / QUERIES * 1e6:.1f}",
    }


def main() -> None:
    """Measure with messages of each kind, and print a table."""
    parser = argparse.ArgumentParser(description="The cost of the key index.")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    args = parser.parse_args()
    figures = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory(dir=args.dir) as directory:
            figures.append(measure(Path(directory), args.messages, kind))
    table = Table("figure", *(kind.name for kind in KINDS))
    for name in figures[0]:
        table.add_row(name, *(of_size[name] for of_size in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
