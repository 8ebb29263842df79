"""Measures the cost of the key index, and the time of key queries.

    python -m bench.index [--messages N] [--rounds N] [--dir DIR] [--before SRC]

Writes messages with a unique id, a tag and, in some runs, a key into a log, and indexes them: once
from the log, as after a start, and once from the feed of the append path, as for new messages. In
one run each message also has a property with a unique value, so that no record has the form of an
earlier one, and each is parsed property by property.

Prints the smallest figure of all rounds. All times are CPU times of the process, comparable also
on a busy machine, although they grow if cores share their caches. With `--before`, each round is
also run with the `src` of another commit, and the table shows this source's ratios to the other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Final, NamedTuple, cast

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


def measure(directory: Path, messages: int, kind: Kind) -> dict[str, float]:
    """Return the figures by name."""
    disk = OsDisk(directory)
    disk.make_directory("commitlog")
    log = CommitLog(disk, SEGMENT_BYTES)
    index = KeyIndex(disk, log, LAYOUT)
    index.feed = write_log(log, messages, kind)
    index.open(durable_to_ms=None, complete_to=None)
    fed_s, *_ = follow(index, log.synced_position)
    memory_bytes = _rebuild_memory(disk, log)
    index = _empty_index(disk, log)
    on_s, off_s, longest_s = follow(index, log.synced_position)
    began_s = time.process_time()
    index.save()
    saved_s = time.process_time() - began_s
    dice = random.Random(1)
    began_s = time.process_time()
    for _ in range(QUERIES):
        hash_ = key_hash("Orders", f"order-{dice.randrange(messages)}", KeyKind.KEY)
        found = list(index.find(hash_, 0, 2 * START_MS))
        assert found or not kind.has_key, "a key is missing"
    found_s = time.process_time() - began_s
    disk.close()
    return {
        "on the loop, from the log, us/message": on_s / messages * 1e6,
        "on the loop, from the feed, us/message": fed_s / messages * 1e6,
        "off the loop, us/message": off_s / messages * 1e6,
        "longest slice, ms": longest_s * 1e3,
        "save, ms": saved_s * 1e3,
        "query of a key, us": found_s / QUERIES * 1e6,
        "most memory of Python objects, MB": memory_bytes / 1e6,
    }


def _empty_index(disk: OsDisk, log: CommitLog) -> KeyIndex:
    for name in disk.list("index"):
        disk.unlink(f"index/{name}")
    index = KeyIndex(disk, log, LAYOUT)
    index.open(durable_to_ms=None, complete_to=None)
    return index


def _rebuild_memory(disk: OsDisk, log: CommitLog) -> int:
    """Return the most bytes of Python objects while an index is built; its slots are no objects."""
    tracemalloc.start()
    follow(_empty_index(disk, log), log.synced_position)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


Figures = dict[str, dict[str, float]]
"""By kind of messages and name."""


def _run(args: argparse.Namespace, source: Path | None) -> Figures:
    """Run one round in a process of its own, with the code of this source or of another one."""
    words = [sys.executable, "-m", "bench.index", "--json", "--messages", str(args.messages)]
    words += ["--dir", str(args.dir)] if args.dir else []
    path = {"PYTHONPATH": f"{source.resolve()}:."} if source else {}
    done = subprocess.run(words, env=os.environ | path, stdout=subprocess.PIPE, check=True)
    return cast("Figures", json.loads(done.stdout))


def _smallest(rounds: list[Figures]) -> Figures:
    return {
        kind: {name: min(one[kind][name] for one in rounds) for name in figures}
        for kind, figures in rounds[0].items()
    }


def _round(args: argparse.Namespace) -> Figures:
    figures = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory(dir=args.dir) as directory:
            figures[kind.name] = measure(Path(directory), args.messages, kind)
    return figures


def main() -> None:
    """Measure with messages of each kind, and print a table."""
    parser = argparse.ArgumentParser(description="The cost of the key index.")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=None, help="on the disk to measure")
    parser.add_argument("--before", type=Path, help="the `src` of another commit")
    parser.add_argument("--json", action="store_true", help="run one round, print it as JSON")
    args = parser.parse_args()
    if args.json:
        print(json.dumps(_round(args)))
        return
    sources = [None, *([args.before] if args.before else [])]
    rounds: dict[Path | None, list[Figures]] = {source: [] for source in sources}
    for number in range(args.rounds):
        for source in sources[:: -1 if number % 2 else 1]:
            rounds[source].append(_run(args, source))
    now, *others = (_smallest(of_source) for of_source in rounds.values())
    table = Table("figure", *now)
    for name in next(iter(now.values())):
        cells = [f"{now[kind][name]:.2f}" for kind in now]
        for before in others:
            ratios = (now[kind][name] / (before[kind][name] or 1) for kind in now)
            cells = [f"{cell} ({ratio:.2f})" for cell, ratio in zip(cells, ratios, strict=True)]
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
