"""One flipped bit anywhere in a store: messages are served unchanged, or refused by name.

    log                      only the messages whose record contains the bit may be refused
    queues, index,           all messages are served: these files are rebuilt from the log
    checkpoint, abort
    config                   the newest good file is used, and logged

Half of the stores were closed, the others killed; half of the disks have an empty page cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final

from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.record.layout import MAGIC_BLANK, RECORD_START
from kourou.protocol.record.read import read_record
from kourou.testing.disk import SimDisk
from tests.torture.damage_judge import (
    BLOCKED,
    CRASHED,
    DAMAGE,
    LOST,
    REFUSED,
    SKIPPED,
    TABLE,
    UNFOUND,
    UNSAID,
    WRONG,
    Observation,
    after_rebuild,
    judge_messages,
    judge_queries,
    judge_skips,
    judge_tables,
    observe,
)
from tests.torture.figures import Figure, Outcome, Size, counted, run_cases
from tests.torture.filled import CONFIG, filled
from tests.torture.images import File, disk_of

FAULT: Final = "bit flip"
KINDS: Final = ("log", "log", "queues", "queues", "index", "checkpoint", "config", "config")
DIRECTORIES: Final = {
    "log": "commitlog/",
    "queues": "consumequeue/",
    "index": "index/",
    "config": "config/",
}
SEGMENT_BYTES: Final = CONFIG.store.commitlog_segment_bytes


@dataclass(frozen=True)
class Flip:
    """One bit of a file of a store."""

    is_closed: bool
    is_cold: bool
    kind: str
    name: str
    at: int
    bit: int

    @property
    def until_due(self) -> bool:
        """True if delayed messages may be affected, so that their delivery must be awaited."""
        return self.kind == "log" or SCHEDULE_TOPIC in self.name or "delay" in self.name

    def __str__(self) -> str:
        store = "closed" if self.is_closed else "killed"
        disk = ", cold" if self.is_cold else ""
        return f"{store}{disk}, bit {self.bit} of byte {self.at} of {self.name}"


def flip_of(seed: int) -> Flip:
    """Return the flip of a seed."""
    dice = Random(seed)
    is_closed, is_cold = dice.random() < 0.5, dice.random() < 0.5
    image = filled().closed if is_closed else filled().killed
    kind = dice.choice([kind for kind in KINDS if _names(image, kind)])
    names = _names(image, kind)
    name = dice.choices(names, [len(image[name].data) for name in names])[0]
    return Flip(
        is_closed, is_cold, kind, name, dice.randrange(len(image[name].data)), dice.randrange(8)
    )


def _names(image: Mapping[str, File], kind: str) -> list[str]:
    """Return the files of a kind that are not empty."""
    start = DIRECTORIES.get(kind, kind)
    return sorted(name for name in image if name.startswith(start) and image[name].data)


@cache
def records(*, is_closed: bool) -> list[tuple[int, int, str]]:
    """Return start, end and message key of each record and blank of the log."""
    image = filled().closed if is_closed else filled().killed
    found = []
    for name in _names(image, "log"):
        start, data, at = int(name.rpartition("/")[2]), image[name].data, 0
        while at + RECORD_START.size <= len(data):
            size, magic = RECORD_START.unpack_from(data, at)
            key = ""
            if magic != MAGIC_BLANK:
                header = read_record(data, at, check_crc=False)
                first = header.properties_start
                properties = data[first : first + header.properties_size].decode()
                pairs = [pair.split("\x01") for pair in properties.split("\x02") if pair]
                key = dict(pairs).get("KEYS", "")
            found.append((start + at, start + at + size, key))
            at += size
    return found


def flip(seed: int) -> Outcome:
    """Return the outcome of one flip."""
    outcome, made = Outcome(), flip_of(seed)
    image = filled().closed if made.is_closed else filled().killed
    file = image[made.name]
    flipped = file.data[made.at] ^ (1 << made.bit)
    damaged = {**image, made.name: file.replaced(made.at, bytes([flipped]))}
    outcome.counts["places"] += 1
    outcome.counts[f"places in {made.kind}"] += 1

    disk = disk_of(damaged, is_cold=made.is_cold)

    def fail(name: str, text: str) -> None:
        outcome.failures.append((name, f"seed {seed}: {made}: {text}"))

    try:
        seen = observe(
            disk,
            until_due=made.until_due,
            skips=made.kind == "log",
            queries=made.kind not in ("log", "config"),
        )
    except Exception as error:  # noqa: BLE001 - a finding, whatever it is
        fail(CRASHED, f"{type(error).__name__}: {error}")
        return outcome
    keys = _damaged_keys(made)
    if seen.refusal:
        fail(REFUSED, seen.refusal)
        return outcome
    for name, text in (
        *judge_messages(seen, keys, is_closed=made.is_closed, until_due=made.until_due),
        *_judge_rest(made, disk, seen, keys),
    ):
        fail(name, text)
    return outcome


def _judge_rest(
    made: Flip, disk: SimDisk, seen: Observation, keys: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield problems of the tables, of the log entries and answers, and of the final files."""
    image = filled().closed if made.is_closed else filled().killed
    unfound = list(judge_queries(seen))
    if made.kind == "index" or SCHEDULE_TOPIC in made.name:
        # Delivered messages are not read again, and damage of an index is not detectable.
        if unfound and made.name not in dict(seen.findings):
            yield UNSAID, f"store check has no findings, but {unfound}"
        if unfound or seen.findings:
            seen.findings = after_rebuild(disk)
            unfound = [
                *(each for each in unfound if each[0] == WRONG),
                *judge_queries(observe(disk, queries=True)),
            ]
    yield from unfound
    for name, text in judge_tables(seen, image, made.name):
        if not (made.until_due and "delay" in text):  # deliveries have advanced it
            yield name, text
    yield from judge_skips(seen)
    given = {m.keys[0] for held in seen.held.values() for m in held.messages.values() if m.keys}
    if keys - given and not seen.reports(made.name):
        yield UNSAID, f"{sorted(keys - given)} are not served"
    if made.kind != "log":
        yield from (
            (DAMAGE, text)
            for file, text in seen.findings
            if made.kind != "config" or not file.startswith("config/")
        )
    elif keys and made.name not in dict(seen.findings):
        yield UNSAID, "store check has no findings"


def _damaged_keys(made: Flip) -> set[str]:
    """Return the keys of the messages whose record contains the bit."""
    if made.kind != "log":
        return set()
    position = int(made.name.rpartition("/")[2]) + made.at
    all_records = records(is_closed=made.is_closed)
    hit = [record for record in all_records if record[0] <= position < record[1]]
    return {key for _, _, key in hit if key}


def run(size: Size) -> list[Figure]:
    """Return the figures of `size.places` flips."""
    seeds = range(size.seed, size.seed + size.places)
    outcome = run_cases(flip, seeds, size, "bit flips")
    names = (WRONG, LOST, UNFOUND, SKIPPED, BLOCKED, UNSAID, REFUSED, TABLE, DAMAGE, CRASHED)
    return [counted(FAULT, name, outcome, "places") for name in names]
